"""Filtering: classify announcements and samples by what they change. Pure: the state is not modified.

Stage: the second of a record (parse, filter, store, count, record). Drops announcements that are late or repeat the
known state, and samples that are no significant change (PIP-483 "Significant-change threshold").
"""

from collections.abc import Iterator
from enum import Enum

import numpy as np
import numpy.typing as npt

from decisions.autoscale.clocks import NEVER, OpenDecision, are_stale_samples
from decisions.autoscale.significance import accept_causes
from engine.autoscale.incarnations import TopicIncarnation, life_of_consumers, life_of_deletion, life_of_layout
from engine.autoscale.loads import STALE, LoadTable, Origins
from engine.autoscale.parsing import ConsumerAnnouncement, NewLayout, TopicDeleted
from engine.autoscale.topics import BucketState
from schemas.kafka.messages import OutcomeEvent, PolicyEvent, Rejected, RejectReason

MAX_TOPICS_WITHOUT_LAYOUT = 10_000
"""Limit on topics that have consumers but no layout, because anybody could name ever more of them."""
MAX_SUBSCRIPTIONS = 10_000
"""Limit per topic. Subscriptions without consumers count until they are deleted."""
MAX_NAMESPACES = 10_000
"""Limit on namespaces with their own policy."""

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int8]


class News(Enum):
    """Effect of an announcement on the known state."""

    NOTHING = "it is late, of an earlier life of its topic, or older than what is known"
    ITS_SENDER = "it says what is known, and who says it now"
    ALL = "it is taken over"
    BEGINS = "it is taken over, and a life of its topic begins with it"


def refuse_consumers(state: BucketState, event: ConsumerAnnouncement, now: int) -> Rejected | None:
    """Return the refusal of a consumer event beyond the limits by topic and of unknown topics, or None."""
    if (topic := state.topics.get(event.topic)) is not None:
        if event.subscription in topic.consumers or len(topic.consumers) < MAX_SUBSCRIPTIONS:
            return None
        return Rejected(RejectReason.TOO_MANY, f"{event.topic} has {MAX_SUBSCRIPTIONS} subscriptions already")
    if (
        state.without_layout < MAX_TOPICS_WITHOUT_LAYOUT
        or life_of_consumers(state, event, now) is TopicIncarnation.EARLIER
    ):
        return None
    detail = f"no layout of {event.topic} has come, nor of {MAX_TOPICS_WITHOUT_LAYOUT} others of this bucket"
    return Rejected(RejectReason.UNKNOWN_TOPIC, detail)


def refuse_policy(state: BucketState, event: PolicyEvent) -> Rejected | None:
    """Return the refusal of an override beyond the limit on namespaces: every bucket holds all of them."""
    if event.name is None or event.policy is None or event.name in state.namespace_policies:
        return None
    if len(state.namespace_policies) < MAX_NAMESPACES:
        return None
    return Rejected(RejectReason.TOO_MANY, f"{MAX_NAMESPACES} namespaces have a policy already")


def news_of_layout(state: BucketState, new: NewLayout, now: int) -> News:
    """Classify a layout: nothing if its incarnation, epoch or sender is older than the known one."""
    event, topic = new.event, state.topics.get(new.event.topic)
    life = life_of_layout(state, new, now)
    newest = topic.layout_sender if topic else 0
    if life is TopicIncarnation.EARLIER or _is_late(state, event.sender, newest, event.topic, now):
        return News.NOTHING
    if topic is None or life is TopicIncarnation.LATER:
        return News.BEGINS
    if topic.known and topic.known.epoch > new.read.epoch:
        return News.NOTHING
    return News.ITS_SENDER if topic.known and topic.known.digest == new.read.digest else News.ALL


def news_of_deletion(state: BucketState, deletion: TopicDeleted, now: int) -> News:
    """Classify a deletion: of an earlier incarnation, or before a newer sender, it changes nothing."""
    topic = state.topics.get(deletion.event.topic)
    late = _is_late(state, deletion.event.sender, topic.layout_sender if topic else 0, deletion.event.topic, now)
    return News.NOTHING if late or life_of_deletion(state, deletion, now) is TopicIncarnation.EARLIER else News.ALL


def news_of_consumers(state: BucketState, event: ConsumerAnnouncement, now: int) -> News:
    """Classify a consumer count: nothing if its incarnation or its sender is older than the known one."""
    topic, life = state.topics.get(event.topic), life_of_consumers(state, event, now)
    newest = topic.consumers_sender if topic else 0
    if life is TopicIncarnation.EARLIER or _is_late(state, event.sender, newest, event.topic, now):
        return News.NOTHING
    if topic is None or life is TopicIncarnation.LATER:
        return News.BEGINS
    same = topic and topic.consumers.get(event.subscription) == (event.type, event.consumers)
    return News.ITS_SENDER if same and event.event != "deleted" else News.ALL


def news_of_policy(state: BucketState, event: PolicyEvent) -> News:
    """Classify a policy: nothing if its sender is older than the known one."""
    newest = state.policy_senders.get(event.name or "")
    is_late = newest is not None and event.sender is not None and event.sender < newest.sender
    return News.NOTHING if is_late else News.ALL


def decision_of(state: BucketState, event: OutcomeEvent) -> OpenDecision | None:
    """Return the open decision that an outcome belongs to, or None."""
    topic = state.topics.get(event.topic)
    opened = topic.all_open if topic else []
    return next((decision for decision in opened if decision.decision_id == event.decision_id), None)


def _is_late(state: BucketState, sender: int | None, newest: int, topic: str, now: int) -> bool:
    """Return whether a newer sender has announced the topic, or its end, since."""
    ended = state.end_of(topic, now)
    return sender is not None and sender < max(newest, ended.sender if ended else 0)


def significant_samples(
    loads: LoadTable,
    rows: Ints,
    rates: Floats,
    origins: Origins,
    since: Ints,
    now: int,
    change_threshold: float,
    crossing_thresholds: Floats,
) -> Codes:
    """Return a code for each of n samples: `STALE`, else as `accept_causes` (0: no significant change).

    No row may occur twice. `since` is when the current incarnation of each sample's topic began.
    `crossing_thresholds` (n x 12, or 1 x 12 for all; NaN where crossing does not count) are those of each sample's
    topic.
    """
    has_last = loads.modified_at[rows] != NEVER
    codes = accept_causes(loads.rates[rows], has_last, rates, change_threshold, crossing_thresholds)
    codes[_are_stale(loads, rows, origins, since, now)] = STALE
    return codes


def _are_stale(loads: LoadTable, rows: Ints, origins: Origins, since: Ints, now: int) -> npt.NDArray[np.bool_]:
    """Return which samples are repeated, late, or from an earlier incarnation of their topic."""
    claimed = loads.sampled_at[rows]
    late = are_stale_samples(
        origins.sampled_at,
        origins.kafka_at,
        now,
        origins.reporter == loads.reporter[rows],
        claimed,
        loads.seen_at[rows],
    )
    stale: npt.NDArray[np.bool_] = (late & (claimed != NEVER)) | (origins.at < since)
    return stale


def distinct_rounds(rows: Ints, most: int) -> Iterator[Ints | slice]:
    """Yield groups of positions in which no row (below `most`) occurs twice; rows keep their order."""
    if not len(rows):
        return
    indexes = np.arange(len(rows))
    last = np.empty(most, np.int64)
    last[rows] = indexes
    if (last[rows] == indexes).all():
        yield slice(None)
        return
    # Sorting plain integers, with the position in the low 32 bits, is ten times as fast as argsort.
    of_row = np.sort(rows << 32 | indexes)
    row, index = of_row >> 32, of_row & 0xFFFFFFFF
    first = np.zeros(len(row), np.int64)
    starts = np.flatnonzero(row[1:] != row[:-1]) + 1
    first[starts] = starts
    first = np.maximum.accumulate(first)
    # The n-th occurrence of every row goes into group n; the group number is in the high 32 bits.
    by_round = np.sort(indexes - first << 32 | index)
    number = by_round >> 32
    yield from np.split(by_round & 0xFFFFFFFF, np.flatnonzero(number[1:] != number[:-1]) + 1)
