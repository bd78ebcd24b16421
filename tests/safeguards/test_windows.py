"""Maintenance windows at their edges, over midnight, over changes of clocks."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from anabranch.safeguards.windows import may_act, next_change
from schemas.settings.brakes import DAYS, WindowSettings
from tests.examples import examples

ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe")


def window(acting: str, start: str, end: str, *days: str, zone: str = "UTC") -> WindowSettings:
    return WindowSettings.model_validate(
        {"acting": acting, "days": days or DAYS, "start": start, "end": end, "zone": zone}
    )


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(timezone.utc)


def test_without_windows_acting_is_allowed():
    assert may_act((), at("2026-11-22T12:00:00+00:00"))
    assert next_change((), at("2026-11-22T12:00:00+00:00")) is None


@pytest.mark.parametrize(
    ("local", "allowed"),
    [
        ("21:59:59", True),
        ("22:00:00", False),
        ("23:59:59", False),
        ("00:00:00", False),
        ("05:59:59", False),
        ("06:00:00", True),
    ],
)
def test_window_over_midnight_includes_start_only(local: str, allowed: bool):
    """It forbids from its start to just before its end."""
    windows = (window("forbidden", "22:00", "06:00", zone="Europe/Berlin"),)
    assert may_act(windows, at(f"2026-11-18T{local}+01:00")) is allowed


def test_window_over_midnight_belongs_to_start_day():
    windows = (window("allowed", "22:00", "06:00", "sun"),)
    assert may_act(windows, at("2026-11-23T05:00:00+00:00"))
    assert not may_act(windows, at("2026-11-22T05:00:00+00:00"))
    assert next_change(windows, at("2026-11-23T06:00:00+00:00")) == at("2026-11-29T22:00:00+00:00")


def test_what_is_forbidden_wins_over_what_is_allowed():
    windows = (window("allowed", "08:00", "18:00"), window("forbidden", "12:00", "13:00"))
    assert [may_act(windows, at(f"2026-11-22T{hour}:30:00+00:00")) for hour in ("07", "11", "12", "13", "18")] == [
        False,
        True,
        False,
        True,
        False,
    ]


def test_equal_times_are_a_whole_day():
    windows = (window("forbidden", "00:00", "00:00", "sat"),)
    assert not may_act(windows, at("2026-11-21T23:59:59+00:00"))
    assert may_act(windows, at("2026-11-22T00:00:00+00:00"))


def test_a_whole_forbidden_week_never_ends():
    assert next_change((window("forbidden", "00:00", "00:00"),), at("2026-11-22T12:00:00+00:00")) is None


@pytest.mark.parametrize(
    ("date", "utc_start", "utc_end"), [("2026-03-28", "01:00", "04:00"), ("2026-10-24", "00:00", "05:00")]
)
def test_window_length_follows_wall_clock(date: str, utc_start: str, utc_end: str):
    # The clocks of Berlin change in the night to 2026-03-29 and in that to 2026-10-25.
    windows = (window("forbidden", "02:00", "06:00", zone="Europe/Berlin"),)
    night = at(f"{date}T12:00:00+00:00")
    start = next_change(windows, night)
    assert start is not None
    end = next_change(windows, start)
    next_day = (night + timedelta(days=1)).date()
    assert (start, end) == (at(f"{next_day}T{utc_start}:00+00:00"), at(f"{next_day}T{utc_end}:00+00:00"))


windows_strategy = st.lists(
    st.builds(
        window,
        st.sampled_from(["allowed", "forbidden"]),
        st.times().map(lambda time: time.strftime("%H:%M")),
        st.times().map(lambda time: time.strftime("%H:%M")),
        st.sampled_from(DAYS),
        zone=st.sampled_from(ZONES),
    ),
    max_size=3,
).map(tuple)
instants = st.integers(0, 2 * 366 * 86_400).map(
    lambda seconds: at("2026-01-01T00:00:00+00:00") + timedelta(seconds=seconds)
)


@examples(15)
@given(windows=windows_strategy, now=instants, part=st.floats(0, 1, exclude_max=True))
def test_state_changes_exactly_at_next_change(windows: tuple[WindowSettings, ...], now: datetime, part: float):
    change = next_change(windows, now)
    end = change or now + timedelta(days=13)
    between = min(now + part * (end - now), end - timedelta(microseconds=1))
    assert may_act(windows, between) is may_act(windows, now)
    if change is not None:
        assert may_act(windows, change) is not may_act(windows, now)


@pytest.mark.parametrize(
    "wrong",
    [
        {"zone": "Mars/Olympus"},
        {"zone": "../etc/passwd"},
        {"start": "25:00"},
        {"start": "10:00+01:00"},
        {"days": ["monday"]},
        {"days": []},
        {"acting": "maybe"},
        {"from": "10:00"},
    ],
)
def test_a_wrong_window_is_a_wrong_setting(wrong: dict[str, object]):
    right = {"acting": "allowed", "days": ["mon"], "start": "10:00", "end": "11:00", "zone": "UTC"}
    with pytest.raises(ValidationError):
        WindowSettings.model_validate(right | wrong)
