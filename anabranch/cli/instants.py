"""Instants as options: `14:05`, `2026-11-22T14:05:00Z`, `10m ago`. Without a zone they are UTC."""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta, timezone

import click

from anabranch.cli.duration import DURATION

FORMS = "14:05, 2026-11-22T14:05:00Z or '10m ago'"
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
            self.fail(f"{value!r} is no time; write {FORMS} (UTC unless it has a zone)", param, ctx)


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
