"""Instants and durations as options: `14:05`, `2026-11-22T14:05:00Z`, `10m ago`; `90s`, `2m`, `1h`.

Instants without a zone are UTC.
"""

import re
from datetime import datetime, time, timedelta, timezone

import click

FORMS = "14:05, 2026-11-22T14:05:00Z or '10m ago'"
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800, "y": 31_536_000}
_CLOCK = re.compile(r"\d{1,2}:\d{2}(?::\d{2})?")


class Instant(click.ParamType):  # type: ignore[type-arg]  # generic in newer releases only
    """An aware datetime. A time of day is that of today, or of yesterday if it has not come yet today."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            return read_instant(str(value), datetime.now(timezone.utc))
        except (ValueError, OverflowError, click.BadParameter):
            hint = f"did you mean '{value} ago'? Else " if re.fullmatch(r"\d+[smhdwy]", str(value)) else ""
            self.fail(f"{value!r} is no time; {hint}write {FORMS} (UTC unless it has a zone)", param, ctx)


def read_instant(text: str, now: datetime) -> datetime:
    """The instant that a text means at `now`; `ValueError` for none. `now` itself is one."""
    text = text.strip()
    if text == "now":
        return now
    if text.endswith(" ago"):
        return now - timedelta(seconds=DURATION.convert(text.removesuffix(" ago"), None, None))
    if _CLOCK.fullmatch(text):
        hour, minute, second = map(int, f"{text}:0".split(":")[:3])
        instant = datetime.combine(now.date(), time(hour, minute, second), now.tzinfo)
        return instant if instant <= now else instant - timedelta(days=1)
    instant = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return instant if instant.tzinfo else instant.replace(tzinfo=timezone.utc)


INSTANT = Instant()


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic in newer releases only
    """A positive number of seconds, given with or without a unit."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, (int, float)):
            return float(value)
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([smhdwy]?)", str(value).strip())
        if match is None or float(match[1]) <= 0:
            self.fail(f"{value!r} is no duration; write 90, 90s, 2m or 1h", param, ctx)
        return float(match[1]) * _UNITS[match[2]]


DURATION = Duration()


def check_period(since: datetime | None, until: datetime | None) -> None:
    """Raise a usage error for a period without length."""
    if since is not None and until is not None and since >= until:
        raise click.BadParameter("--since has to be before --until")
