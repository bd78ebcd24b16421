"""Stats show the load that reporters said on Kafka, and wait for no Kafka that is away."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from anabranch.controller.loads import PAUSE_SECONDS, WINDOW_MS, ReportedLoads
from schemas.kafka.connection import KafkaConnection
from tests.controller.conftest import NOWHERE, run_controller
from tests.waiting import wait_until

NAME = "acme/loads/t"
PATH = f"/admin/v2/scalable/{NAME}"


def sample(reporter: str, *segments: int, rate: float) -> bytes:
    rates = {"msgRateIn": rate, "bytesRateIn": rate, "msgRateOut": 0, "bytesRateOut": 0.5}
    found = {"v": 1, "topic": f"topic://{NAME}", "reporter": reporter, "sampledAt": 1}
    return json.dumps(found | {"segments": [{"id": id, **rates} for id in segments]}).encode()


def columns(reporter: str, ids: list[int], rates: list[float], *, slashes: str = "/") -> bytes:
    """Samples of this topic behind one of another; a bad one of the last segment."""
    topics, every = [f"topic://{NAME}-2", f"topic://{NAME}"], [5.0, *rates]
    found = {"v": 2, "reporter": reporter, "sampledAt": 1, "topics": topics, "counts": [1, len(ids)], "ids": [0, *ids]}
    found |= {"msgRateIn": every, "bytesRateIn": every, "msgRateOut": every, "bytesRateOut": every}
    return json.dumps(found).replace("/", slashes).encode()


@pytest.mark.broker
def test_stats_show_newest_load_of_incarnation(kafka: str, tmp_path: Path) -> None:
    producer = Producer({"bootstrap.servers": kafka})

    def report(value: bytes, ago: int = 0, key: str = f"topic://{NAME}") -> None:
        producer.produce("segment-stats", value, key.encode(), timestamp=time.time_ns() // 1_000_000 - ago)

    with run_controller(tmp_path / "layouts.db", kafka) as running:
        assert running.client.put(f"{PATH}?numInitialSegments=5").status_code == 204
        # The oldest one is still within the window when a busy machine needs seconds for all of this.
        old = WINDOW_MS - 5_000, sample("old", 0, 1, rate=1)
        for ago, one in (old, (500, sample("broker-1", 0, rate=7)), (100, b"no JSON")):
            report(one, ago)
        report(sample("another", 1, rate=9), key="topic://acme/loads/other")
        report(columns("broker-2", [2, 3, 4], [3.5, 4.5, -1]), 300, "broker-2")
        # In another partition, and of a later millisecond.
        producer.flush(10)
        taken_at = time.time_ns() // 1_000_000
        wait_until(lambda: time.time_ns() // 1_000_000 > taken_at)
        report(columns("broker-3", [3], [6.5], slashes="\\/"), 200, "broker-3")
        producer.flush(10)
        segments = running.client.get(f"{PATH}/stats").json()["segments"]
        loads = {id: segment.get("load") for id, segment in segments.items()}
        assert {id: load and (load["reporter"], load["msgRateIn"]) for id, load in loads.items()} == {
            "0": ("broker-1", 7.0),
            "1": ("old", 1.0),
            "2": ("broker-2", 3.5),
            "3": ("broker-3", 6.5),
            "4": None,
        }
        assert loads["0"].keys() == {"msgRateIn", "bytesRateIn", "msgRateOut", "bytesRateOut", "reporter", "at"}
        # Another life of the topic, by the clock of the test far in the future.
        running.client.delete(PATH)
        running.clock.now = 4_000_000_000_000
        running.client.put(f"{PATH}?numInitialSegments=3")
        assert not any("load" in one for one in running.client.get(f"{PATH}/stats").json()["segments"].values())


@pytest.mark.process
def test_stats_wait_for_kafka_once_and_briefly() -> None:
    loads, asked, began = ReportedLoads(KafkaConnection(NOWHERE)), list[str](), time.monotonic()
    read = loads._read
    loads._read = lambda topic: asked.append(topic) or read(topic)  # type: ignore[method-assign,func-returns-value]
    assert all(loads.of(f"topic://{NAME}") == {} for _ in range(100))
    assert 1 <= len(asked) <= 1 + (time.monotonic() - began) / PAUSE_SECONDS
