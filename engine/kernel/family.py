"""Interface of a family (design "Families"): a kind of decision over one kind of subject.

The kernel drives families in a fixed order without knowing which is which. For each batch it asks a family to read
parsed messages, refuse or ingest them, ingest columnar samples, evaluate, and report changed stored parts.
`engine.families` lists those that run.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from engine.kernel.packed import Part, StoredPart
from engine.kernel.records import Output
from engine.kernel.settings import EngineSettings
from schemas.codecs.plain_events import PlainEvent
from schemas.kafka.messages import Rejected, RejectReason

Reading = Callable[[Any, int], Any]
"""Derive the form that a family ingests from a parsed message and the batch's time.

Returns a `Rejected` if the message is invalid, or None if a plain announcement needs the models.
"""


def read_unchanged(message: Any, now: int) -> Any:
    """Return the message: the `Reading` of one that needs nothing else."""
    return message


class RefusedPart(Protocol):
    """Refused part of an otherwise accepted message, with a dead letter of its own."""

    @property
    def index(self) -> int:
        """Index of the part in its message."""

    @property
    def reason(self) -> RejectReason:
        """Reason, as for a message."""

    @property
    def detail(self) -> str:
        """Explanation for a person."""

    @property
    def raw(self) -> bytes:
        """The part, truncated if too long."""


class DecodedRows(Protocol):
    """Rows decoded by a family's columnar path."""

    @property
    def missing(self) -> Sequence[int]:
        """Rows of messages that are not plain and need parsing."""

    def put(self, row: int, message: Any) -> Sequence[RefusedPart]:
        """Add a parsed message; return the parts of it that are refused."""


class Columns(Protocol):
    """Columnar path of a family for the messages of one Kafka topic.

    Messages are decoded before the shuffle into columns by bucket. Those that are not plain are parsed there too.
    """

    @property
    def kind(self) -> str:
        """Kind of the packed rows between the two stages."""

    @property
    def source(self) -> str:
        """Kafka topic."""

    @property
    def messages(self) -> tuple[type, ...]:
        """The models of its messages."""

    @property
    def schema(self) -> pa.Schema:
        """Schema of the packed rows."""

    def decode(self, keys: pa.BinaryArray, values: pa.BinaryArray, sizes: Any, now: Any) -> DecodedRows:
        """Decode the plain messages of some rows.

        `sizes` are the lengths of the whole values in bytes, `now` the later of Kafka's time and the batch's.
        """

    def deal(
        self, decoded: Any, homes: Any, buckets: int, partition: int, offsets: Any, timestamps: Any
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the decoded messages of one Kafka partition as batches of `schema` by bucket, in order.

        `homes` are the buckets of the rows' keys, `buckets` is the number of buckets.
        """

    def from_arrow(self, batches: Sequence[pa.RecordBatch]) -> Any:
        """Read all messages of some batches, in the order of partition and offset."""


class FamilyBatch(Protocol):
    """One batch of one bucket in one family: the stages between parsing and recording."""

    def is_known(self, plain: PlainEvent) -> bool:
        """Return whether an announcement repeats the known state; it is then neither read nor recorded."""

    def refuse(self, message: Any) -> Rejected | None:
        """Return the reason to refuse a message, or None."""

    def is_news(self, message: Any) -> bool:
        """Return whether a message can change anything; otherwise it is suppressed."""

    def take(self, message: Any) -> None:
        """Ingest a message."""

    def wake(self, subject: str) -> None:
        """Handle a subject's own tick."""

    def take_samples(self, samples: Any) -> None:
        """Ingest columnar samples and count their messages."""

    def evaluate(self, is_tick: bool) -> None:
        """Evaluate what is due, or at a tick every subject; emit the results."""


class FamilyState(Protocol):
    """Decoded state of a family in one bucket."""

    @property
    def parts(self) -> Mapping[str, Part]:
        """Parts by the names and in the order of `Family.parts`."""

    def tell(self, output: Output) -> None:
        """Emit the known subjects after the state was decoded by another or a new worker."""

    def begin(self, now: int, output: Output) -> FamilyBatch:
        """Begin a batch at `now`, milliseconds."""


Open = Callable[[Mapping[str, StoredPart]], FamilyState]
"""Open a bucket from its stored parts (none: a new bucket). Raises `StateError`."""


class Family(Protocol):
    """A kind of decision over one kind of subject. Stateless; one object serves every bucket and process."""

    @property
    def name(self) -> str:
        """Value of `family` in its rows."""

    @property
    def sources(self) -> Sequence[str]:
        """Kafka topics of its events, besides `control-events`, which has ticks and outcomes for all families."""

    @property
    def parts(self) -> Sequence[str]:
        """Names of its stored parts; each is a state variable, with a second one suffixed `_log`."""

    @property
    def readings(self) -> Mapping[type, Reading]:
        """Reader by message model. Messages of other models do not reach the family."""

    @property
    def columns(self) -> Columns | None:
        """Its columnar path for samples, or None."""

    def opener(self, settings: EngineSettings) -> Open:
        """Return the function that opens buckets under these settings."""


def part_names(families: Sequence[Family]) -> list[str]:
    """Return the stored parts of all families, in order."""
    return [name for family in families for name in family.parts]
