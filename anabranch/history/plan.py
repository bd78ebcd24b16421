"""Plan of the actions due now, by topic: the state from the lake, decided at the end of the record.

Stage: the read end, under `anabranch plan`. The state is rebuilt as `anabranch decisions replay` does it. No table
records when a load was last seen if its samples changed nothing, so all loads are assumed to be fresh: a silent
reporter is seen by the job, but not here.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, cast

from anabranch.history.recorded import RecordedHistory
from decisions.autoscale.answers import Hold
from decisions.autoscale.decide import decide
from decisions.autoscale.rates import segment_overload
from decisions.autoscale.snapshot import TopicSnapshot
from engine.agreement import may_have_been
from engine.autoscale.topics import ConfiguredPolicy
from engine.replay import AS_RECORDED, BucketReplay


@dataclass(frozen=True)
class Planned:
    """One action on one topic."""

    topic: str
    action: str
    segments: tuple[int, ...]
    reason: str
    """Reason as in `decisions`: a rate, `consumer-count`, `cold`, …"""
    overload: float | None
    """Of a split: the largest rate / split threshold of its segment; None: not known."""


@dataclass
class Plan:
    """Decisions of a tick at an instant."""

    at: int
    """Milliseconds."""
    topics: int = 0
    actions: list[Planned] = field(default_factory=list)
    held: dict[str, list[str]] = field(default_factory=dict)
    """Topics that would be held, by gate."""

    def to_json(self) -> dict[str, Any]:
        """Return the plan for scripts, without `at`."""
        return {
            "topics": self.topics,
            "actions": [
                {
                    "topic": action.topic,
                    "action": action.action,
                    "segments": action.segments,
                    "reason": action.reason,
                    "overload": action.overload,
                }
                for action in self.actions
            ],
            "holds": {gate: len(topics) for gate, topics in self.holds()},
        }

    def holds(self) -> list[tuple[str, list[str]]]:
        """Return the gates with the topics that each holds, those of the most topics first."""
        return sorted(self.held.items(), key=lambda gate: -len(gate[1]))


def make_plan(
    recorded: RecordedHistory, configured: ConfiguredPolicy, topics: Collection[str] | None = None
) -> Plan | None:
    """Return the decisions of a tick at the end of the record; None: it has no batch.

    `configured`: the job's policy now, for releases that did not record it. Raises what reading raises.
    """
    names = [name for name in recorded.topics if topics is None or name in topics]
    doubts: list[str] = []
    replayed = BucketReplay(AS_RECORDED, configured, doubts, **recorded.begun(names))
    end = None
    for chunk in recorded.chunks():
        for batch in chunk.of_bucket(names):
            replayed.take_in(batch)
            replayed.take_over(batch)
        end = max((now for now, _ in chunk.times), default=end)
    if end is None:
        return None
    plan = Plan(end)
    for name in names:
        if (snapshot := replayed.snapshot(name, end)) is not None:
            _add(plan, name, may_have_been(snapshot)[0][0])
    plan.actions.sort(key=lambda action: (-(action.overload or 0), action.topic))
    return plan


def _add(plan: Plan, topic: str, snapshot: TopicSnapshot) -> None:
    plan.topics += 1
    answer = decide(snapshot)
    if isinstance(answer, Hold):
        plan.held.setdefault(answer.gate.value, []).append(topic)
        return
    for action in (answer, *answer.also):
        segments = tuple(cast("list[int]", action.arguments["segments"]))
        load = snapshot.loads.get(segments[0]) if action.action == "split" else None
        ratio = None if load is None else segment_overload(load.rates, snapshot.policy)[0]
        plan.actions.append(Planned(topic, action.action, segments, action.reason, ratio))
