"""Numbers, ages, names and holds in words, short enough for one line of a terminal. Pure.

Stage: drawing, below `anabranch.local.screen.frame`. Names from outside are made printable here.
"""

import re
from collections.abc import Iterable
from datetime import datetime

from rich.cells import cell_len

from anabranch.history.picture import HoldView
from decisions.autoscale.gates import DESCRIPTIONS, Gate
from schemas.ids import topic_parts


def printable(text: str) -> str:
    """Replace control characters, which a terminal would obey, by `·`."""
    return "".join(character if character.isprintable() else "·" for character in text)


def short_names(topics: Iterable[str]) -> dict[str, str]:
    """Return each topic's shortest name without the tenant or namespace that all of them share."""
    names = list(topics)
    parts = [topic_parts(name) for name in names]
    if len({part.full_namespace for part in parts}) <= 1:
        return {name: printable(part.name) for name, part in zip(names, parts, strict=True)}
    if len({part.tenant for part in parts}) <= 1:
        return {name: printable(f"{part.namespace}/{part.name}") for name, part in zip(names, parts, strict=True)}
    return {name: printable(part.path) for name, part in zip(names, parts, strict=True)}


def span(seconds: float) -> str:
    """Return a length of time: `0.4 s`, `12 s`, `3 min`, `5 h`, `2 d`."""
    seconds = max(0.0, seconds)
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 119.5:
        return f"{seconds:.0f} s"
    if seconds < 7_170:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} d"


def age(then: datetime, now: datetime) -> str:
    """Return an age, in whole seconds below two minutes: `3 s`, `12 min`."""
    seconds = max(0.0, (now - then).total_seconds())
    return f"{seconds:.0f} s" if seconds < 119.5 else span(seconds)


def amount(value: float) -> str:
    """Return a number in at most six characters: `0.5`, `812`, `12.3k`, `64M`."""
    for limit, divisor, unit in ((1e3, 1, ""), (1e6, 1e3, "k"), (1e9, 1e6, "M"), (1e12, 1e9, "G")):
        if abs(value) < limit * 0.99995:
            scaled = value / divisor
            return f"{scaled:.0f}{unit}" if scaled == int(scaled) or abs(scaled) >= 100 else f"{scaled:.3g}{unit}"
    return f"{value:.2g}"


def hold_reason(hold: HoldView, now: datetime, room: int = 1000) -> str:
    """Return a hold's gate in words, figures and wait, in the longest form that fits `room` cells."""
    code = printable(hold.gate)
    sentence = _SENTENCES.get(hold.gate, code.replace("-", " "))
    short = re.split(r" ?[;:(]", sentence)[0]
    figures, wait = _figures(hold, now), _wait(hold, now)
    forms = (
        f"{sentence}{f' ({figures})' if figures else ''}{wait}",
        f"{short}{f' ({figures})' if figures else ''}{wait}",
        f"{short}{wait}",
        f"{code}{f': {figures}' if figures else ''}{wait}",
        f"{code}{wait}",
    )
    return next((form for form in forms if cell_len(form) <= room), code)


_SENTENCES = {gate.value: words.sentence.replace("`", "").rstrip(".") for gate, words in DESCRIPTIONS.items()}
_UNITS = {gate.value: words.unit for gate, words in DESCRIPTIONS.items()}


def _figures(hold: HoldView, now: datetime) -> str:
    measured, limit = hold.measured, hold.limit
    if measured is None or limit is None:
        return ""
    unit = _UNITS.get(hold.gate)
    if unit == "ms":
        if hold.eligible_at is not None:
            # The reading is as old as the hold; what is left of the wait is known now.
            measured = min(limit, max(0.0, limit - (hold.eligible_at - now).total_seconds() * 1000))
        if limit == 0:
            # A time that is left, which the wait says.
            return ""
        return f"{measured / 1000:.0f} of {limit / 1000:.0f} s" if limit < 120_000 else f"of {span(limit / 1000)}"
    if unit == "ratio":
        kind = "merge" if hold.gate == Gate.MERGE_THRESHOLDS.value else "split"
        return f"{measured * 100:.0f} % of the {kind} threshold"
    return f"{amount(measured)} of {amount(limit)}"


def _wait(hold: HoldView, now: datetime) -> str:
    if hold.eligible_at is None:
        return ""
    left = (hold.eligible_at - now).total_seconds()
    return f", {span(left)} left" if left > 0 else ", due at the next tick"
