"""One policy on one demand, in virtual time: the job's own engine decides, and segments split and merge as it says.

Stage: above `demand`, below `score`. All topics go side by side, a step at a time: demand is added up under the
segments as they are, the engine filters and stores it as samples, evaluates what is due, and what it decides is applied
with the next step. So what is simulated is what runs: filter, clocks, guards and gates are the engine's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import pyarrow as pa

from decisions.autoscale.clocks import NEVER
from decisions.autoscale.policy import Policy
from decisions.topic.layout import LayoutError, SegmentLayout
from engine.autoscale.family import AUTOSCALE
from engine.autoscale.samples import BY_SAMPLES, Samples
from engine.autoscale.topics import ConfiguredPolicy
from engine.kernel.bucket import Intake
from engine.kernel.records import Output, RawRecord
from engine.kernel.settings import EngineSettings
from ledger.simulate.demand import Consumers, Demand, Ints, Sliced
from ledger.simulate.score import Score
from schemas.ids import EVERY_TOPIC
from schemas.kafka import CONSUMER_EVENTS, CONTROL_EVENTS
from schemas.messages import ConsumerEvent, LayoutEvent, OutcomeEvent, OutcomeStatus, TickEvent, key_of

TICK_MS = 60_000
CHANGE_THRESHOLD = 0.25
KEPT_MS = 3_600_000
"""For how long a sealed segment stays in its layout."""
_MOST_SEALED = 64
"""Sealed segments of a topic from which on old ones are pruned."""


class Loop:
    """The topics of a demand under one policy."""

    def __init__(
        self, demand: Demand, policy: ConfiguredPolicy, yardstick: Policy | None = None, tick_ms: int = TICK_MS
    ) -> None:
        """`yardstick`: the policy whose split thresholds count as what a segment can carry; None: this one."""
        self._demand, self._tick_ms = demand, tick_ms
        self._state = AUTOSCALE.opener(EngineSettings(CHANGE_THRESHOLD, tick_ms))({})
        self._state.topics.set_configured(policy)
        self._intake = Intake((AUTOSCALE,))
        self._offset = 0
        self.layouts = [SegmentLayout.create(count, demand.began_at) for count in demand.initial]
        self._names = pa.array(demand.topics, pa.string())
        self._places = {name: place for place, name in enumerate(demand.topics)}
        self._announced = list(range(len(self.layouts)))
        """Topics whose layouts have to be announced."""
        self.decided: list[Mapping[str, object]] = []
        """Rows of `decisions` of the last step; they are applied with the next."""
        self._due: dict[str, int] = {}
        self._columns: tuple[Ints, Ints, Ints, Ints] | None = None
        self.score = Score(demand, yardstick or self.policy)

    @property
    def policy(self) -> Policy:
        """The policy of a topic."""
        return self._state.policies.of_cluster(self._state.topics).policy

    def step(self, number: int, wanted: Sliced, consumers: Iterable[Consumers]) -> None:
        """One step: `wanted` and `consumers` are the demand's at it."""
        now = self._demand.began_at + number * self._demand.step_ms
        records = self._apply(now)
        records += [self._layout(place, now) for place in self._announced]
        self._announced = []
        for one in consumers:
            records.append(self._record(CONSUMER_EVENTS.name, ConsumerEvent(
                v=1, topic=self._demand.topics[one.topic], subscription=one.subscription, type=one.kind,
                event="snapshot", consumer="simulated", consumers=one.sessions, at=now,
            )))  # fmt: skip
            self.score.set_consumers(one)
        if now // self._tick_ms != (now - self._demand.step_ms) // self._tick_ms:
            records.append(self._record(CONTROL_EVENTS.name, TickEvent(v=1, type="tick", at=now)))
        for name in [name for name, due in self._due.items() if due <= now]:
            del self._due[name]
            records.append(self._record(CONTROL_EVENTS.name, TickEvent(v=1, type="tick", at=now, topic=name)))
        topic, segment, start, end = self._active()
        rates = wanted.rates_of(topic, start, end)
        output = Output()
        batch = self._state.begin(now, output)
        samples = self._samples(topic, segment, rates, now)
        is_tick = self._intake.take([batch], records, {AUTOSCALE.columns.kind: samples}, now, output)
        batch.evaluate(is_tick)
        self.decided = list(output.decisions)
        self._due.update(output.due)
        self.score.add(topic, rates, now)

    def _apply(self, now: int) -> list[RawRecord]:
        """Does what was decided at the step before."""
        records = []
        for row in self.decided:
            place = self._places[str(row["subject"])]
            segments = _segments(row)
            layout = self.layouts[place]
            status: OutcomeStatus = "failed"
            try:
                if row["action"] == "split":
                    after = layout.split_segment(segments[0], now)
                else:
                    after = layout.merge_segments(segments[0], segments[1], now)
            except LayoutError:
                pass
            else:
                status = "applied"
                self.score.acted(place, str(row["action"]), segments, after, now)
                self.layouts[place] = _pruned(after, now)
                self._announced.append(place)
                self._columns = None
            records.append(self._record(CONTROL_EVENTS.name, OutcomeEvent(
                v=1, type="outcome", decision_id=str(row["decision_id"]), topic=str(row["subject"]), status=status,
                at=now,
            )))  # fmt: skip
        return records

    def _active(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Topic, id and ends of every active segment."""
        if self._columns is None:
            rows = [
                (place, one.segment_id, one.start, one.end)
                for place, layout in enumerate(self.layouts) for one in layout.active
            ]  # fmt: skip
            columns = np.array(rows, np.int64).T
            self._columns = columns[0], columns[1], columns[2], columns[3]
        return self._columns

    def _samples(self, topic: Ints, segment: Ints, rates: np.ndarray, now: int) -> Samples:
        self._offset += 1
        return Samples(
            topics=self._names, reporters=pa.array(["simulated"]), topic=topic.astype(np.int32), segment=segment,
            rates=rates, reporter=np.zeros(1, np.int32), sampled_at=np.array([now]), partition=np.zeros(1, np.int64),
            offset=np.array([self._offset]), timestamp=np.array([NEVER]), counted=np.full(1, BY_SAMPLES, np.int8),
            counts=np.array([len(segment)]),
        )  # fmt: skip

    def _layout(self, place: int, now: int) -> RawRecord:
        layout = self.layouts[place]
        return self._record(CONTROL_EVENTS.name, LayoutEvent(
            v=1, type="layout", topic=self._demand.topics[place], cause="snapshot", layout=layout.to_metadata(), at=now,
        ))  # fmt: skip

    def _record(self, source: str, message: ConsumerEvent | LayoutEvent | OutcomeEvent | TickEvent) -> RawRecord:
        self._offset += 1
        value = message.to_json().encode()
        key = key_of(message) or EVERY_TOPIC
        return RawRecord(source, key.encode(), value, len(value), 0, self._offset, timestamp=0, home=False)


def _segments(row: Mapping[str, object]) -> list[int]:
    found: list[int] = json.loads(str(row["arguments"]))["segments"]
    return found


def _pruned(layout: SegmentLayout, now: int) -> SegmentLayout:
    """Without segments that were sealed long ago, once there are many: as the controller's housekeeping leaves it."""
    sealed = [one for one in layout.segments.values() if not one.is_active]
    if len(sealed) > _MOST_SEALED:
        for one in sealed:
            if one.sealed_at_ms < now - KEPT_MS:
                layout = layout.prune_segment(one.segment_id)
    return layout


Progress = Callable[[int, int], None]
"""Told after each step which it was, of how many."""


def simulate(
    demand: Demand, policies: Mapping[str, ConfiguredPolicy], tick_ms: int = TICK_MS,
    progress: Progress = lambda *_: None,
) -> dict[str, Score]:  # fmt: skip
    """Every policy on the same demand, by name. What is over a threshold is told by those of the first one."""
    loops: dict[str, Loop] = {}
    for name, policy in policies.items():
        yardstick = next(iter(loops.values())).policy if loops else None
        loops[name] = Loop(demand, policy, yardstick, tick_ms)
    for number in range(demand.steps):
        wanted = demand.advance(number)
        consumers = list(demand.consumers(number))
        for loop in loops.values():
            loop.step(number, wanted, consumers)
        progress(number + 1, demand.steps)
    return {name: loop.score for name, loop in loops.items()}
