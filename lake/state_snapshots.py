"""Horizons: state snapshots at the start of a day, from which a rebuild needs no older rows.

Stage: `anabranch lake retain` has one built (`anabranch.history.state_snapshots`) and committed before it removes
anything; rebuild, replay and explain continue from it. A single commit holds a whole horizon.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from typing import NamedTuple, Protocol
from uuid import uuid4

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.transaction import RemoveAction

from lake.files import PARTITION, modified_now, read_table
from lake.forgotten import midnight_of, retained_from
from lake.tables import HOOKS, OpenTable, create_table, open_table
from schemas.snapshot import ENGINE_VERSION
from schemas.tables.arrow import to_arrow
from schemas.tables.rows import HORIZONS, HorizonRow


class RowsForgotten(RuntimeError):
    """The question needs rows that retention has removed; the message says which and why."""


class Course(Protocol):
    """Order of the job's batches (`engine.history.Batches`)."""

    @property
    def generations(self) -> Collection[str]:
        """Generations that count."""

    def begins_before(self, day: date, /) -> bool:
        """Return whether the first batch that counts ran before a day."""

    def is_parted(self, instant: datetime, /) -> bool:
        """Return whether all batches before an instant ran before all others."""


class SnapshotPiece(NamedTuple):
    """State of some topics, as the stored parts of a bucket with these topics."""

    topics: bytes
    loads: bytes


@dataclass(frozen=True)
class Horizon:
    """State from all batches before an instant, a midnight (UTC)."""

    at: datetime
    generation: str
    """The last generation then; not that of a job that started anew with empty state."""
    next_offsets: Mapping[str, Mapping[int, int]]
    """By Kafka topic and partition: the offset after the last recorded message."""
    of_older: frozenset[str]
    """Topics and clusters with decisions by another engine version (`engine.replay`)."""
    pieces: Sequence[SnapshotPiece]
    clusters: bytes | None = None
    """Stored part of a bucket with all clusters; None: built by an older release."""

    @property
    def day(self) -> date:
        """All days before this one are included."""
        return self.at.date()


def write_horizon(lake: str, horizon: Horizon) -> None:
    """Store a horizon, in one commit. Raises what Delta raises."""
    about = json.dumps(
        {"generation": horizon.generation, "nextOffsets": horizon.next_offsets, "ofOlder": sorted(horizon.of_older)}
    )
    made_at = datetime.now(timezone.utc)
    rows = [
        HorizonRow(
            topics=piece.topics,
            loads=piece.loads,
            about=about,
            made_at=made_at,
            engine_version=ENGINE_VERSION,
            day=horizon.day,
            clusters=None if number else horizon.clusters,
        )
        for number, piece in enumerate(horizon.pieces)
    ]
    OpenTable(create_table(lake, HORIZONS)).append(to_arrow(HORIZONS, rows), f"anabranch-horizon:{uuid4()}", 0)


def newest_horizon(lake: str, generations: Collection[str], until: datetime | None = None) -> Horizon | None:
    """Return the newest horizon up to an instant (aware), or None. Raises `DeltaError` or `OSError`."""
    if (delta := open_table(lake, HORIZONS)) is None:
        return None
    candidates: dict[tuple[datetime, datetime], str] = {}
    for row in read_table(delta, ["day", "made_at", "about"]).to_pylist():
        candidates[midnight_of(row["day"]), row["made_at"]] = row["about"]
    for (midnight, made_at), about in sorted(candidates.items(), reverse=True):
        header = json.loads(about)
        if header["generation"] not in generations or (until is not None and midnight > until):
            continue
        columns = ["topics", "loads", *(["clusters"] if _has_clusters(delta) else [])]
        chosen = read_table(delta, columns, [("day", "=", midnight.date()), ("made_at", "=", made_at)]).to_pylist()
        offsets = {
            topic: {int(partition): offset for partition, offset in of_topic.items()}
            for topic, of_topic in header["nextOffsets"].items()
        }
        pieces = [SnapshotPiece(row["topics"], row["loads"]) for row in chosen]
        clusters = next((row["clusters"] for row in chosen if row.get("clusters") is not None), None)
        return Horizon(midnight, header["generation"], offsets, frozenset(header["ofOlder"]), pieces, clusters)
    return None


def drop_horizons(lake: str, needed: Collection[date]) -> None:
    """Remove the horizons before the last of these days, except those of these days.

    A question starts from the day before which its rows are removed, or from a later one. Raises what Delta raises.
    """
    delta = open_table(lake, HORIZONS)
    files = [] if delta is None or not needed else pa.table(delta.get_add_actions(flatten=True)).to_pylist()
    now, day = modified_now(), f"partition.{PARTITION}"
    old = [
        RemoveAction(file["path"], False, now, file["size_bytes"], {PARTITION: str(file[day])})
        for file in files
        if date.fromisoformat(str(file[day])) < max(needed) and date.fromisoformat(str(file[day])) not in needed
    ]
    if delta is not None and old:
        delta.create_write_transaction(
            old, mode="append", schema=delta.schema(), partition_by=[PARTITION], post_commithook_properties=HOOKS
        )


def horizon_for(
    lake: str, course: Course, until: datetime | None = None, subjects: Collection[str] | None = None
) -> Horizon | None:
    """Return the horizon from which to compute the state at an instant (aware; None: now).

    None: compute it from the beginning. `subjects` limits the question to these topics and clusters, so removed rows
    of others do not matter. Raises `RowsForgotten`, and what Delta raises.
    """
    forgotten = retained_from(lake, subjects)
    if forgotten is None or not course.begins_before(forgotten.date()):
        return None
    horizon = newest_horizon(lake, course.generations, until)
    if horizon is None or horizon.at < forgotten:
        raise RowsForgotten(
            f"rows before {forgotten:%F} are forgotten (`anabranch lake retain`), and what was "
            f"{f'at {until:%F %T} UTC' if until else 'then'} is not known without them"
        )
    if not course.is_parted(horizon.at):
        raise RowsForgotten(f"the job's clock was set back over {horizon.day}, and rows before that are forgotten")
    return horizon


def has_horizon(lake: str, day: date, is_exact: bool = False) -> bool:
    """Return whether there is a horizon at the start of that day, or, unless `is_exact`, later.

    Those of older releases without clusters do not count. Raises `DeltaError` or `OSError`.
    """
    delta = open_table(lake, HORIZONS)
    if delta is None or not _has_clusters(delta):
        return False
    return bool(
        read_table(delta, ["clusters"], [("day", "=" if is_exact else ">=", day)])["clusters"]
        .is_valid()
        .to_numpy()
        .any()
    )


def _has_clusters(delta: DeltaTable) -> bool:
    """Return whether the table is of a release that stores clusters with bundles."""
    return "clusters" in pa.schema(delta.schema().to_arrow()).names
