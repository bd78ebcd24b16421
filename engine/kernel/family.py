"""What a family brings to a bucket (design "Families"): a kind of decision over one kind of subject.

The kernel drives the families in a fixed order and never asks which one it has. Of a batch it asks each for: what it
reads off a parsed message, whether that is refused, to take it in, to take in samples in columns, to evaluate, and for
what of its stored parts has changed. `engine.families` names those that run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from engine.kernel.packed import Part, StoredPart
from engine.kernel.records import Output
from engine.kernel.settings import EngineSettings
from schemas.messages import Rejected, RejectReason
from schemas.plain_events import PlainEvent

Reading = Callable[[Any, int], Any]
"""From a parsed message and the batch's time to what the family takes in: the message, with what was derived from it.
Or to a `Rejected`. None: a plain announcement that the models have to look at."""


class RefusedPart(Protocol):
    """A part of a message that is not accepted, where the rest of it is: a dead letter of its own."""

    @property
    def index(self) -> int:
        """Which part of its message."""

    @property
    def reason(self) -> RejectReason:
        """As of a message."""

    @property
    def detail(self) -> str:
        """What was wrong, for a person."""

    @property
    def raw(self) -> bytes:
        """The part, cut where it is too long."""


class DecodedRows(Protocol):
    """What a family's short way has made of some rows."""

    @property
    def missing(self) -> Sequence[int]:
        """Rows of messages that are not plain, and have to be parsed."""

    def put(self, row: int, message: Any) -> Sequence[RefusedPart]:
        """Puts a message that was parsed among the others; answers what is refused of it."""


class Columns(Protocol):
    """A family's short way for the messages of one Kafka topic: they are decoded before the shuffle, into columns by
    bucket. What is not plain is parsed there too, and put among the others."""

    @property
    def kind(self) -> str:
        """Of the packed rows between the two stages."""

    @property
    def source(self) -> str:
        """Kafka topic."""

    @property
    def messages(self) -> tuple[type, ...]:
        """The models of its messages."""

    @property
    def schema(self) -> pa.Schema:
        """Of the packed rows."""

    def decode(self, keys: pa.BinaryArray, values: pa.BinaryArray, sizes: Any, now: Any) -> DecodedRows:
        """The plain messages of some rows, by their Kafka keys and values; `sizes` are the lengths of the whole values
        in bytes, `now` the later of Kafka's time and the batch's."""

    def deal(
        self, found: Any, homes: Any, buckets: int, partition: int, offsets: Any, timestamps: Any
    ) -> Iterator[tuple[int, pa.RecordBatch]]:  # fmt: skip
        """What was decoded of rows of one Kafka partition, in its order, as batches of `schema` by bucket; `homes` are
        the buckets of the rows' keys, `buckets` is how many there are."""

    def from_arrow(self, batches: Sequence[pa.RecordBatch]) -> Any:
        """All messages of some batches, in the order of partition and offset."""


class FamilyBatch(Protocol):
    """One batch of one bucket, in one family: the stages between parsing and storing."""

    def is_known(self, plain: PlainEvent) -> bool:
        """Whether an announcement only repeats what is known: then nothing of it is read, taken in or recorded."""

    def refuse(self, taken: Any) -> Rejected | None:
        """Why what was read off a message is not accepted as things stand; None: it is."""

    def is_news(self, taken: Any) -> bool:
        """Whether what was read off a message and is not refused can change anything; else it is suppressed."""

    def take(self, taken: Any) -> None:
        """Takes in what was read off a message."""

    def wake(self, subject: str) -> None:
        """A tick of its own has reached a subject."""

    def take_samples(self, samples: Any) -> None:
        """Takes in samples in columns, and counts their messages."""

    def evaluate(self, is_tick: bool) -> None:
        """Evaluates what is due, or at a tick every subject; says so in the output."""


class FamilyState(Protocol):
    """What a bucket knows of a family's subjects, decoded."""

    @property
    def parts(self) -> Mapping[str, Part]:
        """By the names and in the order of `Family.parts`."""

    def tell(self, output: Output) -> None:
        """Says what is known of its subjects: the state was decoded just now, by a worker that is new or another."""

    def begin(self, now: int, output: Output) -> FamilyBatch:
        """Begins a batch; `now` is its time in milliseconds."""


Open = Callable[[Mapping[str, StoredPart]], FamilyState]
"""From the stored parts of a bucket (none: a new bucket) to its state. Raises `StateError`."""


class Family(Protocol):
    """A kind of decision over one kind of subject. Without state; one object serves every bucket and process."""

    @property
    def name(self) -> str:
        """`family` of its rows."""

    @property
    def sources(self) -> Sequence[str]:
        """Kafka topics of its events, beside `control-events`, in which ticks and outcomes come for all families."""

    @property
    def parts(self) -> Sequence[str]:
        """Names of its stored parts; each is a state variable, and with `_log` behind it another."""

    @property
    def readings(self) -> Mapping[type, Reading]:
        """By the model of a message: what is read off it. Messages of other models do not reach the family."""

    @property
    def columns(self) -> Columns | None:
        """Its short way for samples, where it has one."""

    def opener(self, settings: EngineSettings) -> Open:
        """How buckets are opened under these settings."""


def part_names(families: Sequence[Family]) -> list[str]:
    """The stored parts of all families, in their order."""
    return [name for family in families for name in family.parts]
