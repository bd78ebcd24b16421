"""Input and output of the stateful operator, as plain values and as Arrow and Spark schemas.

`streaming.job.sources` and `engine.kernel.packing` build the input, `engine.kernel.bucket` and the families the output,
which `streaming.sink.sink` reads.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pydantic_core

from schemas.tables.arrow import arrow_schema
from schemas.tables.rows import EventRow, HoldRow, SegmentLoadRow, TableRow

MAX_CHUNK_BYTES = 4 * 1024 * 1024
"""Amount of output that a bucket buffers before emitting it; a single row may be larger."""


INTERNAL_ERROR = "internal-error"
"""Gate of a subject, of any family, whose evaluation failed."""
MAX_FAULTS, MAX_FAULT = 20, 4000
"""Faults reported per bucket and batch, and characters of each: one fault may affect all subjects."""


class RawRecord(NamedTuple):
    """One Kafka record as it reaches a bucket; its fields are those of `RAW_SCHEMA`."""

    source: str
    """Kafka topic."""
    key: bytes | None
    value: bytes | None
    """Only a piece of an oversized value."""
    size: int
    """Length of the whole value, bytes; -1 when there is none."""
    partition: int
    offset: int
    timestamp: int
    """Kafka's timestamp, milliseconds; 0 or less if there is none."""
    home: bool
    """True if this bucket counts the record; a message about every topic reaches all buckets."""


RAW_SCHEMA = pa.schema(
    [
        ("source", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("size", pa.int64()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.int64()),
        ("home", pa.bool_()),
    ]
)

SOURCE_ORDER = {"control-events": 0, "consumer-events": 1, "segment-stats": 2}
"""Order of sources within a batch: layouts first, as loads are evaluated against current ones."""


def source_rank(source: str) -> int:
    """Return the rank of a Kafka topic within a batch."""
    return SOURCE_ORDER.get(source, len(SOURCE_ORDER))


def arrival_key(record: RawRecord) -> tuple[int, str, int, int]:
    """Return the sort key of a record's arrival, the same in every replay."""
    return (source_rank(record.source), record.source, record.partition, record.offset)


def _columns_of(row: type[TableRow], *left_out: str) -> pa.Schema:
    """Return the columns of a table without some; instants are milliseconds."""
    return pa.schema(
        [
            (field.name, pa.int64() if pa.types.is_timestamp(field.type) else field.type)
            for field in arrow_schema(row)
            if field.name not in left_out
        ]
    )


LOAD_SCHEMA = _columns_of(SegmentLoadRow, "accepted_at", "batch_id", "day")
"""Accepted load records, the bulk of the output."""
HOLD_SCHEMA = _columns_of(HoldRow, "inputs", "gates", "batch_id", "day")
"""Changed holds, of a whole fleet at a tick when its loads move."""
EVENT_SCHEMA = _columns_of(EventRow, "batch_id", "day")
"""Accepted events, of a whole fleet when its layouts arrive."""
LAYOUT_SCHEMA = pa.schema([("subject", pa.string()), ("active", pa.int32())])
"""Layouts, in order of arrival, that are new or were known when the state was decoded.

For observers of the job. `active` is the number of active segments, null for a removed subject. After a start these
are a whole fleet's.
"""

LOAD, HOLDS, EVENTS, LAYOUTS = "load", "holds", "events", "layouts"
COLUMNS = {LOAD: LOAD_SCHEMA, HOLDS: HOLD_SCHEMA, EVENTS: EVENT_SCHEMA, LAYOUTS: LAYOUT_SCHEMA}
"""Kinds of columnar output and their schemas. `LAYOUTS` belongs to no table."""


@dataclass
class Counts:
    """Counters of one bucket in one batch; their sums over buckets make a row of `batches`."""

    messages: int = 0
    messages_accepted: int = 0
    messages_suppressed: int = 0
    dead_letters: int = 0
    samples: int = 0
    samples_accepted: int = 0
    samples_insignificant: int = 0
    samples_stale: int = 0
    samples_refused: int = 0
    events: int = 0
    decisions: int = 0
    holds: int = 0
    evaluations: int = 0
    operator_ms: float = 0.0
    layouts_unknown: int = 0


@dataclass
class Output:
    """Output of one bucket in one batch. Rows are columns by name; instants are milliseconds.

    If `give` is set, buffered rows above `MAX_CHUNK_BYTES` are emitted and removed; so add rows only through `add`,
    `add_columns` and `add_row`.
    """

    give: Callable[[dict[str, bytes]], None] | None = None
    decisions: list[dict[str, Any]] = field(default_factory=list)
    dead_letters: list[dict[str, Any]] = field(default_factory=list)
    due: list[tuple[str, int]] = field(default_factory=list)
    """Subjects that need an evaluation before the next tick, with its time."""
    faults: list[tuple[str, str, str]] = field(default_factory=list)
    """Failed evaluations: family, subject and traceback; at most `MAX_FAULTS`."""
    counts: Counts = field(default_factory=Counts)
    _columns: dict[str, list[pa.RecordBatch]] = field(default_factory=lambda: {kind: [] for kind in COLUMNS})
    _single: dict[str, list[tuple[Any, ...]]] = field(default_factory=lambda: {EVENTS: [], LAYOUTS: []})
    """Rows not yet in columns."""
    _gathered: int = 0
    """Buffered bytes, approximately."""

    def add(self, kind: str, row: dict[str, Any]) -> None:
        """Add a row of a kind in `RARE`."""
        getattr(self, kind).append(row)
        self._grow(sum(len(value) for value in row.values() if isinstance(value, str | bytes)))

    def add_fault(self, family: str, subject: str, fault: str) -> None:
        """Report a failed evaluation, for the log."""
        if len(self.faults) < MAX_FAULTS:
            self.faults.append((family, subject, fault[-MAX_FAULT:]))

    def add_columns(self, kind: str, rows: pa.RecordBatch) -> None:
        """Add rows of a kind in `COLUMNS`, in its schema."""
        if rows.num_rows:
            self._columns[kind].append(rows)
            self._grow(rows.nbytes)

    def add_row(self, kind: str, row: tuple[Any, ...], size: int) -> None:
        """Add a row of `EVENTS` or `LAYOUTS`, of about `size` bytes."""
        self._single[kind].append(row)
        self._grow(size)

    def columns(self, kind: str) -> pa.RecordBatch | None:
        """Return the buffered rows of a kind in `COLUMNS`."""
        if single := self._single.get(kind):
            cells = zip(zip(*single, strict=True), COLUMNS[kind], strict=True)
            arrays = [pa.array(column, field.type) for column, field in cells]
            self._columns[kind].append(pa.RecordBatch.from_arrays(arrays, schema=COLUMNS[kind]))
            single.clear()
        if not self._columns[kind]:
            return None
        if len(self._columns[kind]) == 1:
            return self._columns[kind][0]
        return pa.Table.from_batches(self._columns[kind], COLUMNS[kind]).combine_chunks().to_batches()[0]

    @property
    def loads(self) -> pa.RecordBatch | None:
        """Buffered accepted load records."""
        return self.columns(LOAD)

    @property
    def events(self) -> list[dict[str, Any]]:
        """Buffered accepted events, row by row, for inspecting one bucket."""
        rows = self.columns(EVENTS)
        return [] if rows is None else rows.to_pylist()

    @property
    def holds(self) -> list[dict[str, Any]]:
        """Buffered changed holds, row by row, for inspecting one bucket."""
        rows = self.columns(HOLDS)
        return [] if rows is None else rows.to_pylist()

    @property
    def layouts(self) -> list[dict[str, Any]]:
        """Buffered layouts, row by row, for inspecting one bucket."""
        rows = self.columns(LAYOUTS)
        return [] if rows is None else rows.to_pylist()

    def bodies(self) -> dict[str, bytes]:
        """Return the rows of `OUTPUT_DDL`: one body per kind with rows, and the counts."""
        bodies = {COUNTS: pydantic_core.to_json([asdict(self.counts)]), **self._rows()}
        if self.due:
            bodies[DUE] = pydantic_core.to_json(self.due)
        if self.faults:
            bodies[FAULTS] = pydantic_core.to_json(self.faults)
        return bodies

    def _rows(self) -> dict[str, bytes]:
        bodies = {}
        for kind in RARE:
            if rows := getattr(self, kind):
                bodies[kind] = pydantic_core.to_json(rows, bytes_mode="base64")
        for kind in COLUMNS:
            if (columns := self.columns(kind)) is not None:
                bodies[kind] = columns.serialize().to_pybytes()
        return bodies

    def _grow(self, by: int) -> None:
        self._gathered += by
        if self.give is not None and self._gathered > MAX_CHUNK_BYTES:
            self.give(self._rows())
            for rows in (*(getattr(self, kind) for kind in RARE), *self._columns.values()):
                rows.clear()
            self._gathered = 0


OUTPUT_DDL = "kind STRING, body BINARY, now BIGINT"
"""Schema of an output row: a chunk of one kind, JSON (`RARE`) or a record batch (`COLUMNS`)."""
COUNTS = "counts"
DUE = "due"
FAULTS = "faults"
RARE = ("decisions", "dead_letters")
"""Kinds that are rows of the table of the same name."""
