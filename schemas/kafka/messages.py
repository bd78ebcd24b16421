"""The messages of the three Kafka topics, and their only parser (design "Kafka messages").

Stage: first in the stateful operator (`streaming`), and last before every producer (`controller`, `executor`,
`local`), so that one validator covers what is written and what is read. A refused message carries a `RejectReason`;
parsing never raises.

Longer than other modules because all messages share one parser.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Final, Literal, TypeAlias, Union, get_args

from pydantic import FailFast, Field, TypeAdapter, ValidationError, WithJsonSchema, model_validator

from schemas.base import TOPIC_PATTERN, Count, Epoch, Millis, Name, Namespace, Rate, SegmentId, TopicName, Wire
from schemas.ids import EVERY_TOPIC, SEVERAL_TOPICS
from schemas.kafka.delivery import Delivery
from schemas.metadata import AutoScalePolicyOverride, Profile, ScalableTopicMetadata

VERSION: Final = 1
MAX_VALUE_BYTES = 1_048_576
"""Larger values are refused unread: 1 MiB holds a sample of ten thousand segments."""
MAX_SEGMENTS_PER_SAMPLE = 65_536
MAX_SAMPLES_PER_MESSAGE = 10_000
"""Limit of a message in columns: 77 bytes per sample and `MAX_VALUE_BYTES` allow little more."""
MAX_LAYOUTS_PER_MESSAGE = 10_000
"""Limit on layouts repeated by digest."""
MAX_CLOCK_AHEAD_MS = 300_000
"""Limit on a sample's time ahead of Kafka's clock and the job's, beyond which its clock is wrong.

Such a sample is refused.
"""

Sender = Annotated[int, Field(ge=0, le=2**53)]
"""Number of the announcing process; a successor has a higher one.

A message with a lower number than an earlier one about the same subject is late: its process was frozen while
another took over. Absent: never late.
"""

SubscriptionType = Literal["STREAM", "CHECKPOINT", "QUEUE"]
ConsumerEventKind = Literal["registered", "unregistered", "snapshot", "deleted"]
LayoutCause = Literal["created", "split", "merge", "rebucket", "prune", "policy", "deleted", "snapshot"]
OutcomeStatus = Literal["applied", "superseded", "rejected", "failed", "observed"]
EXPIRED = "expired: "
"""Prefix of the error of an outcome `superseded` of a decision that was not applied in time."""


TOPICS_FAMILY = "autoscale"
"""The family (`schemas.tables.rows.Family`) of decisions on scalable topics, which messages omit."""


class SegmentSample(Wire):
    """Four rates of a segment, per second, rolling over 60 s (PIP-483 "SegmentLoadStats")."""

    id: SegmentId
    msg_rate_in: Rate
    bytes_rate_in: Rate
    msg_rate_out: Rate
    bytes_rate_out: Rate


class SegmentStats(Wire):
    """Kafka topic `segment-stats`: one reporter's sample of all segments of a topic that it owns."""

    v: Literal[1]
    topic: TopicName
    reporter: Name
    """Name of the broker or collector that measured."""
    sampled_at: Millis
    segments: Annotated[list[SegmentSample], FailFast(), Field(max_length=MAX_SEGMENTS_PER_SAMPLE)]

    @model_validator(mode="after")
    def _each_segment_once(self) -> SegmentStats:
        if len({segment.id for segment in self.segments}) != len(self.segments):
            raise ValueError("a segment id appears twice in one sample")
        return self


def _entries(item: Any, most: int = MAX_SAMPLES_PER_MESSAGE) -> dict[str, Any]:
    return {"type": "array", "maxItems": most, "items": TypeAdapter(item).json_schema()}


# Entries are validated one by one (`schemas.codecs.columns`, `schemas.codecs.known_entries`), so that a bad one does
# not reject the others. The JSON Schema describes a valid entry.
_Most = Field(max_length=MAX_SAMPLES_PER_MESSAGE)
_Topics: TypeAlias = Annotated[list[Any], _Most, WithJsonSchema(_entries(TopicName))]
_Ids: TypeAlias = Annotated[list[Any], _Most, WithJsonSchema(_entries(SegmentId))]
_Rates: TypeAlias = Annotated[list[Any], _Most, WithJsonSchema(_entries(Rate))]

DIGEST_PATTERN = "^[0-9a-f]{32}$"
_MostLayouts = Field(max_length=MAX_LAYOUTS_PER_MESSAGE)
_KnownTopics: TypeAlias = Annotated[
    list[Any], _MostLayouts, WithJsonSchema(_entries(TopicName, MAX_LAYOUTS_PER_MESSAGE))
]
_KnownEpochs: TypeAlias = Annotated[list[Any], _MostLayouts, WithJsonSchema(_entries(Epoch, MAX_LAYOUTS_PER_MESSAGE))]
_Digests: TypeAlias = Annotated[
    list[Any],
    _MostLayouts,
    WithJsonSchema(_entries(Annotated[str, Field(pattern=DIGEST_PATTERN)], MAX_LAYOUTS_PER_MESSAGE)),
]


class SegmentStatsColumns(Wire):
    """Kafka topic `segment-stats`: one reporter's samples of many topics at one instant, in columns.

    The form for brokers and collectors. `counts[i]` samples are of `topics[i]`; the other columns have one entry per
    sample, in that order. The record's key is the reporter's name.
    """

    v: Literal[2]
    reporter: Name
    """Name of the broker or collector that measured."""
    sampled_at: Millis
    topics: _Topics
    """Each topic once."""
    counts: Annotated[list[Count], FailFast(), _Most]
    """Number of samples of each topic."""
    ids: _Ids
    """Segment ids; each once in its topic."""
    msg_rate_in: _Rates
    bytes_rate_in: _Rates
    msg_rate_out: _Rates
    bytes_rate_out: _Rates

    @property
    def subject(self) -> str:
        """Required key of the record."""
        return self.reporter

    @property
    def rates(self) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
        """The four columns of rates, in the order of `SegmentSample`."""
        return self.msg_rate_in, self.bytes_rate_in, self.msg_rate_out, self.bytes_rate_out

    @model_validator(mode="after")
    def _columns_fit(self) -> SegmentStatsColumns:
        if len(self.counts) != len(self.topics):
            raise ValueError(f"{len(self.topics)} topics have {len(self.counts)} counts")
        if (total := sum(self.counts)) != len(self.ids):
            raise ValueError(f"the counts sum up to {total}, there are {len(self.ids)} ids")
        for name, column in zip(("msgRateIn", "bytesRateIn", "msgRateOut", "bytesRateOut"), self.rates, strict=True):
            if len(column) != total:
                raise ValueError(f"{name} has {len(column)} entries for {total} ids")
        return self


class ConsumerEvent(Wire):
    """Kafka topic `consumer-events`: a session came or went; `consumers` is the number *after* the event."""

    v: Literal[1]
    topic: TopicName
    subscription: Name
    type: SubscriptionType
    event: ConsumerEventKind
    consumer: Name | None = None
    """Name of that consumer; absent for a snapshot or a deletion of the subscription."""
    consumers: Count
    at: Millis
    sender: Sender | None = None
    topic_created_at: Millis | None = None
    """Start of the topic's incarnation, as in `LayoutEvent`."""


class LayoutEvent(Wire):
    """Kafka topic `control-events`: a topic's layout after `cause`. `deleted` carries the last layout."""

    v: Literal[1]
    type: Literal["layout"]
    topic: TopicName
    cause: LayoutCause
    decision_id: str | None = Field(default=None, max_length=128)
    """The decision that led to the change, if any."""
    layout: ScalableTopicMetadata
    at: Millis
    sender: Sender | None = None
    topic_created_at: Millis | None = None
    """Creation time of the topic's incarnation: a recreated topic has a strictly later one.

    Absent, as in Pulsar's own announcements: incarnations cannot be distinguished by it.
    """


class LayoutsKnown(Wire):
    """Kafka topic `control-events`: layouts that this sender has announced before, repeated by digest.

    It never changes a layout: a listener with another one waits for the next full announcement. The columns have one
    entry per topic. The record's key is `+`.
    """

    v: Literal[2]
    type: Literal["layouts-known"]
    at: Millis
    sender: Sender | None = None
    topics: _KnownTopics
    epochs: _KnownEpochs
    """Epochs of the layouts."""
    digests: _Digests
    """XXH3 of each layout's JSON as announced (`layout` of `LayoutEvent`), 128 bits in hex."""

    @property
    def subject(self) -> str:
        """Required key of the record."""
        return SEVERAL_TOPICS

    @model_validator(mode="after")
    def _columns_fit(self) -> LayoutsKnown:
        for name, column in (("epochs", self.epochs), ("digests", self.digests)):
            if len(column) != len(self.topics):
                raise ValueError(f"{name} has {len(column)} entries for {len(self.topics)} topics")
        return self


class PolicyEvent(Wire):
    """Kafka topic `control-events`: the override of the whole cluster or of a namespace."""

    v: Literal[1]
    type: Literal["policy"]
    scope: Literal["cluster", "namespace"]
    name: Namespace | None = None
    """`tenant/namespace`; absent for the cluster."""
    policy: AutoScalePolicyOverride | None = None
    """The override from now on; null or absent removes it."""
    profile: Profile | None = None
    """Set by the job at its start: `policy` is then its configuration, on the defaults of this profile.

    It applies while there is no cluster policy without a profile.
    """
    at: Millis
    sender: Sender | None = None

    @model_validator(mode="after")
    def _names_fit_the_scope(self) -> PolicyEvent:
        if (self.scope == "namespace") != (self.name is not None):
            raise ValueError("a namespace policy needs a name, a cluster policy has none")
        if self.scope == "namespace" and self.profile is not None:
            raise ValueError("only a cluster policy has a profile")
        return self


class TickEvent(Wire):
    """Kafka topic `control-events`: evaluate every topic (key `*`), or one (`topic`), at or after `at`."""

    v: Literal[1]
    type: Literal["tick"]
    topic: TopicName | None = None
    at: Millis


class OutcomeEvent(Wire):
    """Kafka topic `control-events`: the result of applying a decision."""

    v: Literal[1]
    type: Literal["outcome"]
    decision_id: Annotated[str, Field(min_length=1, max_length=128)]
    family: Annotated[Name, Field(exclude_if=lambda family: family == TOPICS_FAMILY)] = TOPICS_FAMILY
    """Family of the decision; absent: a scalable topic's."""
    topic: Name
    """Subject of the decision: a scalable topic, or a subject of another family. The record's key."""
    status: OutcomeStatus
    error: Annotated[str, Field(max_length=8192)] | None = None
    at: Millis
    absent: Annotated[bool, Field(exclude_if=lambda absent: not absent)] = False
    """True: superseded because the cluster does not know the subject. The job backs off as after a failure."""

    @model_validator(mode="after")
    def _a_topic_has_a_topics_name(self) -> OutcomeEvent:
        if self.family == TOPICS_FAMILY and not re.fullmatch(TOPIC_PATTERN, self.topic):
            raise ValueError("topic is not topic://tenant/namespace/name")
        return self


class DeliveryEvent(Delivery):
    """Kafka topic `control-events`: the segments of a topic with slow delivery.

    Recorded for explanations; no decision uses it.
    """

    v: Literal[1]
    type: Literal["delivery"]
    topic: TopicName
    sender: Sender | None = None


SegmentStatsMessage: TypeAlias = Annotated[SegmentStats | SegmentStatsColumns, Field(discriminator="v")]
ControlEvent: TypeAlias = Annotated[
    LayoutEvent | LayoutsKnown | PolicyEvent | TickEvent | OutcomeEvent | DeliveryEvent, Field(discriminator="type")
]
Message: TypeAlias = (
    SegmentStats
    | SegmentStatsColumns
    | ConsumerEvent
    | LayoutEvent
    | LayoutsKnown
    | PolicyEvent
    | TickEvent
    | OutcomeEvent
    | DeliveryEvent
)
Source = Literal["segment-stats", "consumer-events", "control-events"]


class RejectReason(str, Enum):
    """Reason for a dead letter, of a message or an entry in columns; a closed set, for alerts."""

    NO_VALUE = "no-value"
    TOO_LARGE = "too-large"
    NOT_JSON = "not-json"
    UNKNOWN_VERSION = "unknown-version"
    UNKNOWN_TYPE = "unknown-type"
    INVALID = "invalid"
    WRONG_KEY = "wrong-key"
    FROM_THE_FUTURE = "from-the-future"
    BAD_LAYOUT = "bad-layout"
    UNKNOWN_TOPIC = "unknown-topic"
    TOO_MANY = "too-many"


@dataclass(frozen=True)
class Rejected:
    """A refused message: the reason, and its location and fault for a person."""

    reason: RejectReason
    detail: str


_MODELS: dict[str, tuple[type[Any], ...]] = {
    "segment-stats": get_args(get_args(SegmentStatsMessage)[0]),
    "consumer-events": (ConsumerEvent,),
    "control-events": get_args(get_args(ControlEvent)[0]),
}
"""Models of each Kafka topic, distinguished by `type`, or by `v` for samples."""


def _tag(source: str) -> str:
    return "v" if source == "segment-stats" else "type"


def _adapter(source: str) -> TypeAdapter[Any]:
    models = _MODELS[source]
    if len(models) == 1:
        return TypeAdapter(models[0])
    several: Any = Annotated[Union[models], Field(discriminator=_tag(source))]  # noqa: UP007
    return TypeAdapter(several)


_ADAPTERS = {source: _adapter(source) for source in _MODELS}


def register_messages(source: str, *models: type[Wire]) -> None:
    """Register messages of another family: models of a Kafka topic, each with its own `type`."""
    _MODELS[source] = (*_MODELS.get(source, ()), *models)
    _ADAPTERS[source] = _adapter(source)


def key_of(message: Any) -> str:
    """Return the required Kafka key of a message: its topic, its `subject`, or `*` for every topic."""
    return getattr(message, "topic", None) or getattr(message, "subject", None) or EVERY_TOPIC


def parse_message(source: str, key: bytes | None, value: bytes | None, size: int | None = None) -> Message | Rejected:
    """Parse a message, or return the reason for refusing it. Total: never raises.

    `source` is the Kafka topic's logical name; `size` the length of the whole value in bytes when `value` was
    truncated. Unknown fields are ignored; of a repeated JSON key the last one counts.
    """
    if value is None:
        return Rejected(RejectReason.NO_VALUE, "the record has no value")
    if max(size or 0, len(value)) > MAX_VALUE_BYTES:
        return Rejected(RejectReason.TOO_LARGE, f"{max(size or 0, len(value))} bytes, at most {MAX_VALUE_BYTES}")
    try:
        message: Message = _ADAPTERS[source].validate_json(value, by_alias=True, by_name=False)
    except ValidationError as error:
        return _reject_error(error, _tag(source))
    except RecursionError:
        return Rejected(RejectReason.NOT_JSON, "nested too deeply")
    expected = key_of(message)
    if key != expected.encode():
        shown = "no key" if key is None else repr(key[:200])
        return Rejected(RejectReason.WRONG_KEY, f"the record's key is {shown}, its body says {expected!r}")
    return message


_MAX_FAULTS = 1000
"""Number of faults above which they are only counted: listing a hundred thousand takes a second."""


def _reject_error(error: ValidationError, tag: str) -> Rejected:
    if error.error_count() > _MAX_FAULTS:
        return Rejected(RejectReason.INVALID, f"{error.error_count()} faults")
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    # The location of a fault in one of several models begins with the value of `tag`; a number means nothing to a
    # person.
    where = ".".join(str(part) for part in first["loc"][1 if tag == "v" else 0 :])
    detail = f"{where}: {first['msg']}"[:500] if where else first["msg"][:500]
    if first["type"] == "json_invalid":
        return Rejected(RejectReason.NOT_JSON, detail)
    if first["type"] in ("union_tag_invalid", "union_tag_not_found"):
        return Rejected(RejectReason.UNKNOWN_VERSION if tag == "v" else RejectReason.UNKNOWN_TYPE, detail)
    if first["loc"] and first["loc"][-1] == "v":
        return Rejected(RejectReason.UNKNOWN_VERSION, detail)
    return Rejected(RejectReason.INVALID, detail)
