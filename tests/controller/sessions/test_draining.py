"""When sealed segments are looked at: often while something happens, seldom while nothing does, soon with Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from anabranch.controller.segments import reach as reaching
from anabranch.controller.segments.reach import SegmentReach
from anabranch.controller.sessions import draining
from anabranch.controller.sessions.draining import DrainLooks
from anabranch.controller.sessions.stored import DrainLook, SubscriptionKey
from runtime.backoff import RetryBackoff

KEY = ("topic://acme/draining/t", "s")
PATIENCE_SECONDS = 10.0
"""For what takes milliseconds: a test that fails is late, one on a busy machine is not."""


class Scene:
    """Looks that answer what a test says; delays are noted and last a millisecond."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers = True
        self.reach = SegmentReach(self._ask)
        self.asked = 0
        """Questions whether the segments are there."""
        self.looks = DrainLooks(self._look, asyncio.get_running_loop().create_task, self.reach)
        self.found: Callable[[int], DrainLook | None] = lambda number: None
        self.number, self.pause = 0, 0.001
        self.delays: list[float] = []
        delay = RetryBackoff.delay

        def noted(backoff: RetryBackoff) -> float:
            self.delays.append(delay(backoff))
            return self.pause

        monkeypatch.setattr(RetryBackoff, "delay", noted)
        monkeypatch.setattr(reaching, "DELAY_SECONDS", 0.001)
        monkeypatch.setattr(reaching, "JITTER_SECONDS", 0.0)

    def _ask(self) -> bool:
        self.asked += 1
        return self.answers

    async def _look(self, key: SubscriptionKey) -> DrainLook | None:
        self.number += 1
        return self.found(self.number)

    async def until(self, condition: Callable[[], bool]) -> None:
        async def come_true() -> None:
            while not condition():
                await asyncio.sleep(0.001)

        await asyncio.wait_for(come_true(), PATIENCE_SECONDS)


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


def test_idle_checks_back_off_to_15_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_active_checks_stay_frequent_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(scene: Scene) -> None:
        scene.found = lambda number: reading(100 - number) if number < 20 else DrainLook(frozenset({0}), False, 0, True)
        scene.looks.changed(KEY)
        await scene.until(lambda: scene.number == 20)
        assert scene.delays == [1] * 19
        # Without a plan nothing looks again.
        await scene.until(lambda: KEY not in scene.looks._plans)
        assert scene.number == 20

    run(test, monkeypatch)


def test_unanswered_check_repeated_when_kafka_returns(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_checks_pause_while_kafka_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(scene: Scene) -> None:
        scene.answers = False
        scene.found = lambda number: reading(3, answered=scene.answers)
        others = [(KEY[0], f"s{number}") for number in range(5)]
        scene.looks.changed(KEY)
        await scene.until(lambda: scene.reach.is_away)
        # A look that was due just before that may begin now.
        asked = scene.asked
        await scene.until(lambda: scene.asked > asked + 1)
        # Each timer is over after a millisecond, and none of them leads to a look.
        looked = scene.number
        for key in others:
            scene.looks.changed(key)
        asked = scene.asked
        await scene.until(lambda: scene.asked > asked + 20)
        assert scene.number == looked
        scene.pause, scene.answers = 3600.0, True
        await scene.until(lambda: scene.number == looked + 1 + len(others))

    run(test, monkeypatch)


def test_unanswered_rare_check_repeated_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(scene: Scene) -> None:
        scene.found = lambda number: reading(7, answered=number < 12)
        waited = []
        loop = asyncio.get_running_loop()
        later = loop.call_later

        def noted(delay: float, *arguments: object) -> asyncio.TimerHandle:
            if scene.looks._begin not in arguments:
                return later(delay, *arguments)  # type: ignore[arg-type]
            waited.append(delay)
            return later(0.001, *arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(loop, "call_later", noted)
        scene.pause = 900.0
        scene.looks.changed(KEY)
        await scene.until(lambda: len(waited) >= 14)
        assert waited[10:14] == [900, *[draining.MAX_FAILED_DELAY_SECONDS] * 3]

    run(test, monkeypatch)
