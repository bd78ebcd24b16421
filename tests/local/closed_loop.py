"""The whole loop on virtual time: demand, samples, the job's bucket engine, decisions applied at once, demand again.

Everything but Kafka, Delta and REST is the real part: the messages are those of `anabranch.local.samples`, the engine
is the stream's own with its filter and policies, and layouts change as the controller changes them.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from typing import Any

from anabranch.local.demand import TopicDemand, demands
from anabranch.local.samples import segment_stats
from decisions.autoscale.policy import read_cluster_policy, resolve_policy
from decisions.topic.layout import SegmentLayout
from engine.families import bucket_engine
from engine.kernel.packed import Packed
from engine.kernel.records import RawRecord
from engine.kernel.settings import EngineSettings
from schemas.ids import EVERY_TOPIC
from schemas.settings.root import Settings
from streaming.job.policy import stored_policy
from tests.engine.buckets import knowing, run


@dataclass
class Action:
    """A decision that was applied: seconds since the start, topic, the decision's row."""

    at: float
    topic: str
    row: dict[str, Any]
    segments_after: int
    segments: frozenset[int]
    """Segments that it was done to."""
    made: frozenset[int]

    @property
    def kind(self) -> str:
        """`merge`, `split:consumer-count` or `split:load`."""
        if self.row["action"] == "merge":
            return "merge"
        return "split:consumer-count" if self.row["reason"] == "consumer-count" else "split:load"


@dataclass
class ClosedLoop:
    """A local run in one process. Instants are seconds since 1970; one batch a second."""

    settings: Settings
    start: float
    job_delay: int = 0
    """Seconds until the job runs its first batch; what was sent until then waits in Kafka."""
    applied_after: int = 1
    """Seconds from a decision to its layout event."""
    actions: list[Action] = field(default_factory=list)
    holds: list[dict[str, Any]] = field(default_factory=list)
    dead_letters: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        stream = self.settings.stream
        policy = read_cluster_policy(self.settings.policy.profile, self.settings.cluster_policy_text())
        self.policy_thresholds = resolve_policy(*policy).policy.split_thresholds
        self._engine = bucket_engine(EngineSettings(stream.change_threshold, int(stream.tick_seconds * 1000)))
        self._packed = knowing(stored_policy(policy))
        self._offsets = itertools.count()
        origin = self.start if self.settings.traffic.counts_from_start else 0.0
        self._demands: list[TopicDemand] = demands(self.settings.traffic, origin)
        self._consumers: dict[tuple[str, str], int] = {}
        self.layouts: dict[str, SegmentLayout] = {}
        self._waiting: list[RawRecord] = []
        self._later: list[tuple[float, RawRecord]] = []
        self._now = self.start
        for demand in self._demands:
            created = SegmentLayout.create(demand.initial_segments, self._ms(self.start))
            self._change(demand.topic, created, "created", None)

    def run(self, seconds: int) -> ClosedLoop:
        """The loop for `seconds`; may be called again to go on."""
        for _ in range(seconds):
            step = round(self._now - self.start)
            self._produce(step)
            if step >= self.job_delay:
                self._batch()
            self._now += 1
        return self

    def _produce(self, step: int) -> None:
        for demand in self._demands:
            self._report_consumers(demand)
            if step % self.settings.traffic.report_seconds == 0:
                metadata = self.layouts[demand.topic].to_metadata()
                for message in segment_stats(demand, metadata, self._now):
                    self._send("segment-stats", demand.topic, json.loads(message.to_json()))
        if step % self.settings.stream.tick_seconds == 0:
            self._send("control-events", EVERY_TOPIC, {"v": 1, "type": "tick", "at": self._ms(self._now)})

    def _report_consumers(self, demand: TopicDemand) -> None:
        wanted = demand.consumers(self._now)
        for subscription in demand.subscriptions:
            key = (demand.topic, subscription.name)
            while (known := self._consumers.get(key, 0)) != wanted[subscription.name]:
                arrives = wanted[subscription.name] > known
                self._consumers[key] = known + 1 if arrives else known - 1
                event = {
                    "v": 1,
                    "topic": demand.topic,
                    "subscription": subscription.name,
                    "type": subscription.type,
                    "event": "registered" if arrives else "unregistered",
                    "consumer": "c",
                    "consumers": self._consumers[key],
                    "at": self._ms(self._now),
                }
                self._send("consumer-events", demand.topic, event)

    def _batch(self) -> None:
        due = [record for at, record in self._later if at <= self._now]
        self._later = [(at, record) for at, record in self._later if at > self._now]
        records, self._waiting = [*self._waiting, *due], []
        written, output = run(self._engine, self._packed, records, self._ms(self._now))
        self._packed = Packed(written.fingerprint)
        self.holds += output.holds
        self.dead_letters += output.dead_letters
        for topic, at in output.due:
            tick = {"v": 1, "type": "tick", "topic": topic, "at": at}
            self._later.append((at / 1000, self._record("control-events", topic, tick)))
        for row in output.decisions:
            self._apply(row)

    def _apply(self, row: dict[str, Any]) -> None:
        topic, segments = row["subject"], json.loads(row["arguments"])["segments"]
        before = self.layouts[topic]
        # Several decisions of one evaluation are taken on one layout, and applied one after the other.
        assert before.epoch >= row["layout_epoch"]
        assert all(before.segments[number].is_active for number in segments)
        now = self._ms(self._now)
        after = (
            before.split_segment(*segments, now) if row["action"] == "split" else before.merge_segments(*segments, now)
        )
        self._change(topic, after, row["action"], row["decision_id"])
        made = frozenset(after.segments) - frozenset(before.segments)
        at = self._now - self.start
        self.actions.append(Action(at, topic, row, len(after.active), frozenset(segments), made))

    def _change(self, topic: str, layout: SegmentLayout, cause: str, decision_id: str | None) -> None:
        layout.check()
        self.layouts[topic] = layout
        at = self._now + (self.applied_after if decision_id else 0)
        event = {
            "v": 1,
            "type": "layout",
            "topic": topic,
            "cause": cause,
            "decisionId": decision_id,
            "layout": json.loads(layout.to_metadata().to_json()),
            "at": self._ms(at),
        }
        self._later.append((at, self._record("control-events", topic, event)))
        if decision_id:
            outcome = {
                "v": 1,
                "type": "outcome",
                "decisionId": decision_id,
                "topic": topic,
                "status": "applied",
                "at": self._ms(at),
            }
            self._later.append((at, self._record("control-events", topic, outcome)))

    def _send(self, source: str, key: str, body: dict[str, Any]) -> None:
        self._waiting.append(self._record(source, key, body))

    def _record(self, source: str, key: str, body: dict[str, Any]) -> RawRecord:
        value = json.dumps(body).encode()
        return RawRecord(source, key.encode(), value, len(value), 0, next(self._offsets), 0, True)

    @staticmethod
    def _ms(instant: float) -> int:
        return int(instant * 1000)
