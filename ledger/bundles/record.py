"""Decisions about a bundle, and a cluster's cycle at an instant, from the lake.

Stage: under `anabranch bundles explain`. A decision's row has all that concerns its bundle. A cycle is run once more:
events, ticks included, lead to the cluster's state as the job had it, and the engine's own cycle answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from engine.bundles.clusters import ClusterState
from engine.bundles.cycle import FAMILY, Cycle, run_cycle
from engine.bundles.family import BUNDLES
from engine.history import Batches, columns_of, is_until
from engine.kernel.bucket import Intake
from engine.kernel.records import Output, RawRecord
from engine.kernel.settings import EngineSettings
from lake.tables import read_columns, stream_columns
from schemas.ids import EVERY_TOPIC
from schemas.kafka import BROKER_EVENTS, BROKER_LOAD, CONTROL_EVENTS
from schemas.tables import BATCHES, DECISIONS, EVENTS

_COLUMNS = (
    "subject", "type", "body", "accepted_at", "batch_id", "kafka_topic", "kafka_partition", "kafka_offset",
)  # fmt: skip
_SOURCES = (BROKER_LOAD.name, BROKER_EVENTS.name, CONTROL_EVENTS.name)
_TYPES = ("tick", "outcome", "local-broker-data", "broker-load-data", "ownership", "brokers", "policies")
_ROWS = 1024


class NotOnRecord(LookupError):
    """The lake has nothing that would tell; the message says of what."""


@dataclass(frozen=True)
class Known:
    """A cluster's last cycle up to an instant."""

    state: ClusterState
    """As the cycle left it."""
    cycle: Cycle
    doubt: str | None
    """Where what is worked out is not what the job has put on record; None: it is."""


def decisions_about(lake: str, cluster: str, bundle: str, until: datetime | None) -> list[dict[str, Any]]:
    """The decisions about a bundle, oldest first, up to an instant. Raises `NotOnRecord`, and what Delta raises."""
    columns = (
        "decision_id", "action", "arguments", "reason", "decided_at", "inputs", "gates", "seq", "policy_digest",
    )  # fmt: skip
    found = [row for row in _rows_of(lake, cluster, columns, until) if json.loads(row["arguments"])["bundle"] == bundle]
    if not found:
        raise NotOnRecord(f"no decision about {bundle} of {cluster} is on record" + (" up to then" if until else ""))
    return sorted(found, key=lambda row: (row["decided_at"], row["seq"]))


def last_cycle(lake: str, cluster: str, until: datetime | None) -> Known:
    """A cluster's last cycle up to an instant. All of its cycles before that are run, about 50 microseconds of the
    processor for a bundle and cycle. Raises `NotOnRecord`, and what Delta raises."""
    known = BUNDLES.opener(EngineSettings(0.0, 60_000))({})
    intake, last = Intake((BUNDLES,)), None
    for now, records in _batches(lake, cluster, until):
        output = Output()
        is_tick = intake.take([known.begin(now, output)], records, {}, now, output)
        state = known.clusters.get(cluster)
        if is_tick and state is not None and (cycle := run_cycle(state, now)) is not None:
            last = state, cycle
    if last is None:
        raise NotOnRecord(
            f"no cycle of a cluster {cluster} is on record" + (" up to then" if until else "")
            + ": does [bundles] enabled say true, and do its brokers' reports reach Kafka?"
        )  # fmt: skip
    state, cycle = last
    at = datetime.fromtimestamp(cycle.now / 1000).astimezone()
    said = {
        row["decision_id"]
        for row in _rows_of(lake, cluster, ("decision_id", "decided_at"), at)
        if row["decided_at"] == at
    }
    again = {one.decision_id for one in cycle.decided}
    doubt = (
        None if said == again else f"of this cycle {len(said)} decisions are on record, and {len(again)} come out now"
    )
    return Known(state, cycle, doubt)


def _rows_of(lake: str, cluster: str, columns: tuple[str, ...], until: datetime | None) -> Iterator[dict[str, Any]]:
    """Rows of `decisions` of a cluster."""
    where = (pc.field("family") == FAMILY) & (pc.field("subject") == cluster)
    for rows in stream_columns(lake, DECISIONS, columns, _ROWS, _until(where, DECISIONS, until)):
        yield from rows.to_pylist()


def _batches(lake: str, cluster: str, until: datetime | None) -> Iterator[tuple[int, list[RawRecord]]]:
    """What each of the job's batches accepted that concerns a cluster, in their order, each with its time."""
    known = Batches(read_columns(lake, BATCHES, columns_of(BATCHES)))
    where = pc.field("subject").isin([cluster, EVERY_TOPIC]) & pc.field("type").isin(_TYPES)
    rows = []
    for read in stream_columns(lake, EVENTS, _COLUMNS, _ROWS, _until(where, EVENTS, until)):
        millis = pc.divide(pc.cast(read["accepted_at"], pa.int64()), 1000)
        rows += read.set_column(read.column_names.index("accepted_at"), "accepted_at", millis).to_pylist()
    placed = [(place, row) for row in rows if (place := known.place(row["batch_id"], row["accepted_at"])) is not None]
    placed.sort(key=lambda one: one[0])
    for _, group in groupby(placed, key=lambda one: one[0]):
        batch = [row for _, row in group]
        yield batch[0]["accepted_at"], [_record(row) for row in batch if row["kafka_topic"] in _SOURCES]


def _record(row: dict[str, Any]) -> RawRecord:
    value = row["body"].encode()
    place = (row["kafka_partition"], row["kafka_offset"])
    # Dated as its batch: what was accepted then was not ahead of that, or of Kafka's clock.
    return RawRecord(row["kafka_topic"], row["subject"].encode(), value, len(value), *place, 2**53, True)


def _until(where: pc.Expression, table: Any, until: datetime | None) -> pc.Expression:
    return where if until is None else where & is_until(table, until)
