"""Takes a bucket's raw records in: parses each, keeps what is true, and sorts out what is not.

Stage: inside the stateful operator, before the evaluation. Events change `BucketState`, samples go through the
significant-change filter of `LoadTable`; every record ends in exactly one of: accepted, suppressed, dead letter.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from decisions.layout import LayoutError, SegmentLayout
from schemas.ids import EVERY_TOPIC
from schemas.messages import (
    MAX_CLOCK_AHEAD_MS,
    ConsumerEvent,
    LayoutEvent,
    Message,
    OutcomeEvent,
    PolicyEvent,
    Rejected,
    RejectReason,
    SegmentSample,
    SegmentStats,
    TickEvent,
    parse_message,
)
from streaming.loads import STALE, LoadTable, Samples
from streaming.policies import Policies
from streaming.records import Output, RawRecord, arrival
from streaming.state import BucketState, TopicState

_CAUSES = {1: "first", 2: "changed", 3: "crossed"}
_KEY_SHOWN = 4096
_RAW_SHOWN = 65_536


class Intake:
    """One batch's intake into one bucket."""

    def __init__(self, state: BucketState, loads: LoadTable, policies: Policies, now: int, output: Output) -> None:
        self._state, self._loads, self._policies, self._now, self._output = state, loads, policies, now, output
        self.due_by_consumer: set[str] = set()
        """Topics whose consumers, layout or open decision changed."""
        self.due_by_tick: set[str] = set()
        """Topics that a tick of their own has reached."""
        self.tick: bool = False
        """Whether a tick for every topic has come."""

    def take(self, records: Sequence[RawRecord], change_threshold: float) -> None:
        """Takes the records in, in the order of `arrival`. Raises for no content of a record."""
        stats: list[tuple[RawRecord, SegmentStats]] = []
        for record in sorted(records, key=arrival):
            message = self._parse(record)
            if isinstance(message, SegmentStats):
                stats.append((record, message))
            elif not isinstance(message, Rejected):
                self._apply(message)
                if record.home:
                    self._output.counts.messages_accepted += 1
                    self._record_event(record, message)
            elif record.home:
                self._record_dead_letter(record, message)
            self._output.counts.messages += record.home
        if stats:
            self._filter(stats, change_threshold)

    def _parse(self, record: RawRecord) -> Message | Rejected:
        message = parse_message(record.source, record.key, record.value, record.size)  # type: ignore[arg-type]
        if isinstance(message, SegmentStats) and message.sampled_at > self._now + MAX_CLOCK_AHEAD_MS:
            ahead = (message.sampled_at - self._now) // 1000
            return Rejected(RejectReason.FROM_THE_FUTURE, f"sampledAt is {ahead} s ahead of this job's clock")
        if isinstance(message, LayoutEvent) and message.cause != "deleted":
            try:
                SegmentLayout.from_metadata(message.layout)
            except LayoutError as error:
                return Rejected(RejectReason.BAD_LAYOUT, str(error)[:500])
        return message

    def _apply(self, message: Message) -> None:
        if isinstance(message, LayoutEvent):
            self._apply_layout(message)
        elif isinstance(message, ConsumerEvent):
            self._apply_consumers(message)
        elif isinstance(message, PolicyEvent):
            self._apply_policy(message)
        elif isinstance(message, OutcomeEvent):
            self._apply_outcome(message)
        elif isinstance(message, TickEvent):
            if message.topic is None:
                self.tick = True
            elif message.topic in self._state.topics:
                self.due_by_tick.add(message.topic)

    def _apply_layout(self, event: LayoutEvent) -> None:
        name = event.topic
        if event.cause == "deleted":
            self._state.remove(name)
            self._loads.keep_segments(name, ())
            return
        known = self._state.topics.get(name)
        if known and known.metadata and known.metadata.epoch > event.layout.epoch:
            return
        layout = SegmentLayout.from_metadata(event.layout)
        if known and known.metadata == event.layout:
            return
        topic = self._state.touch(name)
        override_before = topic.override
        _follow_lineage(topic, layout, self._now)
        topic.set_metadata(event.layout, layout)
        self._loads.keep_segments(
            name, [i for i in self._loads.segments_of(name) if i in topic.active_ids or i >= layout.next_segment_id]
        )
        if override_before != topic.override:
            self._loads.judge_coldness_again(name, self._policies.of(self._state, topic).merge_thresholds)
        if topic.flight and topic.flight.applied and layout.epoch > topic.flight.epoch:
            topic.flight = None
        self.due_by_consumer.add(name)

    def _apply_consumers(self, event: ConsumerEvent) -> None:
        known = self._state.topics.get(event.topic)
        entry = (event.type, event.consumers)
        if known and known.consumers.get(event.subscription) == entry and event.event != "deleted":
            return
        if event.event == "deleted":
            if known and event.subscription in known.consumers:
                del self._state.touch(event.topic).consumers[event.subscription]
        else:
            self._state.touch(event.topic).consumers[event.subscription] = entry
        self.due_by_consumer.add(event.topic)

    def _apply_policy(self, event: PolicyEvent) -> None:
        text = event.policy.to_json() if event.policy else None
        if event.scope == "cluster":
            changed, self._state.cluster_policy = self._state.cluster_policy != text, text
        else:
            policies = self._state.namespace_policies
            name = str(event.name)
            changed = policies.get(name) != text
            policies.pop(name, None)
            if text is not None:
                policies[name] = text
        if not changed:
            return
        self._state.header_changed = True
        for topic in self._state.topics.values():
            if event.scope == "cluster" or topic.name.startswith(f"topic://{event.name}/"):
                self._loads.judge_coldness_again(topic.name, self._policies.of(self._state, topic).merge_thresholds)

    def _apply_outcome(self, event: OutcomeEvent) -> None:
        known = self._state.topics.get(event.topic)
        if known is None or known.flight is None or known.flight.decision_id != event.decision_id:
            return
        topic = self._state.touch(event.topic)
        flight = known.flight
        if event.status == "applied":
            topic.failures, topic.failed_at, topic.failed_action = 0, None, None
            if topic.layout and topic.layout.epoch > flight.epoch:
                topic.flight = None
            else:
                flight.applied = True
        else:
            topic.flight = None
            topic.failures += 1
            topic.failed_at = self._now
            topic.failed_action = flight.action
        self.due_by_consumer.add(event.topic)

    def _filter(self, stats: list[tuple[RawRecord, SegmentStats]], change_threshold: float) -> None:
        samples, gone = Samples(), [0] * len(stats)
        kept: list[int] = []
        thresholds, merge_thresholds = [], []
        for number, (_, message) in enumerate(stats):
            topic = self._state.topics.get(message.topic)
            policy = self._policies.of(self._state, topic or TopicState(message.topic))
            segments = message.segments
            if topic and topic.layout:
                segments = _not_sealed(topic, topic.layout, segments)
                gone[number] = len(message.segments) - len(segments)
            samples.add(message.topic, segments, message.sampled_at)
            kept.append(len(segments))
            thresholds.append(policy.crossing_thresholds)
            merge_thresholds.append(policy.merge_thresholds)
        owners = np.repeat(np.arange(len(stats)), kept)
        codes = self._loads.absorb(
            samples, self._now, change_threshold, np.array(thresholds)[owners], np.array(merge_thresholds)[owners]
        )
        self._count(stats, owners, codes, gone)
        for position in np.flatnonzero(codes > 0).tolist():
            record, message = stats[owners[position]]
            self._record_load(record, message, samples, position, _CAUSES[int(codes[position])])

    def _count(
        self, stats: list[tuple[RawRecord, SegmentStats]], owners: np.ndarray, codes: np.ndarray, gone: list[int]
    ) -> None:
        counts = self._output.counts
        accepted_by = np.bincount(owners[codes > 0], minlength=len(stats)) if len(owners) else np.zeros(len(stats))
        counts.messages_accepted += int((accepted_by > 0).sum())
        counts.messages_suppressed += int((accepted_by == 0).sum())
        counts.samples += len(codes) + sum(gone)
        counts.samples_accepted += int((codes > 0).sum())
        counts.samples_stale += int((codes == STALE).sum()) + sum(gone)
        counts.samples_insignificant += int((codes == 0).sum())

    def _record_load(
        self, record: RawRecord, message: SegmentStats, samples: Samples, position: int, cause: str
    ) -> None:
        loads, rates = self._output.loads, samples.rates[position]
        loads.topic.append(message.topic)
        loads.segment_id.append(samples.segments[position])
        loads.msg_rate_in.append(rates[0])
        loads.bytes_rate_in.append(rates[1])
        loads.msg_rate_out.append(rates[2])
        loads.bytes_rate_out.append(rates[3])
        loads.reporter.append(message.reporter)
        loads.sampled_at.append(message.sampled_at)
        loads.cause.append(cause)
        loads.kafka_partition.append(record.partition)
        loads.kafka_offset.append(record.offset)

    def _record_event(self, record: RawRecord, message: Message) -> None:
        self._output.counts.events += 1
        kind = "consumer" if isinstance(message, ConsumerEvent) else message.type  # type: ignore[union-attr]
        cause = getattr(message, "cause", None) or getattr(message, "event", None) or getattr(message, "status", None)
        self._output.events.append({
            "subject": getattr(message, "topic", None) or EVERY_TOPIC,
            "type": kind,
            "cause": cause,
            "body": (record.value or b"").decode(),
            "at": message.at,  # type: ignore[union-attr]
            "kafka_topic": record.source,
            "kafka_partition": record.partition,
            "kafka_offset": record.offset,
            "kafka_timestamp": record.timestamp,
            "accepted_at": self._now,
        })  # fmt: skip

    def _record_dead_letter(self, record: RawRecord, rejected: Rejected) -> None:
        self._output.counts.dead_letters += 1
        self._output.dead_letters.append({
            "reason": rejected.reason.value,
            "detail": rejected.detail,
            "key": None if record.key is None else record.key[:_KEY_SHOWN],
            "raw": None if record.value is None else record.value[:_RAW_SHOWN],
            "raw_size": record.size,
            "kafka_topic": record.source,
            "kafka_partition": record.partition,
            "kafka_offset": record.offset,
            "kafka_timestamp": record.timestamp,
            "rejected_at": self._now,
        })  # fmt: skip


def _not_sealed(topic: TopicState, layout: SegmentLayout, segments: list[SegmentSample]) -> list[SegmentSample]:
    """The samples of segments that are active, or newer than the layout that is known."""
    if topic.active_ids.issuperset([segment.id for segment in segments]):
        return segments
    return [s for s in segments if s.id in topic.active_ids or s.id >= layout.next_segment_id]


def _follow_lineage(topic: TopicState, layout: SegmentLayout, now: int) -> None:
    """Keeps clocks and merge depths explicitly, from what was committed: the segments that are new in this layout.

    One parent is a split, two or more are a merge (facts of Pulsar, 1.5); a clock never goes back, and never lies in
    this job's future.
    """
    before = topic.layout.segments if topic.layout else {}
    depths = {i: depth for i, depth in topic.merge_depths.items() if i in layout.segments}
    for segment in sorted(layout.segments.values(), key=lambda segment: segment.segment_id):
        if segment.segment_id in before:
            continue
        at = min(segment.created_at_ms, now)
        if len(segment.parent_ids) == 1:
            topic.last_split_at = max(topic.last_split_at or at, at)
        elif len(segment.parent_ids) > 1:
            topic.last_merge_at = max(topic.last_merge_at or at, at)
        kept = [topic.merge_depths.get(parent, depths.get(parent, 0)) for parent in segment.parent_ids]
        own = max(kept, default=0) + (len(segment.parent_ids) > 1)
        depths[segment.segment_id] = max(own, layout.merge_depth(segment.segment_id))
    topic.merge_depths = depths
