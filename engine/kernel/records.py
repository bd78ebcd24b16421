"""What goes into the stateful operator and what comes out of it, as plain values and as Arrow and Spark schemas.

Neighbours: `streaming.sources` and `engine.kernel.packing` make the input, `engine.kernel.bucket` and the families the
output, `streaming.sink` reads it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pydantic_core


class RawRecord(NamedTuple):
    """One Kafka record as it reaches a bucket; its fields are those of `RAW_SCHEMA`."""

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


RAW_SCHEMA = pa.schema([
    ("source", pa.string()), ("key", pa.binary()), ("value", pa.binary()), ("size", pa.int64()),
    ("partition", pa.int32()), ("offset", pa.int64()), ("timestamp", pa.int64()), ("home", pa.bool_()),
])  # fmt: skip

SOURCE_ORDER = {"control-events": 0, "consumer-events": 1, "segment-stats": 2}
"""Within a batch, what is true comes before what is measured: layouts, then consumers, then loads; then the others."""


def arrival(record: RawRecord) -> tuple[int, str, int, int]:
    """Sort key: the order in which a bucket takes its records, the same in every replay."""
    return (SOURCE_ORDER.get(record.source, len(SOURCE_ORDER)), record.source, record.partition, record.offset)


LOAD_SCHEMA = pa.schema([
    ("topic", pa.string()), ("segment_id", pa.int64()), ("msg_rate_in", pa.float64()),
    ("bytes_rate_in", pa.float64()), ("msg_rate_out", pa.float64()), ("bytes_rate_out", pa.float64()),
    ("reporter", pa.string()), ("sampled_at", pa.int64()), ("cause", pa.string()),
    ("kafka_partition", pa.int64()), ("kafka_offset", pa.int64()),
])  # fmt: skip
"""Accepted load records, the bulk of the output; instants are milliseconds."""


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
    loads: pa.RecordBatch | None = None
    """Accepted load records, `LOAD_SCHEMA`."""
    due: list[tuple[str, int]] = field(default_factory=list)
    """Subjects that ask for an evaluation before the next tick, and when."""
    counts: Counts = field(default_factory=Counts)

    def bodies(self) -> dict[str, bytes]:
        """The rows of `OUTPUT_DDL`: a body for each kind that has something to say."""
        bodies = {COUNTS: pydantic_core.to_json([asdict(self.counts)])}
        for kind in RARE:
            if rows := getattr(self, kind):
                bodies[kind] = pydantic_core.to_json(rows, bytes_mode="base64")
        if self.due:
            bodies[DUE] = pydantic_core.to_json(self.due)
        if self.loads is not None:
            bodies[LOAD] = self.loads.serialize().to_pybytes()
        return bodies


OUTPUT_DDL = "kind STRING, body BINARY, now BIGINT"
"""One row is all of one kind that a bucket says: rare kinds are JSON arrays, loads a record batch of `LOAD_SCHEMA`."""
LOAD = "load"
COUNTS = "counts"
DUE = "due"
RARE = ("decisions", "holds", "events", "dead_letters")
"""Kinds that are rows of the table of the same name."""
