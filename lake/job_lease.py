"""The lease by which only one job at a time writes a lake, held in the lake itself.

Stage: under `streaming.job.job`, and under rebuilds of a job's state. The lease is a number in a small Delta table of
its own, whose row names the holder; renewals are numbers too (Delta app transactions). A newcomer compares no
clocks: a holder that renews while being watched is alive; one that does not renew for its promised time is
considered dead. A new holder writes its number to every table of the job. A commit with an older number then fails
its check or conflicts (Delta's rule for app transactions), so a job that was frozen writes nothing more. A released
lease is taken at once.
"""

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from lake.files import read_table
from lake.lease import LeaseLost
from lake.tables import MAX_RACES, OpenTable, make_folder
from schemas.tables.arrow import arrow_schema
from schemas.tables.rows import TABLES

log = logging.getLogger(__name__)

LEASE = "anabranch-job"
"""Name of the lease in every table's log; the newest number is the holder's."""
_RENEWED, _RELEASED = f"{LEASE}:renewed", f"{LEASE}:released"
FOLDER = "job_lease"
"""Folder of the lease's own table, which holds no data rows."""
SECONDS = 30.0
"""Longest silence of a holder, seconds, as its row has it; it renews three times as often."""
_SCHEMA = pa.schema(
    [
        ("token", pa.int64()),
        ("holder", pa.string()),
        ("checkpoint", pa.string()),
        ("since", pa.timestamp("us", tz="UTC")),
        ("seconds", pa.float64()),
    ]
)
_PROPERTIES = {"delta.logRetentionDuration": "interval 1 hours", "delta.checkpointInterval": "50"}


class NoLease(RuntimeError):
    """The lease is not available; the message says who has it, since when, and what to do."""


@dataclass(frozen=True)
class Claim:
    """An applicant for the lease."""

    holder: str
    """Unique description of the process, for people."""
    checkpoint: str
    since: object
    """An aware UTC datetime."""
    gone: str | None = None
    """A holder known to be dead."""


@dataclass(frozen=True)
class _Seen:
    """The lease at one reading."""

    token: int
    renewed: int
    released: int


class JobLease:
    """A held lease, from `take`. Call `renew` from one thread; any thread may read `lost`."""

    def __init__(self, table: OpenTable, token: int, seconds: float) -> None:
        self._table, self.token, self._seconds = table, token, seconds
        self._lost: LeaseLost | None = None

    @property
    def lost(self) -> LeaseLost | None:
        """Error to report, once another job is known to have taken over; else None."""
        return self._lost

    def shut_out_others(self, tables: Mapping[str, OpenTable]) -> None:
        """Write the lease's number to the tables: older ones fail. Raises `LeaseLost` or Delta's errors."""
        for name, table in tables.items():
            nothing = arrow_schema(TABLES[name].row).empty_table()
            for _ in range(MAX_RACES):
                check_lease(table, self.token)
                try:
                    table.append(nothing, LEASE, self.token)
                    break
                except CommitFailedError as error:
                    log.info("the lease is put into %s while others commit: %s", name, error)

    def renew(self) -> None:
        """Renew the lease. Raises `LeaseLost`, or what Delta raises."""
        seen = _read_lease(self._table)
        if seen.token != self.token:
            raise lease_lost(self.token, seen.token)
        _commit_lease(self._table, {LEASE: self.token, _RENEWED: seen.renewed + 1})

    def keep_renewing(self, end: threading.Event) -> None:
        """Renew until the end, or until the lease is lost; for a thread."""
        while not end.wait(self._seconds / 3):
            try:
                self.renew()
            except LeaseLost as lost:
                self._lost = lost
                return
            except (DeltaError, OSError) as error:
                log.warning("the lease on the lake could not be renewed, trying again: %s", error)

    def release(self) -> None:
        """Release the lease, so that the next holder need not wait. Never raises: otherwise it expires."""
        try:
            if _read_lease(self._table).token == self.token:
                _commit_lease(self._table, {LEASE: self.token, _RELEASED: self.token})
        except (DeltaError, OSError) as error:
            log.warning("the lease on the lake could not be given back, so it runs out: %s", error)


@contextmanager
def hold_lake(
    lake: str, claim: Claim, stop: threading.Event | None = None, seconds: float | None = None
) -> Iterator[JobLease]:
    """Hold the lake's lease, renewed by a thread, for the duration of the context. Raises `NoLease`.

    Waits at most for the time that a dead holder promised. `stop` ends the wait with `NoLease`. `seconds` defaults
    to `SECONDS`.
    """
    try:
        lease = take_lease(lake, claim, stop or threading.Event(), seconds or SECONDS)
    except (DeltaError, OSError) as error:
        raise NoLease(f"the lease on the lake {lake} cannot be taken: {error}") from error
    end = threading.Event()
    renewing = threading.Thread(target=lease.keep_renewing, args=(end,), name="job-lease", daemon=True)
    renewing.start()
    try:
        yield lease
    finally:
        end.set()
        renewing.join()
        lease.release()


def take_lease(lake: str, claim: Claim, stop: threading.Event, seconds: float = SECONDS) -> JobLease:
    """Take the lease as soon as it is free. Raises `NoLease`, or what Delta raises."""
    table = OpenTable(_table(lake))
    for _ in range(MAX_RACES):
        seen = _read_lease(table)
        if seen.token > seen.released:
            _wait_until_dead(table, seen, claim, lake, stop)
            seen = _read_lease(table)
        token = seen.token + 1
        row = pa.Table.from_pylist(
            [
                {
                    "token": token,
                    "holder": claim.holder,
                    "checkpoint": claim.checkpoint,
                    "since": claim.since,
                    "seconds": seconds,
                }
            ],
            _SCHEMA,
        )
        try:
            _commit_lease(table, {LEASE: token}, row)
        except CommitFailedError as error:
            log.info("the lease on %s was taken or renewed meanwhile, looking again: %s", lake, error)
            continue
        with suppress(DeltaError, OSError):
            # Removes the rows of earlier holders.
            table.table.vacuum(retention_hours=1, dry_run=False, enforce_retention_duration=False)
        return JobLease(table, token, seconds)
    raise NoLease(f"no lease on the lake {lake} in {MAX_RACES} attempts: too many jobs start at once")


def check_lease(table: OpenTable, token: int) -> None:
    """Raise `LeaseLost` if a newer holder has written its number to the table."""
    check_token(table.newest_transaction(LEASE), token)


def check_token(newest: int | None, token: int) -> None:
    """Raise `LeaseLost` if `newest`, the number of `LEASE` in a table, is a newer holder's."""
    if newest is not None and newest > token:
        raise lease_lost(token, newest)


def lease_lost(token: int, newest: int) -> LeaseLost:
    """Return the error for a job whose lease was taken over."""
    return LeaseLost(
        f"another job has taken over this lake: it holds lease {newest}, this one had {token} and did not renew it in "
        "time. Nothing more was written; only one job writes a lake, so stop the other one if this one is meant"
    )


def _wait_until_dead(table: OpenTable, first: _Seen, claim: Claim, lake: str, stop: threading.Event) -> None:
    """Wait until the holder releases the lease or has not renewed it for its promised time."""
    [row] = read_table(table.table).to_pylist()
    holder, seconds = row["holder"], row["seconds"]
    if holder == claim.gone:
        return
    log.warning("the lake %s is held by %s: waiting up to %.0f s for a sign of life", lake, holder, seconds)
    quiet, step = 0.0, min(1.0, seconds / 20)
    while quiet < seconds:
        if stop.wait(step):
            raise NoLease(f"told to stop while the lake {lake} was held by {holder}")
        quiet += step
        seen = _read_lease(table)
        if seen.released >= seen.token:
            return
        if seen != first:
            raise NoLease(
                f"the lake {lake} is in use by the job of {holder} with the checkpoint {row['checkpoint']}, since "
                f"{row['since']:%F %T} UTC: only one job writes a lake. Stop that one first, or give this one a lake "
                "of its own ([lake] path)"
            )
    log.warning("%s has not renewed its lease on the lake %s for %.0f s: taking over", holder, lake, seconds)


def _table(lake: str) -> DeltaTable:
    path = f"{lake.rstrip('/')}/{FOLDER}"
    make_folder(path)
    return DeltaTable.create(path, schema=_SCHEMA, mode="ignore", configuration=_PROPERTIES)


def _read_lease(table: OpenTable) -> _Seen:
    newest = table.newest()
    token, renewed, released = (newest.transaction_version(app) or 0 for app in (LEASE, _RENEWED, _RELEASED))
    return _Seen(token, renewed, released)


def _commit_lease(table: OpenTable, numbers: dict[str, int], rows: pa.Table | None = None) -> None:
    """Commit the numbers; `rows` replace the existing ones."""
    with table.committing(numbers) as properties:
        write_deltalake(
            table.table,
            _SCHEMA.empty_table() if rows is None else rows,
            mode="append" if rows is None else "overwrite",
            commit_properties=properties,
        )
