"""Maintenance windows (`schemas.settings.brakes`) in local time zones. Pure: the clock is an argument.

A window is an interval of wall-clock time, so its length follows changes of the clock. Where clocks go forward, a
skipped time counts as the same distance after the change; where they go back, the first of two equal times counts.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

from schemas.settings.brakes import DAYS, WindowSettings

_AHEAD_DAYS = 15
"""Days to search ahead: one week contains every window, two also cover changes of the clock."""


def may_act(windows: Sequence[WindowSettings], now: datetime) -> bool:
    """Return whether acting is allowed at an aware instant."""
    inside = [window for window in windows if any(start <= now < end for start, end in _intervals(window, now, 0))]
    if any(window.acting == "forbidden" for window in inside):
        return False
    return any(window.acting == "allowed" for window in inside) or all(
        window.acting == "forbidden" for window in windows
    )


def next_change(windows: Sequence[WindowSettings], now: datetime) -> datetime | None:
    """Return the first instant after `now` at which `may_act` changes; None: not within two weeks."""
    is_allowed = may_act(windows, now)
    edges = {edge for window in windows for interval in _intervals(window, now, _AHEAD_DAYS) for edge in interval}
    return next((edge for edge in sorted(edges) if edge > now and may_act(windows, edge) != is_allowed), None)


def _intervals(window: WindowSettings, now: datetime, days: int) -> list[tuple[datetime, datetime]]:
    """Return the intervals, in UTC, that start between the day before `now` and `days` after it."""
    zone = ZoneInfo(window.zone)
    today = now.astimezone(zone).date()
    intervals = []
    for number in range(-1, days + 1):
        day = today + timedelta(days=number)
        if DAYS[day.weekday()] in window.days:
            last = day if window.start < window.end else day + timedelta(days=1)
            intervals.append(
                (
                    datetime.combine(day, window.start, zone).astimezone(timezone.utc),
                    datetime.combine(last, window.end, zone).astimezone(timezone.utc),
                )
            )
    return intervals
