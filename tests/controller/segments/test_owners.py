"""Owners of segments: the brokers that lead their partitions, told at once, and never waited for."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from anabranch.controller.segments import owners as owners_module
from anabranch.controller.segments.base import SegmentStoreError
from anabranch.controller.segments.kafka import KafkaSegments
from anabranch.controller.segments.no_segments import NoSegments
from anabranch.controller.segments.owners import MAX_WAIT_SECONDS, SegmentOwners
from schemas.kafka.connection import KafkaConnection
from tests.controller.conftest import NOWHERE, run_controller
from tests.controller.watch.test_watch import events
from tests.waiting import wait_until

TOPIC = "topic://acme/owners/t"
PATH = "/admin/v2/scalable/acme/owners/t"
ONE, TWO = (f"segment://acme/owners/t/{descriptor}" for descriptor in ("0000-7fff-1", "8000-ffff-2"))


class Moving(NoSegments):
    """What one broker cannot show: leaders that move, and a Kafka that hangs."""

    def __init__(self) -> None:
        self.leader = "one:9092"
        self.asked: list[Sequence[str]] = []
        self.answers_now = threading.Event()
        self.answers_now.set()
        self.is_away = False

    def owners(self, segments: Sequence[str]) -> dict[str, str]:
        self.asked.append(segments)
        self.answers_now.wait(30)
        if self.is_away:
            raise SegmentStoreError("away")
        return dict.fromkeys(segments, self.leader)


def test_owners_are_remembered_and_a_move_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    store, told = Moving(), []
    owners = SegmentOwners(store)
    owners.on_change.append(told.append)
    for _ in range(3):
        assert owners.of(TOPIC, 1, [ONE]) == {ONE: "one:9092"}
    assert owners.of(TOPIC, 1, [ONE, TWO]) == {ONE: "one:9092", TWO: "one:9092"}
    assert store.asked == [[ONE], [ONE, TWO]]
    store.leader = "two:9092"
    monkeypatch.setattr(owners_module, "FRESH_SECONDS", 0.0)
    assert owners.of(TOPIC, 1, [ONE])[ONE] in ("one:9092", "two:9092")
    wait_until(lambda: len(told) == 3)
    monkeypatch.setattr(owners_module, "FRESH_SECONDS", 30.0)
    assert owners.of(TOPIC, 1, [ONE]) == {ONE: "two:9092"}
    owners.close()


def test_hanging_kafka_delays_answers_briefly() -> None:
    """Known owners are still answered."""
    store = Moving()
    owners = SegmentOwners(store)
    assert owners.of(TOPIC, 1, [ONE]) == {ONE: "one:9092"}
    store.answers_now.clear()
    store.is_away = True
    began = time.monotonic()
    assert owners.of(TOPIC, 1, [ONE, TWO]) == {ONE: "one:9092"}
    assert time.monotonic() - began < MAX_WAIT_SECONDS + 2
    store.answers_now.set()
    wait_until(lambda: not owners._looks)
    began = time.monotonic()
    assert all(owners.of(TOPIC, 1, [ONE, TWO]) == {ONE: "one:9092"} for _ in range(1_000))
    assert time.monotonic() - began < 2
    assert len(store.asked) == 2
    owners.close()


def test_closed_port_delays_nobody() -> None:
    owners, began = SegmentOwners(KafkaSegments(KafkaConnection(NOWHERE), timeout_seconds=0.2)), time.monotonic()
    assert [owners.of(TOPIC, 1, [ONE]) for _ in range(10)] == [{}] * 10
    assert time.monotonic() - began < 5
    owners.close()


@pytest.mark.broker
def test_watchers_and_stats_get_partition_leaders(kafka: str, kafka_segments: KafkaSegments, tmp_path: Path) -> None:
    port = kafka.rpartition(":")[2]
    with run_controller(tmp_path / "layouts.db", segments=kafka_segments) as running:
        assert running.client.put(f"{PATH}?numInitialSegments=2").status_code == 204
        try:
            with events(f"{running.url}{PATH}/watch") as stream:
                seen: dict[str, str] = {}
                while seen.keys() != {"0", "1"}:
                    seen = stream.next()[2]["segmentBrokers"]
                assert {owner.rpartition(":")[2] for owner in seen.values()} == {port}
                assert running.client.post(f"{PATH}/split/0").status_code == 204
                while seen.keys() != {"1", "2", "3"}:
                    seen = stream.next()[2]["segmentBrokers"]
            segments = running.client.get(f"{PATH}/stats").json()["segments"]
            assert {id: one.get("ownerBroker") for id, one in segments.items()} == {"0": None, **seen}, json.dumps(seen)
        finally:
            running.client.delete(PATH)
