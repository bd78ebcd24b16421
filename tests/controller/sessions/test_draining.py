"""When sealed segments are looked at: often while something happens, seldom while nothing does, soon with Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from controller.retries import Backoff
from controller.segments import reach as reaching
from controller.segments.reach import SegmentReach
from controller.sessions import draining
from controller.sessions.draining import DrainLooks
from controller.sessions.stored import DrainLook, SubscriptionKey

KEY = ("topic://acme/draining/t", "s")


class Scene:
    """Looks that answer what a test says; delays are noted and last a millisecond."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers = True
        self.reach = SegmentReach(lambda: self.answers)
        self.looks = DrainLooks(self._look, asyncio.get_running_loop().create_task, self.reach)
        self.found: Callable[[int], DrainLook | None] = lambda number: None
        self.number, self.pause = 0, 0.001
        self.delays: list[float] = []
        delay = Backoff.delay

        def noted(backoff: Backoff) -> float:
            self.delays.append(delay(backoff))
            return self.pause

        monkeypatch.setattr(Backoff, "delay", noted)
        monkeypatch.setattr(reaching, "DELAY_SECONDS", 0.001)
        monkeypatch.setattr(reaching, "JITTER_SECONDS", 0.0)

    async def _look(self, key: SubscriptionKey) -> DrainLook | None:
        self.number += 1
        return self.found(self.number)

    async def until(self, condition: Callable[[], bool]) -> None:
        async def come_true() -> None:
            while not condition():
                await asyncio.sleep(0.001)

        await asyncio.wait_for(come_true(), 10)


def reading(unread: int, answered: bool = True) -> DrainLook:
    return DrainLook(frozenset(), True, unread, answered)


def run(test: Callable[[Scene], object], monkeypatch: pytest.MonkeyPatch) -> None:
    async def whole() -> None:
        monkeypatch.setattr(draining, "JITTER_SECONDS", 0.0)
        scene = Scene(monkeypatch)
        await test(scene)  # type: ignore[misc]
        scene.looks.stop()
        await scene.reach.stop()

    asyncio.run(whole())


def test_while_nothing_is_read_looks_are_twice_as_far_apart_up_to_a_quarter_of_an_hour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(scene: Scene) -> None:
        scene.found = lambda number: reading(7)
        scene.looks.changed(KEY)
        await scene.until(lambda: len(scene.delays) >= 12)
        assert scene.delays[:12] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900]
        scene.looks.changed(KEY)
        count = len(scene.delays)
        await scene.until(lambda: len(scene.delays) >= count + 2)
        assert 1 in scene.delays[count : count + 2]

    run(test, monkeypatch)


def test_while_something_is_read_looks_stay_close_and_end_with_the_last_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(scene: Scene) -> None:
        scene.found = lambda number: reading(100 - number) if number < 20 else DrainLook(frozenset({0}), False, 0, True)
        scene.looks.changed(KEY)
        await scene.until(lambda: scene.number == 20)
        assert scene.delays == [1] * 19
        # Without a plan nothing looks again.
        await scene.until(lambda: KEY not in scene.looks._plans)
        assert scene.number == 20

    run(test, monkeypatch)


def test_a_look_that_nobody_answered_is_repeated_at_once_when_kafka_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(scene: Scene) -> None:
        scene.answers, scene.pause = False, 3600.0
        scene.found = lambda number: reading(0, answered=scene.answers)
        scene.looks.changed(KEY)
        await scene.until(lambda: scene.reach.is_away)
        assert scene.number == 1
        scene.answers = True
        await scene.until(lambda: scene.number == 2)
        assert not scene.reach.is_away
        assert scene.delays == [1, 1]

    run(test, monkeypatch)
