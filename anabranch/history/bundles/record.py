"""Decisions about a bundle, and a cluster's cycle at an instant, from the lake.

Stage: under `anabranch bundles explain`. A decision's row has everything about its bundle. A cycle is run again, on the
state that the cycles before it lead to. If those are too many, only two hours of them are run: most of a shedder's
memory fades within the hour, and the record shows whether it did: everything that the later half of them unloaded and
held has to match the record. Otherwise a day is run, and then everything. A cycle found this way is right, except that
another report of a broker may count, which may differ by what the report rule lets pass; and as splits depend on
averages of up to 1,000 samples, they are taken from the record.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from engine.bundles.clusters import MAX_OPEN_MS, ClusterState, LatestHold, OpenBundleDecision
from engine.bundles.codec import pack, unpack
from engine.bundles.cycle import FAMILY, Cycle, CycleDecision
from engine.cluster_replay import ClustersReplay, Different
from engine.history import (
    HISTORY_TABLES,
    Batches,
    HistoryRows,
    columns_of,
    history_chunk,
    is_of_clusters,
    is_since,
    is_until,
)
from engine.kernel.packed import StateError, StoredPart
from engine.kernel.records import RawRecord
from engine.replay import RecordedBatch
from lake.batches import read_batches
from lake.state_snapshots import Horizon, RowsForgotten, horizon_for
from lake.tables import stream_columns
from schemas.tables.arrow import arrow_schema
from schemas.tables.rows import BATCHES, DECISIONS, EVENTS, HOLDS, Table

FEW_REPORTS = 20_000
"""Of brokers, up to which all cycles are run: about half a minute with 25 bundles each."""
WINDOWS = (timedelta(hours=2), timedelta(days=1))
"""Of which the cycles are run where there are more."""
_EARLIER = timedelta(days=2)
"""Time before a window that is searched for live brokers, owners, policies and outcomes."""
_SLICE = timedelta(hours=6)
"""Read at a time."""
_CIRCUMSTANCES = ("ownership", "brokers", "policies", "outcome")
_REPORTS = ("local-broker-data", "broker-load-data")
_READ = (EVENTS, DECISIONS, HOLDS)
_ROWS = 1024
SPLIT = "split"
_PLACE = ("subject", "body", "kafka_topic", "kafka_partition", "kafka_offset", "accepted_at")


class ClusterNotOnRecord(LookupError):
    """The lake lacks the rows that an answer needs; the message names them."""


@dataclass(frozen=True)
class Known:
    """Last cycle of a cluster up to an instant."""

    state: ClusterState
    """State after the cycle."""
    cycle: Cycle
    since: datetime | None
    """Instant from which cycles were run; None: all on record."""
    doubt: str | None
    """Difference between the result and the job's record; None: there is none."""


def decisions_about(lake: str, cluster: str, bundle: str, until: datetime | None) -> list[dict[str, Any]]:
    """Return a bundle's decisions until an instant. Raises `ClusterNotOnRecord` or Delta's errors."""
    columns = ("decision_id", "action", "arguments", "reason", "decided_at", "inputs", "gates", "seq", "policy_digest")
    # As it stands in the arguments: rows of other bundles are not read further.
    where = pc.match_substring(pc.field("arguments"), json.dumps(bundle))
    rows = [
        row
        for row in _rows_of(lake, DECISIONS, cluster, columns, where, until)
        if json.loads(row["arguments"])["bundle"] == bundle
    ]
    if not rows:
        raise ClusterNotOnRecord(
            f"no decision about {bundle} of {cluster} is on record" + (" up to then" if until else "")
        )
    return sorted(rows, key=lambda row: (row["decided_at"], row["seq"]))


def last_cycle(lake: str, cluster: str, until: datetime | None, is_exact: bool = False) -> Known:
    """Return a cluster's last cycle up to an instant (aware; None: of the last batch on record).

    `is_exact`: run the whole record, however long. Takes about 50 microseconds of CPU for each bundle and cycle that is
    run. Raises `ClusterNotOnRecord`, and what Delta raises.
    """
    batches = Batches(read_batches(lake, columns_of(BATCHES), until=until))
    first, last = batches.span
    nothing = ClusterNotOnRecord(
        f"no cycle of a cluster {cluster} is on record"
        + (" up to then" if until else "")
        + ": does [bundles] enabled say true, and do its brokers' reports reach Kafka?"
    )
    if first is None or last is None or (until is not None and until < first):
        raise nothing
    end = last if until is None else min(until, last)
    try:
        horizon = horizon_for(lake, batches, end, [cluster])
    except RowsForgotten as error:
        raise ClusterNotOnRecord(str(error)) from error
    first = first if horizon is None else horizon.at
    is_exact = is_exact or _reports(lake, cluster, first, end) <= FEW_REPORTS
    for window in (None,) if is_exact else (*WINDOWS, None):
        since = None if window is None or end - window <= first else end - window
        run = _Run(lake, cluster, batches)
        if since is None:
            run.begin_with(horizon)
        else:
            run.begin_amid(since)
        different = run.until(since or first, end)
        begin = since or first
        later = _that_matter(different, _millis(begin + (end - begin) / 2))
        if since is None or (not later and cluster in run.replay.cycles):
            break
    if cluster not in run.replay.cycles:
        raise nothing
    cycle = run.replay.cycles[cluster]
    if since is not None:
        cycle = replace(cycle, decided=_on_record(lake, cluster, cycle))
        different = []
    doubt = next((difference.text for difference in different if difference.at == cycle.now), None)
    return Known(run.replay.clusters[cluster], cycle, since, doubt)


class _Run:
    """Cycles of a cluster, run again."""

    def __init__(self, lake: str, cluster: str, batches: Batches) -> None:
        self._lake, self._cluster, self._batches = lake, cluster, batches
        self.replay = ClustersReplay(every_version=True)

    def begin_with(self, horizon: Horizon | None) -> None:
        """Begin with the state of all rows that are forgotten."""
        if horizon is None or horizon.clusters is None:
            return
        try:
            states = unpack(StoredPart(horizon.clusters))
        except StateError as error:
            raise ClusterNotOnRecord(f"what was kept of rows that are forgotten cannot be read: {error}") from error
        self.replay = ClustersReplay(
            pack({name: state for name, state in states.items() if name == self._cluster}), every_version=True
        )

    def begin_amid(self, since: datetime) -> None:
        """Begin with the last announcements before an instant, and with the numbers reached on record."""
        state, before = ClusterState(self._cluster), since - timedelta(microseconds=1)
        self.replay.clusters[self._cluster] = state
        bundles, brokers = state.memory.recently_unloaded_bundles, state.memory.recently_unloaded_brokers
        decided = ("seq", "decision_id", "action", "arguments", "decided_at")
        for row in _rows_of(self._lake, DECISIONS, self._cluster, decided, None, before):
            state.decisions = max(state.decisions, row["seq"])
            decided_at, arguments = _millis(row["decided_at"]), json.loads(row["arguments"])
            if decided_at > _millis(since) - MAX_OPEN_MS:
                opened = OpenBundleDecision(row["decision_id"], row["action"], decided_at)
                source, destination = arguments.get("sourceBroker"), arguments.get("destinationBroker")
                state.open_decision(arguments["bundle"], opened, source, destination)
            if row["action"] == "unload" and decided_at > _millis(since - WINDOWS[0]):
                bundles[arguments["bundle"]] = max(decided_at, bundles.get(arguments["bundle"], 0))
                brokers[arguments["sourceBroker"]] = max(decided_at, brokers.get(arguments["sourceBroker"], 0))
        for row in _rows_of(self._lake, HOLDS, self._cluster, ("subject", "gate", "seq"), None, before):
            if row["seq"] > (hold := state.held.get(row["subject"], LatestHold(None, 0))).seq:
                hold.gate, hold.seq = row["gate"], row["seq"]
                state.held[row["subject"]] = hold
        where = pc.field("type").isin(_CIRCUMSTANCES) & is_since(EVENTS, since - _EARLIER)
        announcements = [_record(row) for row in _rows_of(self._lake, EVENTS, self._cluster, _PLACE, where, before)]
        self.replay.take(RecordedBatch(_millis(since) - 1, False, announcements, None, (), ()))

    def until(self, begin: datetime, end: datetime) -> list[Different]:
        """Run the record from one instant to another; return the differences from it."""
        different: list[Different] = []
        while begin <= end:
            until = min(begin + _SLICE, end + timedelta(microseconds=1))
            for batch in self._slice(begin, until - timedelta(microseconds=1)):
                different += self.replay.take(batch)
            begin = until
        return different

    def _slice(self, begin: datetime, end: datetime) -> Iterator[RecordedBatch]:
        rows = HistoryRows(self._batches, of_clusters=True)
        tables = {}
        for table in HISTORY_TABLES:
            parts = [arrow_schema(table.row).empty_table().select(list(columns_of(table)))]
            if table in _READ:
                where = is_of_clusters([self._cluster]) & is_since(table, begin) & is_until(table, end)
                read = stream_columns(self._lake, table, columns_of(table), _ROWS, where)
                parts += [rows.take(table.name, some)[0] for some in read]
            tables[table.name] = pa.concat_tables(parts)
        yield from history_chunk(self._batches, tables).of_bucket([self._cluster])


def _reports(lake: str, cluster: str, since: datetime, until: datetime) -> int:
    """Return the number of recorded reports of a cluster's brokers."""
    where = pc.field("type").isin(_REPORTS) & is_since(EVENTS, since)
    return sum(1 for _ in _rows_of(lake, EVENTS, cluster, ("type",), where, until))


def _that_matter(different: Sequence[Different], begin: int) -> list[Different]:
    """Return the differences from `begin` on that change what is unloaded or held.

    Splits are left out, and so are brokers with bundles to be split: nothing holds those at that time.
    """
    splitting = {difference.broker for difference in different if difference.action == SPLIT}
    later = [
        difference
        for difference in different
        if difference.at >= begin and difference.action != SPLIT and not difference.is_only_numbers
    ]
    return [difference for difference in later if difference.action is not None or difference.broker not in splitting]


def _on_record(lake: str, cluster: str, cycle: Cycle) -> tuple[CycleDecision, ...]:
    """Return the decisions of a cycle that are on record."""
    instant = datetime.fromtimestamp(cycle.now / 1000, timezone.utc)
    rows = _rows_of(
        lake, DECISIONS, cluster, ("action", "arguments", "decided_at"), is_since(DECISIONS, instant), instant
    )
    recorded = {(row["action"], json.loads(row["arguments"])["bundle"]) for row in rows}
    return tuple(decided for decided in cycle.decided if (decided.decision.action, decided.decision.bundle) in recorded)


def _rows_of(
    lake: str, table: Table, cluster: str, columns: Sequence[str], more: pc.Expression | None, until: datetime | None
) -> Iterator[dict[str, Any]]:
    """Yield rows of a cluster up to an instant (aware); of `holds` also those of its brokers."""
    where = pc.field("subject") == cluster
    if table is HOLDS:
        where = where | pc.starts_with(pc.field("subject"), f"{cluster}/")
    where = where if table is EVENTS else where & (pc.field("family") == FAMILY)
    where = where if more is None else where & more
    where = where if until is None else where & is_until(table, until)
    for rows in stream_columns(lake, table, columns, _ROWS, where):
        yield from rows.to_pylist()


def _record(row: dict[str, Any]) -> RawRecord:
    value = row["body"].encode()
    position = (row["kafka_partition"], row["kafka_offset"])
    return RawRecord(row["kafka_topic"], row["subject"].encode(), value, len(value), *position, 0, True)


def _millis(instant: datetime) -> int:
    return round(instant.timestamp() * 1000)
