"""`anabranch decide` for the family `bookies`: a line in, an answer out, as JSON or as tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic_core import from_json

from anabranch.query.wording import instant
from decisions.bookkeeper.decide import decide
from decisions.bookkeeper.gates import SENTENCES, Gate
from schemas.bookie_answers import BookieAnswer, BookieReading, Step
from schemas.bookies import BookieSnapshot
from schemas.printable import printable

MAX_LINES = 200
"""Steps, ledgers and gates that are shown; JSON has all."""
_STEPS = ("", "phase", "action", "ledger", "object", "because")
_GATES = ("", "object", "gate", "measured", "limit", "margin", "what it means")


def is_bookie_snapshot(line: bytes) -> bool:
    """Return whether a line is of this family, which it says."""
    return _snapshot(line) is not None


def unknown_keys(line: bytes) -> set[str]:
    """Return the keys of a snapshot of this family that no model has, at any depth.

    Most are misspelt.
    """
    found = _snapshot(line)
    try:
        return set() if found is None else set(_unknown(BookieSnapshot.model_validate_json(line), found))
    except ValueError:
        return set()


def _unknown(one: object, raw: object) -> Iterator[str]:
    if isinstance(one, BaseModel) and isinstance(raw, dict):
        fields = type(one).model_fields
        names = {name: name for name in fields} | {field.alias or name: name for name, field in fields.items()}
        yield from (key for key in raw if key not in names)
        for key in raw.keys() & names.keys():
            yield from _unknown(getattr(one, names[key]), raw[key])
    elif isinstance(one, list) and isinstance(raw, list):
        for inside, part in zip(one, raw, strict=True):
            yield from _unknown(inside, part)
    elif isinstance(one, dict) and isinstance(raw, dict):
        for key in one.keys() & raw.keys():
            yield from _unknown(one[key], raw[key])


def _snapshot(line: bytes) -> dict[str, Any] | None:
    if b'"bookies"' not in line:
        return None
    try:
        found: Any = from_json(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and found.get("family") == "bookies" else None


def decided(line: bytes, explain: bool) -> bytes:
    """The answer to one line. Raises `ValidationError`."""
    snapshot = BookieSnapshot.model_validate_json(line)
    answer = decide(snapshot)
    if explain:
        return explained(answer, snapshot.now).encode("utf-8", "backslashreplace")
    return answer.model_dump_json(by_alias=True, exclude_none=True).encode()


def explained(answer: BookieAnswer, now: int) -> str:
    """Return an answer as text: headline, steps, faults with their reasons, and every gate.

    It ends with an empty line.
    """
    epoch = "" if answer.epoch is None else f", epoch {answer.epoch}"
    lines = [
        f"{printable(answer.cluster)} at {instant(now)}: {answer.operation}, phase {answer.phase}{epoch}",
        f"  {printable(_headline(answer))}",
    ]
    if answer.registry:
        lines.append(printable(f"  registry: {', '.join(f'{one.name} {one.status}' for one in answer.registry)}"))
    if answer.counts:
        lines.append("  " + ", ".join(f"{name} {count:,}" for name, count in answer.counts.items() if count))
    lines += _shown("steps", [_STEPS, *(_step(one) for one in answer.steps)])
    lines += troubles(answer)
    lines += _shown("gates", [_GATES, *(_gate(one) for one in answer.readings)])
    return "\n".join([*lines, ""])


def troubles(answer: BookieAnswer) -> list[str]:
    """Everything that is not as it should be, each with its reason, and what tries it again."""
    said = [
        *(f"failed: ledger {one.ledger} of {one.object}: {one.reason}" for one in answer.failed_ledgers),
        *(f"not promoted: {one}: its record changed during every try" for one in answer.not_promoted),
        *(f"rolled over: {one}: its new ledger is on the target" for one in answer.promoted_via_rollover_fallback),
        *(f"left behind: {one.object}: {one.detail}" for one in answer.losses),
        *(
            f"not known: ledger {one.ledger} of {one.object}: {one.reason}"
            for one in answer.attributions
            if one.how == "corruption"
        ),
        *(f"{one.invariant} does not hold: {one.object}: {one.detail}" for one in answer.violations),
    ]
    lines = [printable(f"  {one}") for one in said[:MAX_LINES]]
    if len(said) > MAX_LINES:
        lines.append(f"  and {len(said) - MAX_LINES:,} more; JSON has all")
    if answer.retry:
        lines.append(printable(f"  to try again: {answer.retry}"))
    return lines


def _headline(answer: BookieAnswer) -> str:
    if answer.operation == "check":
        return f"{len(answer.violations)} violations" if answer.violations else "all that can be seen is in order"
    if answer.gate is not None:
        return f"{answer.action} ({answer.code}), at {answer.gate}: {answer.reason or SENTENCES[Gate(answer.gate)]}"
    if answer.reason:
        return f"{answer.action}: {answer.reason}"
    return f"{len(answer.steps)} steps" if answer.action == "steps" else answer.action


def _shown(what: str, rows: Sequence[Sequence[str]]) -> list[str]:
    if len(rows) == 1:
        return []
    shown = rows[: MAX_LINES + 1]
    widths = [max(len(row[column]) for row in shown) for column in range(len(rows[0]))]
    lines = [_line(row, widths) for row in shown]
    if len(rows) > len(shown):
        lines.append(f"  of {len(rows) - 1:,} {what} the first {MAX_LINES}; JSON has all")
    return lines


def _line(row: Iterable[str], widths: Sequence[int]) -> str:
    return "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _step(one: Step) -> tuple[str, ...]:
    ledger = "" if one.ledger is None else str(one.ledger)
    return (">", one.phase, one.action, ledger, printable(one.object), printable(one.reason))


def _gate(one: BookieReading) -> tuple[str, ...]:
    means = one.detail or ("" if one.passed else SENTENCES[Gate(one.gate)])
    numbers = ("" if number is None else f"{number:.15g}" for number in (one.measured, one.limit, one.margin))
    return ("+" if one.passed else "-", printable(one.object or ""), one.gate, *numbers, printable(means))
