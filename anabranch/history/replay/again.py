"""Recorded evaluations, repeated by this release: batch by batch, from the replayed state before it.

Stage: under `anabranch.history.replay.report`. The order of an evaluation is the job's (`engine.autoscale.evaluation`):
at a tick all topics in columns, otherwise the topics with an event. No table records when a load was last seen if its
samples changed nothing, so all loads are first assumed to be fresh; if that does not lead to the recorded answer, every
possible case is tried (`engine.agreement`). If there are too many, a decision's own snapshot says which were fresh.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from decisions.autoscale.answers import Answer, Hold
from decisions.autoscale.columns import GATES
from decisions.autoscale.decide import decide
from decisions.autoscale.gates import Gate
from decisions.autoscale.snapshot import TopicSnapshot
from engine.agreement import may_have_been, seen_as_recorded, snapshot_on_record
from engine.autoscale.evaluation import asks_nothing
from engine.autoscale.topics import TopicState
from engine.replay import BucketReplay, Due, RecordedBatch

Said = str | None
"""New rows of an evaluation on a topic, as text: `hold GATE`, `split 3, merge 4+5`; None: none."""
_NOTHING_URGENT: frozenset[Gate] = frozenset()


@dataclass(frozen=True)
class Disagreement:
    """Topic for which this release gives another answer."""

    topic: str
    at: int
    """Milliseconds."""
    then: Said
    now: Said


class Again:
    """Evaluations of a replay, batch by batch."""

    def __init__(self, replay: BucketReplay) -> None:
        self._replay = replay
        self.evaluations = 0
        """Topics evaluated."""
        self.untold = 0
        """Of those: too much is not on record to tell."""

    def evaluate(self, batch: RecordedBatch, due: Due) -> Iterator[Disagreement]:
        """Yield the differences in a batch whose inputs are applied, but whose answers are not yet."""
        if self._replay.state.configured is None or not batch.is_complete:
            return
        then = _on_record(batch)
        now = self._at_tick(batch.now) if due.is_tick else self._at_events(batch.now, due)
        for topic in sorted(then.keys() | now.keys()):
            if then.get(topic) == now.get(topic):
                continue
            trigger = "tick" if due.is_tick or topic in due.by_tick else "consumer"
            if not self._may_have_said(topic, batch, trigger, then.get(topic)):
                yield Disagreement(topic, batch.now, then.get(topic), now.get(topic))

    def _at_tick(self, now: int) -> dict[str, Said]:
        """Return the answers for all topics, in columns, with every load fresh."""
        loads = self._replay.loads
        seen_at = loads.seen_at
        loads.seen_at = np.where(loads.modified_at >= 0, np.maximum(seen_at, now), seen_at)
        try:
            seen = self._replay.view.look(now, _NOTHING_URGENT, now)
            answers: dict[str, Said] = {
                name: f"hold {GATES[gate].value}"
                for name, gate in zip(seen.held.names, seen.held.gates.tolist(), strict=True)
            }
            for name in seen.chosen:
                topic = self._replay.state.topics[name]
                snapshot, _ = self._replay.seen_by(topic, now, "tick")
                if (news := _news(topic, snapshot, decide(snapshot))) is not None:
                    answers[name] = news
        finally:
            loads.seen_at = seen_at
        self.evaluations += seen.evaluated
        return answers

    def _at_events(self, now: int, due: Due) -> dict[str, Said]:
        answers: dict[str, Said] = {}
        for name in due.by_tick | due.by_event:
            topic = self._replay.state.topics.get(name)
            if topic is None or topic.known is None:
                continue
            self.evaluations += 1
            snapshot, policy = self._replay.seen_by(topic, now, "tick" if name in due.by_tick else "consumer")
            if snapshot.trigger == "consumer" and asks_nothing(topic, policy):
                continue
            fresh = may_have_been(snapshot)[0][0]
            if (news := _news(topic, fresh, decide(fresh))) is not None:
                answers[name] = news
        return answers

    def _may_have_said(self, name: str, batch: RecordedBatch, trigger: str, then: Said) -> bool:
        """Return True if one of the possible cases leads to the recorded answer, or not all could be tried."""
        topic = self._replay.state.topics.get(name)
        if topic is None or topic.known is None:
            return False
        snapshot, _ = self._replay.seen_by(topic, batch.now, trigger)
        snapshots, are_all = may_have_been(snapshot)
        if not are_all and (recorded := _recorded_snapshot(batch, name)) is not None:
            snapshots, are_all = [seen_as_recorded(snapshot, recorded)], True
        if any(_news(topic, possible, decide(possible)) == then for possible in snapshots):
            return True
        if not are_all:
            self.untold += 1
        return not are_all


def _recorded_snapshot(batch: RecordedBatch, name: str) -> TopicSnapshot | None:
    """Return the snapshot of a decision on the topic; None: there is none, or `report` says that it is unreadable."""
    with suppress(ValueError):
        return next((snapshot_on_record(row) for row in batch.decisions if row["subject"] == name), None)
    return None


def _news(topic: TopicState, snapshot: TopicSnapshot, answer: Answer) -> Said:
    """Return the new rows that an answer would record, as text; None: none."""
    if isinstance(answer, Hold):
        if snapshot.trigger == "consumer" and answer.gate in (Gate.CONSUMER_DEMAND, Gate.ENTRY_BUCKETS):
            return None
        return None if answer.gate.value == topic.hold_gate else f"hold {answer.gate.value}"
    epoch, now = snapshot.layout.epoch, snapshot.now
    actions = (answer, *answer.also)
    new = [action for action in actions if not topic.was_observed_lately(epoch, action.action, action.arguments, now)]
    return ", ".join(_action(action.action, action.arguments) for action in new) or None


def _on_record(batch: RecordedBatch) -> dict[str, Said]:
    recorded: dict[str, Said] = {row["subject"]: f"hold {row['gate']}" for row in batch.holds}
    actions: dict[str, list[str]] = {}
    for row in sorted(batch.decisions, key=lambda row: (row["subject"], row["seq"])):
        actions.setdefault(row["subject"], []).append(_action(row["action"], json.loads(row["arguments"])))
    return {**recorded, **{subject: ", ".join(done) for subject, done in actions.items()}}


def _action(action: str, arguments: Mapping[str, Any]) -> str:
    buckets = f" into {arguments['bucketCount']}" if "bucketCount" in arguments else ""
    return f"{action} {'+'.join(map(str, arguments['segments']))}{buckets}"
