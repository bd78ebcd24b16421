"""`anabranch decisions decide` for family `bundles`: a line in, an answer out, as JSON or as tables."""

from collections.abc import Sequence
from typing import Any

from pydantic_core import from_json

from anabranch.query.wording import instant, number_words
from decisions.bundles.decide import decide
from decisions.bundles.gates import SENTENCES, BundleGate
from schemas.bundles import BundleAnswer, BundleReading, BundleSnapshot
from schemas.printable import printable

_KEYS = {*BundleSnapshot.model_fields, *(field.alias or name for name, field in BundleSnapshot.model_fields.items())}
_HEADINGS = ("", "broker", "bundle", "gate", "measured", "limit", "margin", "what it means")


def is_bundle_snapshot(line: bytes) -> bool:
    """Return True if a line is of this family: by its own field, or with brokers and without a layout."""
    return _snapshot(line) is not None


def unknown_keys(line: bytes) -> set[str]:
    """The keys of a snapshot of this family that no rule could read: misspelt ones, mostly.

    Objects inside of it are Pulsar's own, and have many fields that no rule reads.
    """
    return set(_snapshot(line) or ()) - _KEYS


def _snapshot(line: bytes) -> dict[str, Any] | None:
    if b'"family"' not in line and b'"brokers"' not in line and b'"brokerLoadData"' not in line:
        return None
    try:
        parsed: Any = from_json(line)
    except ValueError:
        return None
    if not isinstance(parsed, dict) or "layout" in parsed:
        return None
    is_named = parsed.get("family") == "bundles"
    is_alike = "family" not in parsed and bool({"brokers", "brokerLoadData"} & set(parsed))
    return parsed if is_named or is_alike else None


def decide_line(line: bytes, explain: bool) -> bytes:
    """The answer to one line. Raises `ValidationError`, and `ConfigurationError` for settings."""
    snapshot = BundleSnapshot.model_validate_json(line)
    answer = decide(snapshot)
    if explain:
        return explain_answer(snapshot, answer).encode("utf-8", "backslashreplace")
    return answer.model_dump_json(by_alias=True, exclude_none=True).encode()


def explain_answer(snapshot: BundleSnapshot, answer: BundleAnswer) -> str:
    """A headline, what is done, and every gate that a broker or a bundle came to; ends with an empty line."""
    lines = [
        f"{printable(snapshot.cluster)} at {instant(snapshot.now)}: {answer.operation} by {answer.strategy}, "
        f"{defaults_of(answer.profile)}",
        f"  {_headline(answer)}",
    ]
    for decision in answer.decisions:
        source = f" from {printable(decision.source_broker)}" if decision.source_broker else ""
        to = f" to {printable(decision.destination_broker)}" if decision.destination_broker else ""
        boundaries = f" at {', '.join(decision.boundaries)}" if decision.boundaries else ""
        lines.append(
            f"  {decision.action} {printable(decision.bundle)}{source}{to}{boundaries}, because of {decision.reason}"
        )
    for tie in answer.ties:
        if len(tie.brokers) > 1:
            lines.append(f"  among {printable(', '.join(tie.brokers))} the seed took {printable(tie.chosen)}")
    return "\n".join([*lines, *readings_table(answer.readings), ""])


def defaults_of(profile: str) -> str:
    """Return the origin of a profile's defaults, in words."""
    return "our own defaults" if profile == "default" else f"defaults of Pulsar {profile}"


def readings_table(readings: Sequence[BundleReading]) -> list[str]:
    """Gates as lines of a table, with its headings."""
    rows = [_HEADINGS, *(_row(reading) for reading in readings)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _headline(answer: BundleAnswer) -> str:
    upstream = f" ({answer.label}: {answer.reason})" if answer.label else ""
    if answer.action != "hold":
        return f"{answer.action}{upstream}"
    if answer.gate is None:
        return f"hold{upstream}: there is nothing to do"
    return f"hold{upstream}, last at {answer.gate}: {SENTENCES[BundleGate(answer.gate)]}"


def _row(reading: BundleReading) -> tuple[str, ...]:
    means = reading.detail or ("" if reading.passed else SENTENCES[BundleGate(reading.gate)])
    numbers = (
        "" if number is None else number_words(number) for number in (reading.measured, reading.limit, reading.margin)
    )
    return (
        "+" if reading.passed else "-",
        printable(reading.broker or ""),
        printable(reading.bundle or ""),
        reading.gate,
        *numbers,
        printable(means),
    )
