"""Time window that a page shows, read from its address. Pure.

`from` and `to` are instants (ISO 8601, or a time of day, in UTC), `last` a length that ends with the record: `30m`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, time, timedelta, timezone
from typing import Final

LENGTHS: Final = {
    "15m": "15 minutes",
    "1h": "an hour",
    "6h": "6 hours",
    "1d": "a day",
    "7d": "a week",
    "30d": "a month",
    "365d": "a year",
}
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LENGTH = re.compile(r"([1-9][0-9]{0,5})([smhd])", re.ASCII)
_CLOCK = re.compile(r"[0-9]{1,2}:[0-9]{2}(?::[0-9]{2})?", re.ASCII)
_LEAST = timedelta(seconds=10)
DEFAULT: Final = "1h"


class WindowError(ValueError):
    """The address says no time; the message says how one is written."""


@dataclass(frozen=True)
class TimeWindow:
    """From an instant to another one."""

    since: datetime
    until: datetime
    last: str | None
    """The length that was asked for, ending with the record; None: two instants were."""


def read_window(query: Mapping[str, str], ends: datetime) -> TimeWindow:
    """Of an address' query; `ends`: where the record does. Raises `WindowError`."""
    begin, end, last = query.get("from", "").strip(), query.get("to", "").strip(), query.get("last", "").strip()
    if begin or end:
        until = read_instant(end, ends) if end else ends
        since = read_instant(begin, ends) if begin else until - _length(last or DEFAULT)
        if until - since < _LEAST:
            raise WindowError("the window ends before it begins, or is shorter than ten seconds")
        return TimeWindow(since, until, None)
    return TimeWindow(ends - _length(last or DEFAULT), ends, last or DEFAULT)


def read_instant(text: str, ends: datetime) -> datetime:
    """An instant; a time of day is the last such one before the record ends. Raises `WindowError`."""
    try:
        if _CLOCK.fullmatch(text):
            instant = datetime.combine(
                ends.date(), time.fromisoformat(text.zfill(8 if text.count(":") == 2 else 5)), timezone.utc
            )
            return instant if instant <= ends else instant - timedelta(days=1)
        instant = datetime.fromisoformat(text.replace("Z", "+00:00"))
        instant = instant.astimezone(timezone.utc) if instant.tzinfo else instant.replace(tzinfo=timezone.utc)
    except (ValueError, OverflowError):
        instant = None
    if instant is None or not 1970 <= instant.year < 2200:
        raise WindowError("a time is written 14:05, 2026-11-22T14:05 or 2026-11-22T14:05:00Z, in UTC")
    return instant


def _length(text: str) -> timedelta:
    match = _LENGTH.fullmatch(text)
    seconds = int(match[1]) * _UNITS[match[2]] if match else 0
    if not _LEAST.total_seconds() <= seconds <= 3660 * 86_400:
        raise WindowError("a length is written 30m, 6h or 7d")
    return timedelta(seconds=seconds)
