"""Calls in any 60 seconds: never more than the limit, whatever they take, over restarts too."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from anabranch.safeguards.rate import CallSlots

MINUTE = 60.0


@dataclass(frozen=True)
class Step:
    """What happens next, after a while."""

    after: float
    what: str
    takes: float
    reached: float
    """When within its time the call reaches the server, as a fraction."""


seconds = st.floats(0, 70, allow_nan=False).map(lambda value: round(value, 2))
steps = st.lists(
    st.builds(Step, seconds, st.sampled_from(["call", "call", "call", "no-call", "kill"]), seconds, st.floats(0, 1)),
    max_size=60,
)


@given(limit=st.integers(1, 4), given_steps=steps)
def test_no_minute_exceeds_the_call_limit(limit: int, given_steps: list[Step]):
    places, now, arrived = CallSlots(limit), 0.0, []
    running: dict[str, tuple[float, float, bool]] = {}
    recorded: list[float] = []

    def finish(until: float) -> None:
        for name, (end, reaches, called) in sorted(running.items(), key=lambda one: one[1][0]):
            if end <= until:
                del running[name]
                places.end(name, end if called else None)
                if called:
                    arrived.append(reaches)
                    recorded.append(end)

    for number, step in enumerate(given_steps):
        now += step.after
        finish(now)
        if step.what == "kill":
            # What was out may have arrived or not, and nobody knows: it counts until now.
            arrived += [reaches for _, reaches, called in running.values() if called and reaches <= now]
            unknown = [now] * len(running)
            recorded += unknown
            running.clear()
            places = CallSlots(limit)
            for end in sorted(recorded):
                places.count(end)
        elif places.is_free(now):
            places.grant(str(number))
            running[str(number)] = (now + step.takes, now + step.takes * step.reached, step.what == "call")
        else:
            assert places.free_at(now) > now
    finish(float("inf"))
    arrived.sort()
    assert all(last - first >= MINUTE - 1e-9 for first, last in zip(arrived, arrived[limit:], strict=False))


def test_slot_free_a_minute_after_its_call():
    places = CallSlots(1)
    places.grant("a")
    places.end("a", 5.0)
    assert not places.is_free(5.0 + MINUTE - 0.001)
    assert places.free_at(30.0) == 5.0 + MINUTE
    assert places.is_free(5.0 + MINUTE)


def test_busy_slot_gives_future_instant_despite_rounding():
    places = CallSlots(1)
    places.grant("a")
    places.end("a", 68.96)
    end = 68.96 + MINUTE
    for now in (math.nextafter(end, 0), end, math.nextafter(end, 200)):
        assert places.is_free(now) == (places.free_at(now) <= now)


def test_a_place_without_a_call_is_free_at_once():
    places = CallSlots(1)
    places.grant("a")
    assert not places.is_free(0.0)
    places.end("a", None)
    assert places.is_free(0.0)


def test_without_a_limit_there_is_always_room():
    places = CallSlots(0)
    for number in range(1000):
        places.grant(str(number))
    assert places.is_free(0.0)
    assert places.taken(0.0) == 0
