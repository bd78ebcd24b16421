"""Both sides from the record: actual actions from layouts, wanted ones from our decisions.

Stage: above `own`. The job's own state is replayed, batch after batch (`engine.replay`), so that at each action of the
other scaler our answer at that moment can be computed. The record is read twice, in chunks: first to find our own
actions and the instants of the others', as both are announced after the fact; then to replay it.
"""

import json
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from anabranch.simulation.shadow.lives import read_layout
from anabranch.simulation.shadow.own import Lives, Own, find_own, own_decisions
from anabranch.simulation.shadow.sides import (
    SAME,
    Both,
    Done,
    Ending,
    Segments,
    Sides,
    WantedAction,
    What,
    actions_in,
    parts_of,
)
from decisions.autoscale.answers import Hold
from decisions.autoscale.decide import decide
from decisions.autoscale.policy import Policy
from decisions.autoscale.rates import segment_overload
from decisions.topic.layout import SegmentLayout
from engine.autoscale.samples import Samples
from engine.autoscale.topics import ConfiguredPolicy
from engine.history import BatchHistory
from engine.replay import AS_RECORDED, BucketReplay, RecordedBatch
from lake.tables import stream_columns
from schemas.kafka.messages import LayoutEvent, OutcomeEvent, parse_message
from schemas.tables.rows import BATCHES

_MOST_DOUBTS = 20
_ROWS = 65_536

Progress = Callable[[int, int], None]
"""Called now and then with the number of finished batches, and the time of the last one, milliseconds."""


class NothingToCompare(LookupError):
    """Nothing to compare in the lake; the message says what is missing."""


class Record(Protocol):
    """The job's record in the lake, chunk by chunk (`anabranch.history.recorded.RecordedHistory`)."""

    @property
    def topics(self) -> list[str]: ...

    @property
    def span(self) -> tuple[int, int] | None: ...

    def chunks(self, *, keep: bool = False) -> Iterable[BatchHistory]: ...

    def begun(self, names: Collection[str], /) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class ShadowRecord:
    """Recorded actions of both sides."""

    sides: Sides
    topics: int
    """Topics of which a layout is on record."""
    began_at: int
    """Start and last batch of the record, milliseconds since 1970."""
    ended_at: int
    doubts: Sequence[str]
    """The first few rows that do not follow from earlier ones."""


def read_sides(
    lake: str,
    record: Record,
    configured: ConfiguredPolicy,
    wanted: Callable[[str], bool] = lambda _: True,
    progress: Progress = lambda *_: None,
) -> ShadowRecord:
    """Read both sides of the topics that are `wanted`, for the whole `record`.

    `configured`: the job's policy now, for releases that did not record it. Raises `NothingToCompare`, and what Delta
    raises.
    """
    if record.span is None:
        raise NothingToCompare(
            f"no batch of the job is on record in {lake}: is the job running, with [lake] path there?"
        )
    if not (topics := [topic for topic in record.topics if wanted(topic)]):
        raise NothingToCompare(f"no layout of such a topic is on record in {lake}: does a collector announce them?")
    replay = BucketReplay(AS_RECORDED, configured, doubts := _FirstFew(), **record.begun(topics))
    own = find_own(replay, (chunk.of_bucket(topics) for chunk in record.chunks(keep=True)), own_decisions(lake))
    reading = _Reading(replay, own, committed_at(lake, own.decided_at))
    done = 0
    for chunk in record.chunks():
        for batch in chunk.of_bucket(topics):
            reading.take(batch)
            done += 1
            progress(done, batch.now)
    return ShadowRecord(reading.end(), len(reading.layouts), *record.span, doubts)


def committed_at(lake: str, batches: Collection[int]) -> dict[int, int]:
    """Return the commit times of batches by batch time; all instants are milliseconds since 1970."""
    if not batches:
        return {}
    times = pa.array(sorted(batches), pa.int64())
    committed_by_batch: dict[int, int] = {}
    for rows in stream_columns(lake, BATCHES, ("batch_at", "committed_at"), _ROWS):
        batch_at, committed = (
            pc.divide(pc.cast(rows[name], pa.int64()), 1000) for name in ("batch_at", "committed_at")
        )
        mask = pc.is_in(batch_at, times)
        committed_by_batch.update(
            zip(batch_at.filter(mask).to_pylist(), committed.filter(mask).to_pylist(), strict=True)
        )
    return committed_by_batch


class _FirstFew(list[str]):
    """List that keeps only the first few entries."""

    def append(self, entry: str) -> None:
        if len(self) < _MOST_DOUBTS:
            super().append(entry)


class _Reading:
    """Second pass, which replays the record and collects the actions of both sides."""

    def __init__(self, replay: BucketReplay, own: Own, committed: Mapping[int, int]) -> None:
        self._replay, self._own, self._committed = replay, own, committed
        self.layouts: dict[str, SegmentLayout] = {}
        self._lives = Lives(replay.state)
        self._sides = Sides()
        self._shown: dict[str, set[Segments]] = {}
        """By topic: the children of the actions that its layouts have shown."""
        self._open: dict[str, dict[What, WantedAction]] = {}
        self._decided: dict[str, tuple[str, list[What]]] = {}
        """By decision id, the topic and actions of decisions that are open."""
        self._hot: dict[tuple[str, int], int] = {}
        self._to_come = deque(own.instants_of_others)
        self._said: dict[tuple[int, str, What], tuple[str | None, int | None]] = {}
        """At the instant of an action: what we would have said, and since when a segment of it was hot."""
        for name, topic in replay.state.topics.items():
            if topic.layout is not None:
                self._begin(name, topic.layout)

    def _begin(self, topic: str, layout: SegmentLayout) -> None:
        """Start from the known layout of a topic at the beginning of the record."""
        self.layouts[topic] = layout
        self._shown[topic] = {children for _, _, children, _ in actions_in(layout)}
        policy = self._replay.policy(topic)
        for segment, load in self._replay.loads.loads_of(topic).items():
            if policy is not None and segment_overload(load.rates, policy)[0] > 1.0:
                self._hot[topic, segment] = load.modified_at

    def take(self, batch: RecordedBatch) -> None:
        while self._to_come and self._to_come[0][0] < batch.now:
            instant, topic, act = self._to_come.popleft()
            self._said[instant, topic, act] = self._answer(topic, act, instant), self._hot_since(topic, act[1])
        for message in [parse_message(event.source, event.key, event.value) for event in batch.events]:
            if isinstance(message, LayoutEvent):
                self._take_layout(message, read_layout(message), batch.now)
            elif isinstance(message, OutcomeEvent) and message.decision_id in self._decided:
                self._end(*self._decided.pop(message.decision_id), message.status, batch.now)
        self._replay.take(batch)
        if batch.samples is not None:
            self._take_loads(batch.samples, batch.now)
        for row in batch.holds:
            if row["gate"] != "in-flight":
                self._close(row["subject"], "withdrawn", batch.now)
        for row in batch.decisions:
            if row["decision_id"] in self._own.applied:
                continue
            topic, parts = row["subject"], parts_of(row["action"], json.loads(row["arguments"])["segments"])
            instant = self._committed.get(batch.now, batch.now)
            for act in parts:
                decided = WantedAction(topic, *act, instant, row["reason"], self._hot_since(topic, act[1]))
                self._open.setdefault(topic, {}).setdefault(act, decided)
            self._decided[row["decision_id"]] = topic, parts

    def _end(self, topic: str, parts: Sequence[What], status: str, now: int) -> None:
        """End the open parts of a decision; those that the other side did are paired already."""
        if status not in ("superseded", "rejected", "failed"):
            return
        for act in parts:
            if (wanted := self._open.get(topic, {}).pop(act, None)) is not None:
                self._sides.ours.append(replace(wanted, ending=status, ended_at=now))  # type: ignore[arg-type]

    def end(self) -> Sides:
        for topic in list(self._open):
            self._close(topic, "open", None)
        return self._sides

    def _take_layout(self, event: LayoutEvent, layout: SegmentLayout | None, now: int) -> None:
        topic = event.topic
        if not self._lives.follow(event, layout):
            return
        if self._lives.began_anew:
            self._close(topic, "deleted", now)
            self._forget(topic)
        if event.cause == "deleted" or layout is None:
            return
        previous = self.layouts.get(topic)
        shown = self._shown.setdefault(topic, set())
        for action, segments, children, created_at in sorted(actions_in(layout, previous), key=lambda shown: shown[3]):
            self._sides.parents.update(((topic, child), segments) for child in children)
            if children in shown:
                continue
            shown.add(children)
            if previous is not None:
                self._take_done(topic, (action, segments), created_at or event.at)
        self.layouts[topic] = layout
        active = {segment.segment_id for segment in layout.active}
        for act in [act for act in self._open.get(topic, {}) if not active.issuperset(act[1])]:
            self._sides.ours.append(replace(self._open[topic].pop(act), ending="overtaken", ended_at=now))

    def _take_done(self, topic: str, act: What, acted_at: int) -> None:
        if self._own.has(topic, self._lives.of(topic), act):
            self._open.get(topic, {}).pop(act, None)
            return
        looks = self._own.looks
        index = bisect_right(looks, acted_at)
        looked_at = looks[index] if index < len(looks) else None
        answered = self._said.get((acted_at, topic, act))
        answer, hot_since = answered or (self._answer(topic, act, acted_at), self._hot_since(topic, act[1]))
        if (wanted := self._open.get(topic, {}).pop(act, None)) is None:
            self._sides.theirs.append(Done(topic, *act, acted_at, answer, looked_at, hot_since))
        elif wanted.at > acted_at:
            # Decided, but not in the lake before they did it.
            self._sides.theirs.append(Done(topic, *act, acted_at, SAME, wanted.at, hot_since))
        else:
            self._sides.both.append(Both(wanted, Done(topic, *act, acted_at, SAME, looked_at, hot_since)))

    def _answer(self, topic: str, act: What, instant: int) -> str | None:
        """Return our answer for an action at an instant, from the job's state at that time."""
        snapshot = self._replay.snapshot(topic, instant)
        if snapshot is None or not {segment.segment_id for segment in snapshot.layout.active}.issuperset(act[1]):
            return None
        # A decision that waits for its end is no reason against the next one here: nobody acts.
        answer = decide(replace(snapshot, in_flight=None))
        if isinstance(answer, Hold):
            return str(answer.gate.value)
        chosen = [act for action in (answer, *answer.also) for act in parts_of(action.action, action.ids)]
        if act in chosen:
            return SAME
        return "other: " + ", ".join(f"{action} {'+'.join(map(str, segments))}" for action, segments in chosen)

    def _close(self, topic: str, ending: Ending, instant: int | None) -> None:
        for wanted in self._open.pop(topic, {}).values():
            self._sides.ours.append(replace(wanted, ending=ending, ended_at=instant))

    def _forget(self, topic: str) -> None:
        for layouts in (self._shown, self.layouts):
            layouts.pop(topic, None)
        self._hot = {key: since for key, since in self._hot.items() if key[0] != topic}

    def _hot_since(self, topic: str, segments: Segments) -> int | None:
        return min([self._hot[topic, segment] for segment in segments if (topic, segment) in self._hot], default=None)

    def _take_loads(self, samples: Samples, now: int) -> None:
        policies: dict[str, Policy | None] = {}
        names = samples.topics.to_pylist()
        for index, segment, rates in zip(
            samples.topic.tolist(), samples.segment.tolist(), samples.rates.tolist(), strict=True
        ):
            topic = names[index]
            if topic not in policies:
                policies[topic] = self._replay.policy(topic)
            policy = policies[topic]
            if policy is not None and segment_overload(tuple(rates), policy)[0] > 1.0:
                self._hot.setdefault((topic, segment), now)
            else:
                self._hot.pop((topic, segment), None)
