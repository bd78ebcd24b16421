"""What goes into the stateful operator and what comes out of it, as plain values and as Spark schemas.

Neighbours: `streaming.sources` makes the input columns, `streaming.engine` the output, `streaming.sink` reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

RAW_COLUMNS = ("source", "key", "value", "size", "partition", "offset", "timestamp", "now", "bucket", "home")


class RawRecord(NamedTuple):
    """One Kafka record as it reaches a bucket."""

    source: str
    """Kafka topic."""
    key: bytes | None
    value: bytes | None
    """Cut just above the size limit, so that an oversized value costs no more than that."""
    size: int
    """Length of the whole value, bytes; -1 when there is none."""
    partition: int
    offset: int
    timestamp: int
    """Kafka's timestamp, milliseconds."""
    home: bool
    """Whether this bucket answers for the record: what concerns every topic reaches all buckets, one is its home."""


SOURCE_ORDER = {"control-events": 0, "consumer-events": 1, "segment-stats": 2}
"""Within a batch, what is true comes before what is measured: layouts, then consumers, then loads."""


def arrival(record: RawRecord) -> tuple[int, int, int]:
    """Sort key: the order in which a bucket takes its records, the same in every replay."""
    return (SOURCE_ORDER.get(record.source, 3), record.partition, record.offset)


@dataclass
class LoadColumns:
    """Accepted load records, column by column: the bulk of the output."""

    topic: list[str] = field(default_factory=list)
    segment_id: list[int] = field(default_factory=list)
    msg_rate_in: list[float] = field(default_factory=list)
    bytes_rate_in: list[float] = field(default_factory=list)
    msg_rate_out: list[float] = field(default_factory=list)
    bytes_rate_out: list[float] = field(default_factory=list)
    reporter: list[str] = field(default_factory=list)
    sampled_at: list[int] = field(default_factory=list)
    cause: list[str] = field(default_factory=list)
    kafka_partition: list[int] = field(default_factory=list)
    kafka_offset: list[int] = field(default_factory=list)


@dataclass
class Counts:
    """What became of the messages and samples of one bucket in one batch; sums over buckets make a `batches` row."""

    messages: int = 0
    messages_accepted: int = 0
    messages_suppressed: int = 0
    dead_letters: int = 0
    samples: int = 0
    samples_accepted: int = 0
    samples_insignificant: int = 0
    samples_stale: int = 0
    events: int = 0
    decisions: int = 0
    holds: int = 0
    evaluations: int = 0
    operator_ms: float = 0.0


@dataclass
class Output:
    """Everything that one bucket says in one batch. Rows are columns by name; instants are milliseconds."""

    decisions: list[dict[str, Any]] = field(default_factory=list)
    holds: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    dead_letters: list[dict[str, Any]] = field(default_factory=list)
    loads: LoadColumns = field(default_factory=LoadColumns)
    due: list[tuple[str, int]] = field(default_factory=list)
    """Topics that ask for an evaluation before the next tick, and when."""
    counts: Counts = field(default_factory=Counts)


OUTPUT_DDL = (
    "kind STRING, body STRING, key BINARY, raw BINARY, topic STRING, segment_id BIGINT, "
    "msg_rate_in DOUBLE, bytes_rate_in DOUBLE, msg_rate_out DOUBLE, bytes_rate_out DOUBLE, "
    "reporter STRING, sampled_at BIGINT, cause STRING, kafka_partition BIGINT, kafka_offset BIGINT, now BIGINT"
)
"""One schema for all kinds of output: rare kinds are JSON in `body`, loads have columns of their own."""

OUTPUT_COLUMNS = tuple(column.split()[0] for column in OUTPUT_DDL.split(", "))
LOAD = "load"
COUNTS = "counts"
DUE = "due"
DEAD_LETTER = "dead_letters"
