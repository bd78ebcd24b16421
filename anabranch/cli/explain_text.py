"""An explanation for people: why in words, the gates, what it saw, and what would change the answer.

Stage: under `anabranch explain`; `anabranch.history.explain` finds what it says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from anabranch.history.explain.changes import Change, answer_words, change_words, segments_of
from anabranch.history.explain.slowness import slowness_words
from anabranch.query.wording import duration, explained, instant, reading_words
from decisions.autoscale.answers import Answer, Hold
from decisions.autoscale.rates import segment_heat, segment_overload
from decisions.autoscale.snapshot import MANAGED, TopicSnapshot
from schemas.printable import printable

if TYPE_CHECKING:
    from anabranch.history.explain.application import Became
    from anabranch.history.explain.checkpoints import Decided
    from anabranch.history.explain.record import Explanation

MOST_SEGMENTS = 24
MOST_CHANGES = 14
_HEADS = ("segment", "hashes", "msg/s in", "B/s in", "msg/s out", "B/s out", "of split", "of merge", "record", "seen")


def explanation_text(explanation: Explanation, changes: Sequence[Change], segment: int | None) -> str:
    """All of it; ends without an empty line."""
    snapshot = explanation.snapshot
    parts = [
        explained(snapshot, explanation.answer).rstrip(),
        "\n".join(_on_record(explanation)),
        "\n".join(_inputs_text(snapshot, explanation.answer, segment)),
        "\n".join(_changes(snapshot, explanation.answer, changes, segment)),
        "\n  ".join(["is it slow?", *slowness_words(explanation.slowness)]),
    ]
    if explanation.silence is not None:
        before, after = explanation.silence
        parts.insert(
            0,
            (
                f"not evaluated: no batch of the job is on record from {instant(before)} to {instant(after)} "
                f"({duration(after - before)}): it was not at work.\n"
                f"What it would have found at {instant(explanation.asked_at)}, by what was on record before:"
            ),
        )
    return "\n\n".join(parts)


def _on_record(explanation: Explanation) -> list[str]:
    lines = []
    if explanation.decision is not None:
        lines.append(f"decided at {instant(explanation.decision.at)}, decision {explanation.decision.decision_id}")
    row = explanation.hold
    if row is not None and explanation.held_since is not None:
        figures = reading_words(row["gate"], row["measured"], row["limit"])
        parts = [f"{name} {words}" for name, words in zip(("measured", "limit"), figures, strict=True) if words]
        numbers = f" ({', '.join(parts)} then)" if parts else ""
        lines.append(f"on record: hold {row['seq']}, {row['gate']}{numbers}, since {instant(explanation.held_since)}")
    elif explanation.decision is None:
        lines.append("on record: no hold that still stands")
    if explanation.last_decision is not None and explanation.decision is None:
        lines.append(f"last decision: {_decided_text(explanation.last_decision)}")
    if explanation.last_decision is not None:
        lines.append(f"what became of it: {became_text(explanation.became)}")
    last, following = explanation.evaluations
    parts = [
        f"{name} {instant(evaluated_at)}"
        for name, evaluated_at in (("last", last), ("next", following))
        if evaluated_at is not None
    ]
    between = (
        ""
        if explanation.decision is not None or last == explanation.asked_at
        else "; this is what one at that instant finds"
    )
    lines.append(f"evaluated: {', '.join(parts)}{between}" if parts else "no evaluation is on record within an hour")
    return lines


def _decided_text(decision: Decided) -> str:
    return f"{decision.action} {'+'.join(map(str, decision.segments))} at {instant(decision.at)}"


def became_text(became: Became | None) -> str:
    if became is None:
        return "no executor has said anything of it; is one at work? `anabranch decisions waiting`"
    why = "" if became.error is None else f": {printable(became.error)}"
    if became.status == "observed":
        return f"observed at {_status_text(became)}, nothing was called: the executor was in mode observe{why}"
    if became.status == "intent":
        return f"begun at {_status_text(became)}, and no end of it is on record{why}"
    if became.status == "waits":
        return f"it has waited since {_status_text(became)} for a safeguard{why}"
    return f"{became.status} at {_status_text(became)}{why}"


def _status_text(became: Became) -> str:
    return instant(round(became.at.timestamp() * 1000))


def _inputs_text(snapshot: TopicSnapshot, answer: Answer, segment: int | None) -> list[str]:
    """Layout, loads and consumers."""
    rows: list[tuple[str, ...]] = [_HEADS]
    chosen = segments_of(answer)
    bound = answer.binding.segment if isinstance(answer, Hold) else None
    active = list(snapshot.layout.active)
    shown = [candidate for candidate in active if segment in (None, candidate.segment_id)]
    if len(shown) > MOST_SEGMENTS:
        shown.sort(
            key=lambda candidate: (
                candidate.segment_id not in (*chosen, bound),
                -_score(snapshot, candidate.segment_id),
            )
        )
        shown = sorted(shown[:MOST_SEGMENTS], key=lambda candidate: candidate.start)
    for candidate in shown:
        mark = "*" if candidate.segment_id in (*chosen, bound) else ""
        ends = f"{candidate.start:04x}-{candidate.end:04x}"
        if (load := snapshot.loads.get(candidate.segment_id)) is None:
            rows.append((f"{candidate.segment_id}{mark}", ends, *["no load"] + [""] * 7))
            continue
        rows.append(
            (
                f"{candidate.segment_id}{mark}",
                ends,
                *map(_rate, load.rates),
                f"{segment_overload(load.rates, snapshot.policy)[0]:.0%}",
                _share(segment_heat(load.rates, snapshot.policy)),
                f"{duration(snapshot.now - load.modified_at)} old",
                f"{duration(snapshot.now - load.last_seen_at)} ago",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADS))]
    lines = ["what it saw: load by segment, the largest rate in percent of its split and its merge threshold"]
    lines += [
        "  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    if len(active) > len(shown) and segment is None:
        lines.append(f"  and {len(active) - len(shown)} more: --output json, or --segment")
    subscriptions = [
        f"{printable(name)} {count} {kind}{'' if kind in MANAGED else ' (needs no segments)'}"
        for name, (kind, count) in sorted(snapshot.consumers.items())
    ]
    lines.append(f"  consumers: {', '.join(subscriptions) or 'none'}")
    return lines


def _score(snapshot: TopicSnapshot, number: int) -> float:
    load = snapshot.loads.get(number)
    return 0.0 if load is None else segment_overload(load.rates, snapshot.policy)[0]


def _changes(snapshot: TopicSnapshot, answer: Answer, changes: Sequence[Change], segment: int | None) -> list[str]:
    heading = "what would change the answer" if segment is None else f"what would change it for segment {segment}"
    if not changes:
        return [f"{heading}: no change of a single input"]
    lines = [f"{heading}, each by itself"]
    words = [change_words(change, snapshot) for change in changes[:MOST_CHANGES]]
    width = max(map(len, words))
    lines += [
        f"  {change_text.ljust(width)}  -> {answer_words(change.answer)}"
        for change_text, change in zip(words, changes, strict=False)
    ]
    if len(changes) > MOST_CHANGES:
        lines.append(f"  and {len(changes) - MOST_CHANGES} more: --output json")
    return lines


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"


def _share(value: float) -> str:
    return f"{value:.0%}" if value < 1e6 else "-"
