"""`[executor.brakes]` of the settings: limits on how fast and when the executor may act.

Their effect over time: `anabranch.safeguards`.
"""

from __future__ import annotations

from datetime import time
from typing import Annotated, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field

from schemas.settings.section import Seconds, Section

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
"""In the order of `datetime.weekday`."""


def _known_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(f"{name!r} is no time zone like Europe/Berlin or UTC") from error
    return name


def _local_time(value: time) -> time:
    if value.tzinfo is not None:
        raise ValueError("a time of day has no offset: the zone is a key of its own")
    return value


TimeOfDay = Annotated[time, AfterValidator(_local_time)]


class WindowSettings(Section):
    """A weekly maintenance window."""

    acting: Literal["allowed", "forbidden"]
    """`forbidden`: no action begins inside. `allowed`: actions begin only inside such windows.

    `forbidden` takes precedence.
    """
    days: Annotated[tuple[Day, ...], Field(min_length=1)]
    """Weekdays on which it starts."""
    start: TimeOfDay
    end: TimeOfDay
    """Times of day, such as 22:00; an end not after the start is on the next day."""
    zone: Annotated[str, AfterValidator(_known_zone)]
    """Time zone of days and times, such as Europe/Berlin."""


class BrakeSettings(Section):
    """Limits on how fast and when the executor may act."""

    actions_per_minute: Annotated[int, Field(ge=0)]
    """Maximum of calls in any 60 seconds in the whole fleet; 0 = no limit."""
    actions_per_minute_per_namespace: Annotated[int, Field(ge=0)]
    """Maximum of calls in any 60 seconds in one namespace; 0 = no limit."""
    failures: Annotated[int, Field(ge=0)]
    """Number of failures within `failures_seconds` that stops the executor until it is resumed; 0 = never.

    Failures are outcomes `failed`, and `rejected` after a call.
    """
    failures_seconds: Seconds
    """Window for counting failures, seconds."""
    windows: tuple[WindowSettings, ...]
    """Maintenance windows; none = acting is allowed at any time."""
