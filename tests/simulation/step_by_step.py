"""The closed loop as plain as can be: the job's own engine, all topics side by side, a step of ten seconds at a time.

What `anabranch.simulation.topics` answers is held against this. Every segment reports at every step, every topic is
evaluated at every tick, layouts are `SegmentLayout`, and everything is counted at each step.
"""

from __future__ import annotations

import json
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pyarrow as pa
from msgspec.structs import replace as replace_segment

from anabranch.simulation.topics.lineages import KEPT_MS, MOST_SEALED
from anabranch.simulation.topics.outcome import REVERSAL_MS
from anabranch.simulation.topics.run import CHANGE_THRESHOLD, TICK_MS, resolved
from anabranch.simulation.topics.window import WindowColumns
from decisions.autoscale.clocks import NEVER
from decisions.autoscale.columns import MERGE, REASONS, REBUCKET, SPLIT
from decisions.autoscale.snapshot import sharing_consumers, unshared_consumers
from decisions.topic.layout import LayoutError
from decisions.topic.segment import equal_buckets
from engine.autoscale.family import AUTOSCALE
from engine.autoscale.samples import BY_SAMPLES, Samples
from engine.kernel.bucket import Intake
from engine.kernel.records import Output, RawRecord
from engine.kernel.settings import EngineSettings
from schemas.ids import EVERY_TOPIC
from schemas.kafka.messages import ConsumerEvent, LayoutEvent, OutcomeEvent, TickEvent, key_of
from schemas.kafka.topics import CONSUMER_EVENTS, CONTROL_EVENTS


class StepByStep:
    """The topics of a source under one policy."""

    def __init__(self, source, policy, yardstick=None, tick_ms=TICK_MS, delay_steps=1):
        self.source, self.tick_ms, self.names = source, tick_ms, list(source.topics)
        self.delay_ms = delay_steps * source.step_ms
        everything = range(len(self.names))
        self.layouts = source.layouts(everything)
        self.policies = [resolved(policy, layout) for layout in self.layouts]
        self.layouts = [with_buckets(*one) for one in zip(self.layouts, self.policies, strict=True)]
        self.yardsticks = [yardstick or one for one in self.policies]
        self.windows = [
            (window, WindowColumns(window, source.began_at, source.step_ms, [{} for _ in self.names]))
            for window in source.windows(everything)
        ]
        self.state = AUTOSCALE.opener(EngineSettings(CHANGE_THRESHOLD, tick_ms))({})
        self.state.topics.set_configured(policy)
        self.intake, self.offset = Intake((AUTOSCALE,)), 0
        self.announced, self.decided, self.due = list(everything), [], {}
        self.consumers = [{} for _ in self.names]
        self.made = [{} for _ in self.names]
        self.counts = {
            name: np.zeros(len(self.names), np.int64)
            for name in (
                "splits",
                "merges",
                "rebuckets",
                "reversals",
                "sealed",
                "segment_ms",
                "over_ms",
                "waiting_ms",
                "capped_ms",
                "most_segments",
            )
        }
        self.actions, self.series = [], []

    def run(self):
        for step in range(self.source.steps):
            self.step(step)
        self.actions += [(*row, False, False) for decided in self.decided for row in self._actions(decided)]
        return self

    def step(self, step):
        now = self.source.began_at + step * self.source.step_ms
        window, columns = next(one for one in self.windows if one[0].begin <= now < one[0].end)
        records = self._apply(now) + [self._layout(place, now) for place in self.announced]
        self.announced = []
        for place, timeline in enumerate(window.timelines):
            for at, subscription, kind, sessions in timeline.consumers:
                is_first = step == 0 or now == window.begin
                if now - self.source.step_ms < at <= now or (is_first and at <= now):
                    self.consumers[place][subscription] = kind, sessions
                    records.append(
                        self._record(
                            CONSUMER_EVENTS.name,
                            ConsumerEvent(
                                v=1,
                                topic=self.names[place],
                                subscription=subscription,
                                type=kind,
                                event="snapshot",
                                consumer="simulated",
                                consumers=sessions,
                                at=now,
                            ),
                        )
                    )
        if now // self.tick_ms != (now - self.source.step_ms) // self.tick_ms:
            records.append(self._record(CONTROL_EVENTS.name, TickEvent(v=1, type="tick", at=now)))
        for name in [name for name, due in self.due.items() if due <= now]:
            del self.due[name]
            records.append(self._record(CONTROL_EVENTS.name, TickEvent(v=1, type="tick", at=now, topic=name)))
        active = [(place, one) for place, layout in enumerate(self.layouts) for one in layout.active]
        topic = np.array([place for place, _ in active])
        rates = self._rates(window, columns, now, topic, [one for _, one in active])
        output = Output()
        batch = self.state.begin(now, output)
        self.offset += 1
        samples = Samples(
            topics=pa.array(self.names, pa.string()),
            reporters=pa.array(["simulated"]),
            topic=topic.astype(np.int32),
            segment=np.array([one.segment_id for _, one in active]),
            rates=rates,
            reporter=np.zeros(1, np.int32),
            sampled_at=np.array([now]),
            partition=np.zeros(1, np.int64),
            offset=np.array([self.offset]),
            timestamp=np.array([NEVER]),
            counted=np.full(1, BY_SAMPLES, np.int8),
            counts=np.array([len(active)]),
        )
        batch.evaluate(self.intake.take([batch], records, {AUTOSCALE.columns.kind: samples}, now, output))
        self.decided += output.decisions
        self.due.update(output.due)
        self._count(step, now, topic, rates)

    def _rates(self, window, columns, now, topic, segments):
        """What each segment carries now, by the last change that is not after it."""
        places = [int(np.searchsorted(one.at, now, side="right")) - 1 for one in window.timelines]
        which = np.array([int(one.which[at]) for one, at in zip(window.timelines, places, strict=True)])
        level = np.array(
            [1.0 if one.level is None else one.level[at] for one, at in zip(window.timelines, places, strict=True)]
        )
        bounds = columns.locate(
            topic, np.array([one.start for one in segments]), np.array([one.end for one in segments])
        )
        return columns.carried(topic, which[topic], bounds) * level[topic][:, None]

    def _apply(self, now):
        records = []
        waiting, self.decided = self.decided, [row for row in self.decided if row["decided_at"] > now - self.delay_ms]
        for row in waiting[: len(waiting) - len(self.decided)]:
            place, segments = self.names.index(row["subject"]), json.loads(row["arguments"])["segments"]
            status, is_reversal = "failed", False
            if not {one.segment_id for one in self.layouts[place].active}.issuperset(segments):
                status = "superseded"
            try:
                after = self._changed(place, row, segments, now)
            except LayoutError:
                pass
            else:
                status, is_reversal = "applied", self._acted(place, row["action"], segments, after, now)
                self.layouts[place] = pruned(after, now)
                records.append(self._layout(place, now))
            self.actions += [(*one, status == "applied", is_reversal) for one in self._actions(row)]
            records.append(
                self._record(
                    CONTROL_EVENTS.name,
                    OutcomeEvent(
                        v=1, type="outcome", decision_id=row["decision_id"], topic=row["subject"], status=status, at=now
                    ),
                )
            )
        return records

    def _changed(self, place, row, segments, now):
        layout = self.layouts[place]
        if row["action"] == "rebucket":
            for segment in segments:
                layout = layout.rebucket_segment(segment, json.loads(row["arguments"])["bucketCount"], now)
            return layout
        if row["action"] == "split":
            return layout.split_segment(*segments, now)
        return layout.merge_segments(*segments, now, self.policies[place].max_entry_buckets_per_segment)

    def _actions(self, row):
        arguments = json.loads(row["arguments"])
        place, reason = self.names.index(row["subject"]), REASONS.index(row["reason"])
        if row["action"] == "rebucket":
            return [
                (place, row["decided_at"], REBUCKET, segment, arguments["bucketCount"], reason)
                for segment in arguments["segments"]
            ]
        code = SPLIT if row["action"] == "split" else MERGE
        return [(place, row["decided_at"], code, *(*arguments["segments"], -1)[:2], reason)]

    def _acted(self, place, action, segments, after, now):
        self.counts["sealed"][place] += len(segments)
        if action == "rebucket":
            self.counts["rebuckets"][place] += len(segments)
            return False
        self.counts["splits" if action == "split" else "merges"][place] += 1
        before = self.made[place].pop(tuple(sorted(segments)), None)
        is_reversal = before is not None and before[0] != action and now - before[1] <= REVERSAL_MS
        self.counts["reversals"][place] += is_reversal
        children = (one.segment_id for one in after.segments.values() if one.created_at_epoch == after.epoch)
        self.made[place][tuple(sorted(children))] = action, now
        return is_reversal

    def _count(self, step, now, topic, rates):
        count, ms = len(self.names), self.source.step_ms
        active = np.bincount(topic, minlength=count)
        limits = np.array([one.split_thresholds for one in self.yardsticks])
        over = np.bincount(topic[(rates > limits[topic]).any(axis=1)], minlength=count) > 0
        buckets = np.array([sum(one.bucket_count for one in layout.active) for layout in self.layouts])
        served = np.where([one.rebuckets for one in self.policies], buckets, active)
        waiting = np.maximum([sharing_consumers(one) for one in self.consumers] - served, 0)
        waiting = np.maximum(waiting, [unshared_consumers(one) for one in self.consumers] - active)
        full = active >= np.array([one.max_segments for one in self.policies])
        for name, status in (
            ("segment_ms", active),
            ("over_ms", over),
            ("waiting_ms", waiting),
            ("capped_ms", full & (over | (waiting > 0))),
        ):
            self.counts[name] += status * ms
        np.maximum(self.counts["most_segments"], active, out=self.counts["most_segments"])
        if step % max(1, self.source.steps // 500) == 0:
            self.series.append((now, int(active.sum()), int(over.sum())))

    def _layout(self, place, now):
        return self._record(
            CONTROL_EVENTS.name,
            LayoutEvent(
                v=1,
                type="layout",
                topic=self.names[place],
                cause="snapshot",
                layout=self.layouts[place].to_metadata(),
                at=now,
            ),
        )

    def _record(self, source, message):
        self.offset += 1
        value = message.to_json().encode()
        key = key_of(message) or EVERY_TOPIC
        return RawRecord(source, key.encode(), value, len(value), 0, self.offset, timestamp=0, home=False)


def with_buckets(layout, policy):
    """A layout whose segments have their share of the policy's budget of entry buckets, unless it has its own."""
    budget = policy.entry_bucket_budget
    if layout.has_buckets or not budget:
        return layout
    return bucketed(layout, [max(1, budget // len(layout.active))] * len(layout.active))


def bucketed(layout, counts):
    """A layout whose active segments have so many entry buckets each; None: they say nothing of them."""
    own = {
        one.segment_id: None if count is None else equal_buckets(count)
        for one, count in zip(layout.active, counts, strict=True)
    }
    segments = {
        number: replace_segment(one, entry_bucket_splits=own[number]) if number in own else one
        for number, one in layout.segments.items()
    }
    return replace(layout, segments=MappingProxyType(segments))


def pruned(layout, now):
    """Without segments that were sealed long ago, once there are many: as the controller's housekeeping leaves it."""
    sealed = [one for one in layout.segments.values() if not one.is_active]
    if len(sealed) > MOST_SEALED:
        for one in sealed:
            if one.sealed_at_ms < now - KEPT_MS:
                layout = layout.prune_segment(one.segment_id)
    return layout
