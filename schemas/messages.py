"""The messages of the three Kafka topics, and the one way from bytes to a message (design "Kafka messages").

Stage: first in the stateful operator (`streaming`), and last before every producer (`controller`, `executor`, `lab`),
so that what is written and what is read obey one validator. A message that is refused carries a `RejectReason`; it
never raises.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args

from pydantic import FailFast, Field, TypeAdapter, ValidationError, WithJsonSchema, model_validator

from schemas.base import TOPIC_PATTERN, Count, Epoch, Millis, Name, Namespace, Rate, SegmentId, TopicName, Wire
from schemas.delivery import Delivery
from schemas.ids import EVERY_TOPIC, SEVERAL_TOPICS
from schemas.metadata import AutoScalePolicyOverride, Profile, ScalableTopicMetadata

VERSION = 1
MAX_VALUE_BYTES = 1_048_576
"""Values above this are refused unread: 1 MiB holds a sample of ten thousand segments."""
MAX_SEGMENTS_PER_SAMPLE = 65_536
MAX_SAMPLES_PER_MESSAGE = 10_000
"""Of a message in columns: 77 bytes a sample and `MAX_VALUE_BYTES` allow little more."""
MAX_LAYOUTS_PER_MESSAGE = 10_000
"""That are repeated by their digests."""
MAX_CLOCK_AHEAD_MS = 300_000
"""A sample that claims to be further ahead than this, of Kafka's clock and of the job's, is refused: its reporter's
clock is wrong."""

Sender = Annotated[int, Field(ge=0, le=2**53)]
"""Number of the process that announces; one that takes over has a higher number. A message with a lower number than
an earlier one about the same subject is late: its process was frozen while another took over. Absent: never late."""

SubscriptionType = Literal["STREAM", "CHECKPOINT", "QUEUE"]
ConsumerEventKind = Literal["registered", "unregistered", "snapshot", "deleted"]
LayoutCause = Literal["created", "split", "merge", "rebucket", "prune", "policy", "deleted", "snapshot"]
OutcomeStatus = Literal["applied", "superseded", "rejected", "failed", "observed"]
EXPIRED = "expired: "
"""Begins the error of an outcome `superseded` of a decision that nobody applied in time."""


TOPICS_FAMILY = "autoscale"
"""The family (`schemas.tables.Family`) of decisions on scalable topics; its messages do not name it."""


class SegmentSample(Wire):
    """The four rates of one segment, per second, rolling over 60 s (PIP-483 "SegmentLoadStats")."""

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


# Each entry is judged by itself (`schemas.columns`, `schemas.known_entries`), for a bad one must not take the others
# with it. The JSON Schema says what a good entry is.
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
    """Kafka topic `segment-stats`, the form for brokers and collectors: one reporter's samples of one instant, of many
    topics, in columns. `counts[i]` samples are of `topics[i]`; the other columns have one entry for each sample, in
    that order. The record's key is the reporter's name."""

    v: Literal[2]
    reporter: Name
    """Name of the broker or collector that measured."""
    sampled_at: Millis
    topics: _Topics
    """Each once."""
    counts: Annotated[list[Count], FailFast(), _Most]
    """How many samples each topic has."""
    ids: _Ids
    """Segment ids; each once in its topic."""
    msg_rate_in: _Rates
    bytes_rate_in: _Rates
    msg_rate_out: _Rates
    bytes_rate_out: _Rates

    @property
    def subject(self) -> str:
        """What the record's key has to be."""
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
    """Name of the consumer that came or went; absent for a snapshot or a deletion of the subscription."""
    consumers: Count
    at: Millis
    sender: Sender | None = None
    topic_created_at: Millis | None = None
    """When this life of the topic began, as in `LayoutEvent`."""


class LayoutEvent(Wire):
    """Kafka topic `control-events`: a topic's layout as it is after `cause`. `deleted` carries the last layout."""

    v: Literal[1]
    type: Literal["layout"]
    topic: TopicName
    cause: LayoutCause
    decision_id: str | None = Field(default=None, max_length=128)
    """The decision that led to the change, when one did."""
    layout: ScalableTopicMetadata
    at: Millis
    sender: Sender | None = None
    topic_created_at: Millis | None = None
    """When this life of the topic began: a topic that is deleted and created again has a strictly later one. Absent
    (Pulsar does not say it): lives cannot be told apart by it."""


class LayoutsKnown(Wire):
    """Kafka topic `control-events`: layouts that this sender has announced before, once more, by their digests. It
    tells nobody a layout: whoever knows another one waits for the next that is announced in full.

    The columns have an entry for each topic. The record's key is `+`."""

    v: Literal[2]
    type: Literal["layouts-known"]
    at: Millis
    sender: Sender | None = None
    topics: _KnownTopics
    epochs: _KnownEpochs
    """Of the layouts."""
    digests: _Digests
    """XXH3 of each layout's JSON as it was announced (`layout` of `LayoutEvent`), 128 bits in hex."""

    @property
    def subject(self) -> str:
        """What the record's key has to be."""
        return SEVERAL_TOPICS

    @model_validator(mode="after")
    def _columns_fit(self) -> LayoutsKnown:
        for name, column in (("epochs", self.epochs), ("digests", self.digests)):
            if len(column) != len(self.topics):
                raise ValueError(f"{name} has {len(column)} entries for {len(self.topics)} topics")
        return self


class PolicyEvent(Wire):
    """Kafka topic `control-events`: the override of the whole cluster or of a namespace; null removes it."""

    v: Literal[1]
    type: Literal["policy"]
    scope: Literal["cluster", "namespace"]
    name: Namespace | None = None
    """`tenant/namespace`; absent for the cluster."""
    policy: AutoScalePolicyOverride | None = None
    """The override from now on; null or absent removes it."""
    profile: Profile | None = None
    """Set by the job at its start: `policy` is what it is configured with, laid over the defaults of this profile. It
    holds where no cluster policy without a profile has come, or where that was removed again."""
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
    """Kafka topic `control-events`: how the application of a decision ended."""

    v: Literal[1]
    type: Literal["outcome"]
    decision_id: Annotated[str, Field(min_length=1, max_length=128)]
    family: Annotated[Name, Field(exclude_if=lambda family: family == TOPICS_FAMILY)] = TOPICS_FAMILY
    """Which family's decision it was; absent: of a scalable topic."""
    topic: Name
    """What was decided about: a scalable topic, or whatever another family decides about. It is the record's key."""
    status: OutcomeStatus
    error: Annotated[str, Field(max_length=8192)] | None = None
    at: Millis

    @model_validator(mode="after")
    def _a_topic_has_a_topics_name(self) -> OutcomeEvent:
        if self.family == TOPICS_FAMILY and not re.fullmatch(TOPIC_PATTERN, self.topic):
            raise ValueError("topic is not topic://tenant/namespace/name")
        return self


class DeliveryEvent(Delivery):
    """Kafka topic `control-events`: which segments of a topic are delivered slowly. Recorded for explanations; no
    decision looks at it."""

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
    """Why a message, or one entry of a message in columns, became a dead letter; closed, so that it can be alerted
    on."""

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
    """A message that was not accepted: the reason, and where and what was wrong, for a person."""

    reason: RejectReason
    detail: str


_MODELS: dict[str, tuple[type[Any], ...]] = {
    "segment-stats": get_args(get_args(SegmentStatsMessage)[0]),
    "consumer-events": (ConsumerEvent,),
    "control-events": get_args(get_args(ControlEvent)[0]),
}
"""The models of each Kafka topic; where there are several, `type` tells them apart, or `v` those of samples."""


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
    """Adds the messages of another family: models of a Kafka topic, each with a `type` of its own when there are
    several."""
    _MODELS[source] = (*_MODELS.get(source, ()), *models)
    _ADAPTERS[source] = _adapter(source)


def key_of(message: Any) -> str:
    """The Kafka key that a message must carry: its topic's name (or what else its `subject` is), or `*` when it
    concerns every one."""
    return getattr(message, "topic", None) or getattr(message, "subject", None) or EVERY_TOPIC


def parse_message(source: str, key: bytes | None, value: bytes | None, size: int | None = None) -> Message | Rejected:
    """The message in `value`, or why there is none. Total: raises for no input.

    `source` is the Kafka topic's logical name; `size` the length of the whole value in bytes when `value` was cut
    short on its way here. Unknown fields are ignored; of a repeated JSON key the last one counts.
    """
    if value is None:
        return Rejected(RejectReason.NO_VALUE, "the record has no value")
    if max(size or 0, len(value)) > MAX_VALUE_BYTES:
        return Rejected(RejectReason.TOO_LARGE, f"{max(size or 0, len(value))} bytes, at most {MAX_VALUE_BYTES}")
    try:
        message: Message = _ADAPTERS[source].validate_json(value, by_alias=True, by_name=False)
    except ValidationError as error:
        return _rejected(error, _tag(source))
    except RecursionError:
        return Rejected(RejectReason.NOT_JSON, "nested too deeply")
    expected = key_of(message)
    if key != expected.encode():
        shown = "no key" if key is None else repr(key[:200])
        return Rejected(RejectReason.WRONG_KEY, f"the record's key is {shown}, its body says {expected!r}")
    return message


_MAX_FAULTS = 1000
"""More than so many are counted and not listed: a list of a hundred thousand takes a second."""


def _rejected(error: ValidationError, tag: str) -> Rejected:
    if error.error_count() > _MAX_FAULTS:
        return Rejected(RejectReason.INVALID, f"{error.error_count()} faults")
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    # The loc of a fault in one of several models begins with the value of `tag`; a number says nothing to a person.
    where = ".".join(str(part) for part in first["loc"][1 if tag == "v" else 0 :])
    detail = f"{where}: {first['msg']}"[:500] if where else first["msg"][:500]
    if first["type"] == "json_invalid":
        return Rejected(RejectReason.NOT_JSON, detail)
    if first["type"] in ("union_tag_invalid", "union_tag_not_found"):
        reason = RejectReason.UNKNOWN_VERSION if tag == "v" else RejectReason.UNKNOWN_TYPE
        return Rejected(reason, detail)
    if first["loc"] and first["loc"][-1] == "v":
        return Rejected(RejectReason.UNKNOWN_VERSION, detail)
    return Rejected(RejectReason.INVALID, detail)
