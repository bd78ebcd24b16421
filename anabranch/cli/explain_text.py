"""An explanation for people: why in words, the gates, what it saw, and what would change the answer.

Stage: under `anabranch explain`, above `anabranch.query.wording`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from anabranch.history.explain.changes import Change, answer_words, change_words, segments_of
from anabranch.history.explain.slowness import slowness_words
from anabranch.query.wording import duration, explained, instant
from decisions.autoscale.answers import Answer, Hold
from decisions.autoscale.gates import DESCRIPTIONS, Gate
from decisions.autoscale.rates import heat, overload
from decisions.autoscale.snapshot import MANAGED, TopicSnapshot
from schemas.printable import printable

if TYPE_CHECKING:
    from anabranch.history.explain.application import Became
    from anabranch.history.explain.record import Decided, Explanation

MOST_SEGMENTS = 24
MOST_CHANGES = 14
_HEADS = ("segment", "hashes", "msg/s in", "B/s in", "msg/s out", "B/s out", "of split", "of merge", "record", "seen")


def explanation_text(found: Explanation, changes: Sequence[Change], segment: int | None) -> str:
    """All of it; ends without an empty line."""
    snapshot = found.snapshot
    parts = [
        explained(snapshot, found.answer).rstrip(),
        "\n".join(_on_record(found)),
        "\n".join(_saw(snapshot, found.answer, segment)),
        "\n".join(_changes(snapshot, found.answer, changes, segment)),
        "\n  ".join(["is it slow?", *slowness_words(found.slowness)]),
    ]
    if found.silence is not None:
        before, after = found.silence
        parts.insert(
            0,
            (
                f"not evaluated: no batch of the job is on record from {instant(before)} to {instant(after)} "
                f"({duration(after - before)}): it was not at work.\n"
                f"What it would have found at {instant(found.asked_at)}, by what was on record before:"
            ),
        )
    return "\n\n".join(parts)


def _on_record(found: Explanation) -> list[str]:
    lines = []
    if found.decision is not None:
        lines.append(f"decided at {instant(found.decision.at)}, decision {found.decision.decision_id}")
    row = found.hold
    if row is not None and found.held_since is not None:
        unit = DESCRIPTIONS[Gate(row["gate"])].unit
        told = [
            f"{name} {duration(row[name]) if unit == 'ms' else f'{row[name]:.4g}'}"
            for name in ("measured", "limit")
            if row[name] is not None
        ]
        numbers = f" ({', '.join(told)} then)" if told else ""
        lines.append(f"on record: hold {row['seq']}, {row['gate']}{numbers}, since {instant(found.held_since)}")
    elif found.decision is None:
        lines.append("on record: no hold that still stands")
    if found.last_decision is not None and found.decision is None:
        lines.append(f"last decision: {_decided(found.last_decision)}")
    if found.last_decision is not None:
        lines.append(f"what became of it: {became_text(found.became)}")
    last, following = found.evaluations
    told = [f"{name} {instant(at)}" for name, at in (("last", last), ("next", following)) if at is not None]
    between = "" if found.decision is not None or last == found.asked_at else "; this is what one at that instant finds"
    lines.append(f"evaluated: {', '.join(told)}{between}" if told else "no evaluation is on record within an hour")
    return lines


def _decided(decision: Decided) -> str:
    return f"{decision.action} {'+'.join(map(str, decision.segments))} at {instant(decision.at)}"


def became_text(found: Became | None) -> str:
    if found is None:
        return "no executor has said anything of it; is one at work? `anabranch executor status`"
    why = "" if found.error is None else f": {printable(found.error)}"
    if found.status == "observed":
        return f"observed at {_at(found)}, nothing was called: the executor was in mode observe{why}"
    if found.status == "intent":
        return f"begun at {_at(found)}, and no end of it is on record{why}"
    if found.status == "waits":
        return f"it waits since {_at(found)} for a brake{why}"
    return f"{found.status} at {_at(found)}{why}"


def _at(found: Became) -> str:
    return instant(round(found.at.timestamp() * 1000))


def _saw(snapshot: TopicSnapshot, answer: Answer, segment: int | None) -> list[str]:
    """Layout, loads and consumers."""
    rows: list[tuple[str, ...]] = [_HEADS]
    chosen = segments_of(answer)
    bound = answer.binding.segment if isinstance(answer, Hold) else None
    active = list(snapshot.layout.active)
    shown = [one for one in active if segment in (None, one.segment_id)]
    if len(shown) > MOST_SEGMENTS:
        shown.sort(key=lambda one: (one.segment_id not in (*chosen, bound), -_score(snapshot, one.segment_id)))
        shown = sorted(shown[:MOST_SEGMENTS], key=lambda one: one.start)
    for one in shown:
        mark = "*" if one.segment_id in (*chosen, bound) else ""
        ends = f"{one.start:04x}-{one.end:04x}"
        load = snapshot.loads.get(one.segment_id)
        if load is None:
            rows.append((f"{one.segment_id}{mark}", ends, *["no load"] + [""] * 7))
            continue
        rows.append(
            (
                f"{one.segment_id}{mark}",
                ends,
                *map(_rate, load.rates),
                f"{overload(load.rates, snapshot.policy)[0]:.0%}",
                _share(heat(load.rates, snapshot.policy)),
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
    told = [
        f"{printable(name)} {count} {kind}{'' if kind in MANAGED else ' (needs no segments)'}"
        for name, (kind, count) in sorted(snapshot.consumers.items())
    ]
    lines.append(f"  consumers: {', '.join(told) or 'none'}")
    return lines


def _score(snapshot: TopicSnapshot, number: int) -> float:
    load = snapshot.loads.get(number)
    return 0.0 if load is None else overload(load.rates, snapshot.policy)[0]


def _changes(snapshot: TopicSnapshot, answer: Answer, changes: Sequence[Change], segment: int | None) -> list[str]:
    what = "what would change the answer" if segment is None else f"what would change it for segment {segment}"
    if not changes:
        return [f"{what}: no change of a single input"]
    lines = [f"{what}, each by itself"]
    words = [change_words(change, snapshot) for change in changes[:MOST_CHANGES]]
    width = max(map(len, words))
    lines += [
        f"  {one.ljust(width)}  -> {answer_words(change.answer)}" for one, change in zip(words, changes, strict=False)
    ]
    if len(changes) > MOST_CHANGES:
        lines.append(f"  and {len(changes) - MOST_CHANGES} more: --output json")
    return lines


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"


def _share(value: float) -> str:
    return f"{value:.0%}" if value < 1e6 else "-"
