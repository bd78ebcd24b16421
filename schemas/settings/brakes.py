"""`[executor.brakes]` of the settings: limits on how fast and when the executor may act.

Their effect over time: `anabranch.safeguards`.
"""

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
    """`forbidden`: no action inside the window; `allowed`: actions only inside. `forbidden` takes precedence."""
    days: Annotated[tuple[Day, ...], Field(min_length=1)]
    """Weekdays on which the window starts: `mon` to `sun`."""
    start: TimeOfDay
    """Time of day at which the window starts, such as 22:00."""
    end: TimeOfDay
    """Time of day at which it ends; if not later than the start, on the next day."""
    zone: Annotated[str, AfterValidator(_known_zone)]
    """Time zone of days and times, such as Europe/Berlin."""


class BrakeSettings(Section):
    """Limits on how fast and when the executor may act."""

    actions_per_minute: Annotated[int, Field(ge=0)]
    """Most calls in any 60 seconds in the whole fleet; 0: no limit. Set it before `mode = "act"`."""
    actions_per_minute_per_namespace: Annotated[int, Field(ge=0)]
    """Most calls in any 60 seconds in one namespace; 0: no limit."""
    failures: Annotated[int, Field(ge=0)]
    """Failures within failures_seconds that stop all executors until `anabranch decisions resume all`; 0: never."""
    failures_seconds: Seconds
    """Seconds over which failures (outcomes `failed`, or `rejected` after a call) are counted."""
    windows: tuple[WindowSettings, ...]
    """Maintenance windows: times at which acting is allowed or forbidden; none: it is always allowed."""
