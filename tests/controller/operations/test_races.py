"""Many callers at once: one of several equal changes is done, different ones all are, and no update is lost."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from schemas.kafka.messages import ConsumerEvent, LayoutEvent
from tests.controller.conftest import RunningController
from tests.controller.plain_http import PLAIN

CALLERS = 12


@pytest.fixture
def base(namespace: str) -> str:
    return f"/admin/v2/scalable/{namespace}"


def at_once(controller: RunningController, calls: list[tuple[str, str]]) -> list[int]:
    """The status of each call, all sent at the same time over connections of their own."""

    def send(call: tuple[str, str]) -> int:
        with httpx.Client(base_url=controller.url, timeout=30, verify=PLAIN) as client:
            return client.request(*call).status_code

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(send, calls))


def test_of_parallel_splits_of_a_segment_one_is_done(controller: RunningController, base: str) -> None:
    controller.client.put(f"{base}/t")
    assert Counter(at_once(controller, [("POST", f"{base}/t/split/0")] * CALLERS)) == {204: 1, 412: CALLERS - 1}
    assert controller.client.get(f"{base}/t").json()["epoch"] == 1


def test_overlapping_merges_one_succeeds(controller: RunningController, base: str) -> None:
    controller.client.put(f"{base}/t?numInitialSegments=3")
    calls = [("POST", f"{base}/t/merge/0/1"), ("POST", f"{base}/t/merge/1/2")] * (CALLERS // 2)
    assert Counter(at_once(controller, calls)) == {204: 1, 412: CALLERS - 1}


def test_parallel_splits_of_segments_succeed(controller: RunningController, base: str, namespace: str) -> None:
    controller.client.put(f"{base}/t?numInitialSegments={CALLERS}")
    calls = [("POST", f"{base}/t/split/{segment}") for segment in range(CALLERS)]
    assert at_once(controller, calls) == [204] * CALLERS
    events = [e for e in controller.announced(f"topic://{namespace}/t") if isinstance(e, LayoutEvent)]
    assert [event.layout.epoch for event in events] == list(range(CALLERS + 1))


def test_of_parallel_creations_one_is_done(controller: RunningController, base: str) -> None:
    assert Counter(at_once(controller, [("PUT", f"{base}/t")] * CALLERS)) == {204: 1, 409: CALLERS - 1}


def test_a_policy_set_during_splits_is_kept(controller: RunningController, base: str) -> None:
    controller.client.put(f"{base}/t?numInitialSegments={CALLERS}")
    with ThreadPoolExecutor(1) as pool:
        policy = pool.submit(controller.client.post, f"{base}/t/autoScalePolicy", json={"maxSegments": 8})
        at_once(controller, [("POST", f"{base}/t/split/{segment}") for segment in range(CALLERS)])
        assert policy.result().status_code == 204
    layout = controller.client.get(f"{base}/t").json()
    assert layout["autoScalePolicy"] == {"maxSegments": 8}
    assert layout["epoch"] == CALLERS


def test_every_parallel_registration_counts_once(controller: RunningController, base: str, namespace: str) -> None:
    controller.client.put(f"{base}/t")
    calls = [("PUT", f"{base}/t/subscriptions/s/consumers/c{number % 6}") for number in range(CALLERS)]
    assert at_once(controller, calls) == [204] * CALLERS
    assert controller.client.get(f"{base}/t/stats").json()["subscriptions"] == {"s": {"consumerCount": 6}}
    events = [e for e in controller.announced(f"topic://{namespace}/t") if isinstance(e, ConsumerEvent)]
    assert [event.consumers for event in events] == [1, 2, 3, 4, 5, 6]
