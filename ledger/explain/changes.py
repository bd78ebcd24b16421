"""Smallest change of each single input that leads to another answer.

Stage: above `inputs` and `search`, below the command line. Pure: every candidate is put to `decide` itself, and each
change carries the snapshot on which it was verified.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from decisions.autoscale.answers import Action, Answer, Hold, Merge, Rebucket, Split
from decisions.autoscale.decide import decide
from decisions.autoscale.snapshot import TopicSnapshot
from ledger.explain.inputs import Input, inputs_of
from ledger.explain.search import smallest_step


@dataclass(frozen=True)
class Change:
    """Smallest change of one input that leads to another answer."""

    path: str
    """By its name in a snapshot: `loads.3.msgRateIn`, `policy.maxSegments`, `now` (milliseconds)."""
    value: float | bool | None
    """Current value; None: there is none. Of durations of the policy: seconds."""
    needed: float | bool | None
    """Value after the change."""
    answer: Answer
    """Answer of `decide` after the change."""
    changed: TopicSnapshot
    """Snapshot of that answer."""
    almost: TopicSnapshot | None
    """With one step less, to which the answer is still the old one; None: it is a single step."""

    def restarts_windows(self, seen: TopicSnapshot) -> bool:
        """Return True if the change leads to a merge that the job makes only after another merge window.

        The window begins with the new thresholds.
        """
        actions = () if isinstance(self.answer, Hold) else (self.answer, *self.answer.also)
        is_other = self.changed.policy.merge_thresholds != seen.policy.merge_thresholds
        return is_other and any(isinstance(one, Merge) for one in actions)

    def to_json(self) -> dict[str, Any]:
        """Return the change for scripts."""
        return {"input": self.path, "is": self.value, "needed": self.needed, "then": answer_words(self.answer)}


def changes(snapshot: TopicSnapshot, segment: int | None = None) -> list[Change]:
    """Return the smallest change of each input that turns a hold into an action, or changes the action.

    With `segment`: that makes an action take the segment, or no longer take it. Changes by waiting come first, then
    loads, consumers, open or failed decisions, and the policy.
    """
    asked = _asked(decide(snapshot), segment)
    found: list[Change] = []
    settled: set[str] = set()
    for one in inputs_of(snapshot, segment):
        if one.instead_of in settled:
            continue
        change = _change(one, asked, segment)
        if change is not None:
            found.append(change)
            if one.instead_of is not None:
                settled.add(one.instead_of)
    return found


def answer_words(answer: Answer) -> str:
    """Return the answer in a few words: `split segment 3`, `merge segments 4 and 5`, `hold, merge-window`."""
    if isinstance(answer, Hold):
        return f"hold, {answer.gate.value}"
    return ", ".join(_action_words(one) for one in (answer, *answer.also))


def _action_words(action: Action) -> str:
    segments = " and ".join(map(str, action.ids))
    if isinstance(action, Rebucket):
        several = f"segment{'s' * (len(action.ids) > 1)} {segments}"
        return f"give {several} {action.bucket_count} entry buckets"
    return f"split segment {segments}" if isinstance(action, Split) else f"merge segments {segments}"


def segments_of(answer: Answer) -> tuple[int, ...]:
    """Return the segments that an answer acts on."""
    return () if isinstance(answer, Hold) else tuple(n for one in (answer, *answer.also) for n in one.ids)


def _asked(answer: Answer, segment: int | None) -> object:
    """Return the part of an answer that is compared: two answers with equal parts count as equal."""
    if segment is not None:
        return segment in segments_of(answer)
    return None if isinstance(answer, Hold) else {(one.action, *one.ids) for one in (answer, *answer.also)}


def _change(one: Input, asked: object, segment: int | None) -> Change | None:
    def leads_away(step: int) -> bool:
        changed = one.changed(step)
        return changed is not None and _asked(decide(changed), segment) != asked

    step = smallest_step(leads_away, one.most, one.marks)
    if step is None:
        return None
    changed = one.changed(step)
    assert changed is not None
    almost = one.changed(step - 1) if step > 1 else None
    return Change(one.path, one.value, one.value_after(step), decide(changed), changed, almost)
