"""`anabranch decisions decide` for family `bookies`: a line in, an answer out, as JSON or as tables."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic_core import from_json

from anabranch.query.wording import instant
from decisions.bookkeeper.decide import decide
from decisions.bookkeeper.gates import SENTENCES, BookieGate
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
    """Return the keys of a snapshot of this family that no model has, at any depth. Most are misspelt."""
    parsed = _snapshot(line)
    try:
        return set() if parsed is None else set(_unknown(BookieSnapshot.model_validate_json(line), parsed))
    except ValueError:
        return set()


def _unknown(model: object, raw: object) -> Iterator[str]:
    if isinstance(model, BaseModel) and isinstance(raw, dict):
        fields = type(model).model_fields
        names = {name: name for name in fields} | {field.alias or name: name for name, field in fields.items()}
        yield from (key for key in raw if key not in names)
        for key in raw.keys() & names.keys():
            yield from _unknown(getattr(model, names[key]), raw[key])
    elif isinstance(model, list) and isinstance(raw, list):
        for inside, part in zip(model, raw, strict=True):
            yield from _unknown(inside, part)
    elif isinstance(model, dict) and isinstance(raw, dict):
        for key in model.keys() & raw.keys():
            yield from _unknown(model[key], raw[key])


def _snapshot(line: bytes) -> dict[str, Any] | None:
    if b'"bookies"' not in line:
        return None
    try:
        parsed: Any = from_json(line)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) and parsed.get("family") == "bookies" else None


def decide_line(line: bytes, explain: bool) -> bytes:
    """The answer to one line. Raises `ValidationError`."""
    snapshot = BookieSnapshot.model_validate_json(line)
    answer = decide(snapshot)
    if explain:
        return explain_answer(answer, snapshot.now).encode("utf-8", "backslashreplace")
    return answer.model_dump_json(by_alias=True, exclude_none=True).encode()


def explain_answer(answer: BookieAnswer, now: int) -> str:
    """Return an answer as lines: headline, steps, faults with reasons, every gate, and an empty line."""
    epoch = "" if answer.epoch is None else f", epoch {answer.epoch}"
    lines = [
        f"{printable(answer.cluster)} at {instant(now)}: {answer.operation}, phase {answer.phase}{epoch}",
        f"  {printable(_headline(answer))}",
    ]
    if answer.registry:
        lines.append(
            printable(f"  registry: {', '.join(f'{cluster.name} {cluster.status}' for cluster in answer.registry)}")
        )
    if answer.counts:
        lines.append("  " + ", ".join(f"{name} {count:,}" for name, count in answer.counts.items() if count))
    lines += _format_rows("steps", [_STEPS, *(_step(step) for step in answer.steps)])
    lines += list_troubles(answer)
    lines += _format_rows("gates", [_GATES, *(_gate(reading) for reading in answer.readings)])
    return "\n".join([*lines, ""])


def list_troubles(answer: BookieAnswer) -> list[str]:
    """Everything that is not as it should be, each with its reason, and what tries it again."""
    texts = [
        *(f"failed: ledger {failed.ledger} of {failed.object}: {failed.reason}" for failed in answer.failed_ledgers),
        *(f"not promoted: {managed}: its record changed during every try" for managed in answer.not_promoted),
        *(
            f"rolled over: {managed}: its new ledger is on the target"
            for managed in answer.promoted_via_rollover_fallback
        ),
        *(f"left behind: {loss.object}: {loss.detail}" for loss in answer.losses),
        *(
            f"not known: ledger {attribution.ledger} of {attribution.object}: {attribution.reason}"
            for attribution in answer.attributions
            if attribution.how == "corruption"
        ),
        *(
            f"{violation.invariant} does not hold: {violation.object}: {violation.detail}"
            for violation in answer.violations
        ),
    ]
    lines = [printable(f"  {line}") for line in texts[:MAX_LINES]]
    if len(texts) > MAX_LINES:
        lines.append(f"  and {len(texts) - MAX_LINES:,} more; JSON has all")
    if answer.retry:
        lines.append(printable(f"  to try again: {answer.retry}"))
    return lines


def _headline(answer: BookieAnswer) -> str:
    if answer.operation == "check":
        return f"{len(answer.violations)} violations" if answer.violations else "all that can be seen is in order"
    if answer.gate is not None:
        return (
            f"{answer.action} ({answer.code}), at {answer.gate}: {answer.reason or SENTENCES[BookieGate(answer.gate)]}"
        )
    if answer.reason:
        return f"{answer.action}: {answer.reason}"
    return f"{len(answer.steps)} steps" if answer.action == "steps" else answer.action


def _format_rows(kind: str, rows: Sequence[Sequence[str]]) -> list[str]:
    if len(rows) == 1:
        return []
    shown = rows[: MAX_LINES + 1]
    widths = [max(len(row[column]) for row in shown) for column in range(len(rows[0]))]
    lines = [_line(row, widths) for row in shown]
    if len(rows) > len(shown):
        lines.append(f"  of {len(rows) - 1:,} {kind} the first {MAX_LINES}; JSON has all")
    return lines


def _line(row: Iterable[str], widths: Sequence[int]) -> str:
    return "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _step(step: Step) -> tuple[str, ...]:
    ledger = "" if step.ledger is None else str(step.ledger)
    return (">", step.phase, step.action, ledger, printable(step.object), printable(step.reason))


def _gate(reading: BookieReading) -> tuple[str, ...]:
    means = reading.detail or ("" if reading.passed else SENTENCES[BookieGate(reading.gate)])
    numbers = (
        "" if number is None else f"{number:.15g}" for number in (reading.measured, reading.limit, reading.margin)
    )
    return ("+" if reading.passed else "-", printable(reading.object or ""), reading.gate, *numbers, printable(means))
