"""Takes a bucket's records in: parses what was not parsed yet, keeps what is true, and sorts out what is not.

Stage: inside the stateful operator, before the evaluation. Events change `BucketState`, samples go through the
significant-change filter of `LoadTable`; every record ends in exactly one of: accepted, suppressed, dead letter.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from decisions.autoscale.significance import CAUSES
from decisions.topic.layout import LayoutError, SegmentLayout
from engine.autoscale.loads import STALE, LoadTable
from engine.autoscale.policies import EffectivePolicy, Policies
from engine.autoscale.routes import Routes
from engine.autoscale.samples import Samples, to_arrow
from engine.autoscale.state import BucketState
from engine.records import LOAD_SCHEMA, Output, RawRecord, arrival
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
    SegmentStats,
    TickEvent,
    parse_message,
)

_KEY_SHOWN = 4096
_RAW_SHOWN = 65_536
MOST_TOPICS_WITHOUT_LAYOUT = 10_000
"""Topics whose consumers a bucket knows before their layouts: anybody could name ever more of them."""


class Intake:
    """One batch's intake into one bucket."""

    def __init__(
        self, state: BucketState, loads: LoadTable, policies: Policies, routes: Routes, now: int, output: Output
    ) -> None:
        self._state, self._loads, self._policies, self._routes = state, loads, policies, routes
        self._now, self._output = now, output
        self.due_by_consumer: set[str] = set()
        """Topics whose consumers, layout or open decision changed."""
        self.due_by_tick: set[str] = set()
        """Topics that a tick of their own has reached."""
        self.tick: bool = False
        """Whether a tick for every topic has come."""
        self.new_policies: bool = False
        """Whether a policy of more than one topic changed."""
        self._without_layout: int | None = None
        """Topics that have consumers and no layout; None: to be counted."""

    def take(self, records: Sequence[RawRecord], samples: Samples | None, change_threshold: float) -> None:
        """Takes the records in, in the order of `arrival`, then the samples. Raises for no content of a record."""
        late: list[tuple[RawRecord, SegmentStats]] = []
        for record in sorted(records, key=arrival):
            message = self._parse(record)
            if isinstance(message, SegmentStats):
                late.append((record, message))
            elif not isinstance(message, Rejected):
                self._apply(message)
                if record.home:
                    self._output.counts.messages_accepted += 1
                    self._record_event(record, message)
            elif record.home:
                self._record_dead_letter(record, message)
            self._output.counts.messages += record.home
        if late:
            samples = _with(samples, late)
        if samples is not None:
            self._output.counts.messages += len(samples) - len(late)
            self._filter(samples, change_threshold)

    def _parse(self, record: RawRecord) -> Message | Rejected:
        message = parse_message(record.source, record.key, record.value, record.size)  # type: ignore[arg-type]
        if isinstance(message, SegmentStats) and message.sampled_at > self._now + MAX_CLOCK_AHEAD_MS:
            ahead = (message.sampled_at - self._now) // 1000
            return Rejected(RejectReason.FROM_THE_FUTURE, f"sampledAt is {ahead} s ahead of this job's clock")
        if isinstance(message, LayoutEvent) and message.cause != "deleted":
            try:
                self._layout = SegmentLayout.from_metadata(message.layout)
            except LayoutError as error:
                return Rejected(RejectReason.BAD_LAYOUT, str(error)[:500])
        if isinstance(message, ConsumerEvent) and not self._has_room_for(message.topic):
            told = f"no layout of {message.topic} has come, nor of {MOST_TOPICS_WITHOUT_LAYOUT} others of this bucket"
            return Rejected(RejectReason.UNKNOWN_TOPIC, told)
        return message

    def _has_room_for(self, topic: str) -> bool:
        topics = self._state.topics
        if topic in topics:
            return True
        if self._without_layout is None:
            self._without_layout = sum(known.metadata_json is None for known in topics.values())
        return self._without_layout < MOST_TOPICS_WITHOUT_LAYOUT

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
        self._without_layout = None
        known = self._state.topics.get(name)
        if self._is_late(event.sender, known.layout_sender if known else 0, name):
            return
        if event.cause == "deleted":
            self._state.remove(name, event.sender)
            self._keep_segments(name, ())
            return
        if known and known.layout and known.layout.epoch > event.layout.epoch:
            return
        metadata_json = event.layout.to_json()
        if known and known.metadata_json == metadata_json:
            if (event.sender or 0) > known.layout_sender:
                self._state.touch(name).layout_sender = event.sender or 0
            return
        layout = self._layout
        topic = self._state.touch(name)
        override_before = topic.override
        topic.follow_lineage(layout, self._now)
        topic.set_layout(metadata_json, layout)
        topic.layout_sender = event.sender or topic.layout_sender
        self._keep_segments(
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
        if self._is_late(event.sender, known.consumers_sender if known else 0, event.topic):
            return
        if known and known.consumers.get(event.subscription) == entry and event.event != "deleted":
            if (event.sender or 0) > known.consumers_sender:
                self._state.touch(event.topic).consumers_sender = event.sender or 0
            return
        if event.event == "deleted":
            if known and event.subscription in known.consumers:
                del self._state.touch(event.topic).consumers[event.subscription]
        else:
            if known is None and self._without_layout is not None:
                self._without_layout += 1
            self._state.touch(event.topic).consumers[event.subscription] = entry
        if event.sender is not None and event.topic in self._state.topics:
            self._state.touch(event.topic).consumers_sender = event.sender
        self.due_by_consumer.add(event.topic)

    def _is_late(self, sender: int | None, newest: int, topic: str) -> bool:
        """Whether somebody else has announced a newer truth about the topic since, or that it is gone."""
        return sender is not None and sender < max(newest, self._state.deleted_by.get(topic, 0))

    def _apply_policy(self, event: PolicyEvent) -> None:
        text, senders = event.policy.to_json() if event.policy else None, self._state.policy_senders
        newest = senders.get(event.name or "", 0)
        if event.sender is not None and event.sender < newest:
            return
        if (event.sender or 0) > newest:
            senders[event.name or ""] = event.sender or 0
            self._state.header_changed = True
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
        self._state.header_changed = self.new_policies = True
        self._routes.clear()
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

    def _keep_segments(self, name: str, kept: Sequence[int]) -> None:
        self._loads.keep_segments(name, kept)
        self._routes.forget(name)
        self._routes.new_rows.add(name)

    def _filter(self, samples: Samples, change_threshold: float) -> None:
        routes, kept = self._routes.of(samples)
        rows = np.concatenate([route.rows for route in routes])
        owners = np.repeat(np.arange(len(samples)), [len(route.rows) for route in routes])
        places = np.arange(len(rows)) if kept is None else np.flatnonzero(kept)
        rates = samples.rates if kept is None else samples.rates[places]
        thresholds, merge_thresholds = _thresholds([route.policy for route in routes], owners)
        codes = self._loads.absorb(
            rows, rates, samples.sampled_at[owners], self._now, change_threshold, thresholds, merge_thresholds,
            distinct=len(set(samples.topics)) == len(samples),
        )  # fmt: skip
        self._count(samples, owners, codes)
        accepted = np.flatnonzero(codes > 0)
        if len(accepted):
            self._record_loads(samples, owners[accepted], places[accepted], codes[accepted])

    def _count(self, samples: Samples, owners: npt.NDArray[np.int64], codes: npt.NDArray[np.int8]) -> None:
        counts = self._output.counts
        accepted_by = np.bincount(owners[codes > 0], minlength=len(samples)) > 0
        accepted = int(accepted_by.sum())
        sealed = len(samples.segments) - len(codes)
        counts.messages_accepted += accepted
        counts.messages_suppressed += len(samples) - accepted
        counts.samples += len(samples.segments)
        counts.samples_accepted += int((codes > 0).sum())
        counts.samples_stale += int((codes == STALE).sum()) + sealed
        counts.samples_insignificant += int((codes == 0).sum())

    def _record_loads(
        self, samples: Samples, owners: npt.NDArray[np.int64], places: npt.NDArray[np.int64],
        codes: npt.NDArray[np.int8],
    ) -> None:  # fmt: skip
        rates = samples.rates[places]
        self._output.loads = pa.RecordBatch.from_arrays(
            [
                pa.array(samples.topics, pa.string()).take(owners),
                pa.array(samples.segments[places]),
                *(pa.array(rates[:, column]) for column in range(4)),
                pa.array(samples.reporters, pa.string()).take(owners),
                pa.array(samples.sampled_at[owners]),
                pa.array(_CAUSES[codes], pa.string()),
                pa.array(samples.partitions[owners].astype(np.int64)),
                pa.array(samples.offsets[owners]),
            ],
            schema=LOAD_SCHEMA,
        )

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


_CAUSES = np.array([None, *(CAUSES[code] for code in sorted(CAUSES))], np.object_)


def _with(samples: Samples | None, late: list[tuple[RawRecord, SegmentStats]]) -> Samples:
    """The samples and those that were parsed late, in the order of arrival."""
    batch = to_arrow(
        [message for _, message in late],
        [record.partition for record, _ in late],
        [record.offset for record, _ in late],
    )
    return Samples.from_arrow([batch] if samples is None else [samples.to_arrow(), batch])


def _thresholds(
    policies: Sequence[EffectivePolicy], owners: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Crossing and merge thresholds per sample; one row when all are of one policy."""
    distinct = {id(policy): policy for policy in policies}
    if len(distinct) == 1:
        (policy,) = distinct.values()
        return policy.crossing_thresholds[None, :], policy.merge_thresholds[None, :]
    number = {identity: place for place, identity in enumerate(distinct)}
    which = np.fromiter((number[id(policy)] for policy in policies), np.int64, len(policies))[owners]
    crossing = np.stack([policy.crossing_thresholds for policy in distinct.values()])
    merge = np.stack([policy.merge_thresholds for policy in distinct.values()])
    return crossing[which], merge[which]
