"""Smallest change of each single input that leads to another answer.

Stage: above `inputs`, below the command line. Pure: every candidate is put to `decide` itself, and each
change carries the snapshot on which it was verified.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from anabranch.history.explain.inputs import Input, inputs_of
from anabranch.query.wording import duration, instant, number_words
from decisions.autoscale.answers import Action, Answer, Hold, Merge, Rebucket, Split
from decisions.autoscale.decide import decide
from decisions.autoscale.gates import Gate
from decisions.autoscale.snapshot import TopicSnapshot
from schemas.printable import printable


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
        """Return whether its merge comes only after another merge window, under new thresholds."""
        actions = () if isinstance(self.answer, Hold) else (self.answer, *self.answer.also)
        is_other = self.changed.policy.merge_thresholds != seen.policy.merge_thresholds
        return is_other and any(isinstance(action, Merge) for action in actions)

    def to_json(self) -> dict[str, Any]:
        """Return the change for scripts."""
        return {"input": self.path, "is": self.value, "needed": self.needed, "then": answer_words(self.answer)}


def changes(snapshot: TopicSnapshot, segment: int | None = None) -> list[Change]:
    """Return the smallest change of each input that turns a hold into an action, or changes the action.

    With `segment`: that makes an action take the segment, or no longer take it. Changes by waiting come first, then
    loads, consumers, open or failed decisions, and the policy. A policy that splits a hot key's segment only because it
    no longer sees the key is no remedy, and is left out; the settings of hot keys themselves stay.
    """
    before = decide(snapshot)
    asked = _asked(before, segment)
    smallest: list[Change] = []
    settled: set[str] = set()
    for candidate in inputs_of(snapshot, segment):
        if candidate.instead_of in settled:
            continue
        change = _change(candidate, asked, segment)
        if change is not None and not _evades_hot_key(change, before):
            smallest.append(change)
            if candidate.instead_of is not None:
                settled.add(candidate.instead_of)
    return smallest


def answer_words(answer: Answer) -> str:
    """Return the answer in a few words: `split segment 3`, `merge segments 4 and 5`, `hold, merge-window`."""
    if isinstance(answer, Hold):
        return f"hold, {answer.gate.value}"
    return ", ".join(_action_words(action) for action in (answer, *answer.also))


def _action_words(action: Action) -> str:
    segments = " and ".join(map(str, action.ids))
    if isinstance(action, Rebucket):
        several = f"segment{'s' * (len(action.ids) > 1)} {segments}"
        return f"give {several} {action.bucket_count} entry buckets"
    return f"split segment {segments}" if isinstance(action, Split) else f"merge segments {segments}"


def segments_of(answer: Answer) -> tuple[int, ...]:
    """Return the segments that an answer acts on."""
    return () if isinstance(answer, Hold) else tuple(n for action in (answer, *answer.also) for n in action.ids)


def _evades_hot_key(change: Change, before: Answer) -> bool:
    """Return True if the policy after the change splits a segment that one hot key fills, by no field of hot keys."""
    _, _, name = change.path.partition("policy.")
    if not name or name.startswith("hotKey") or not isinstance(before, Hold):
        return False
    keyed = {reading.segment for reading in before.gates if reading.gate is Gate.ONE_HOT_KEY and not reading.passed}
    actions = () if isinstance(change.answer, Hold) else (change.answer, *change.answer.also)
    return any(isinstance(action, Split) and keyed.intersection(action.ids) for action in actions)


def _asked(answer: Answer, segment: int | None) -> object:
    """Return the part of an answer that is compared: two answers with equal parts count as equal."""
    if segment is not None:
        return segment in segments_of(answer)
    return None if isinstance(answer, Hold) else {(action.action, *action.ids) for action in (answer, *answer.also)}


def _change(candidate: Input, asked: object, segment: int | None) -> Change | None:
    def leads_away(step: int) -> bool:
        changed = candidate.changed(step)
        return changed is not None and _asked(decide(changed), segment) != asked

    if (step := smallest_step(leads_away, candidate.most, candidate.marks)) is None:
        return None
    changed = candidate.changed(step)
    assert changed is not None
    almost = candidate.changed(step - 1) if step > 1 else None
    return Change(candidate.path, candidate.value, candidate.value_after(step), decide(changed), changed, almost)


_RATES = {"msgRateIn": "msg/s in", "bytesRateIn": "B/s in", "msgRateOut": "msg/s out", "bytesRateOut": "B/s out"}


def change_words(change: Change, snapshot: TopicSnapshot) -> str:
    """Return a change as a condition: `at 12,401 msg/s in on segment 3 (now 8,000)`."""
    head, _, tail = change.path.partition(".")
    if head == "now":
        wait = int(change.needed or 0) - snapshot.now
        return f"in {duration(wait)}, at {instant(snapshot.now + wait)}, if all else stays as it is"
    if head == "loads":
        number, _, name = tail.partition(".")
        if name == "seenAt":
            return f"if the load of segment{'s' * (',' in number)} {number.replace(',', ', ')} were reported again"
        now = "not reported" if change.value is None else f"now {number_words(change.value)}"
        return f"at {number_words(change.needed)} {_RATES[name]} on segment {number} ({now})"
    if head == "consumers":
        if tail == "*":
            return f"with at most {number_words(change.needed)} consumers in any STREAM or CHECKPOINT subscription"
        more = int(change.needed or 0) - int(change.value or 0)
        return (
            f"with {more} more consumer{'s' * (more != 1)} of {printable(tail)} ({number_words(change.needed)} in all)"
        )
    if head == "inFlight":
        return "if its open decision had ended"
    if head == "failures":
        return f"without the {number_words(change.value)} decisions that ended without effect before"
    later = ", after another merge window" if change.restarts_windows(snapshot) else ""
    return f"with {tail} {_said(change.needed)} (now {_said(change.value)}){later}"


def _said(value: float | bool | None) -> str:
    return str(value).lower() if isinstance(value, bool) else number_words(value)


def smallest_step(leads_away: Callable[[int], bool], most: int, marks: Iterable[int] = ()) -> int | None:
    """Return a number of steps, 1 to `most`, that leads away while one fewer does not; None: no try does.

    `marks`: steps at which the answer may change. Each mark is tried with its two neighbours, and powers of two between
    them; the change between the last try that stays and the first that leads away is found by bisection. The result is
    the overall minimum if the answer changes only once, or only at marks.
    """
    tries = {mark + more for mark in marks for more in (-1, 0, 1)} | {most}
    step = 1
    while step < most:
        tries.add(step)
        step *= 2
    stays = 0
    for away in sorted(attempt for attempt in tries if 0 < attempt <= most):
        if leads_away(away):
            break
        stays = away
    else:
        return None
    while away - stays > 1:
        middle = (stays + away) // 2
        if leads_away(middle):
            away = middle
        else:
            stays = middle
    return away
