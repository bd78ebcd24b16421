"""kill -9 of the real service against a real broker: every event arrives, every answer was true, every layout tiles."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from schemas.metadata import ScalableTopicMetadata
from tests.controller.layout_strategies import assert_tiles
from tests.controller.listening import Listener
from tests.controller.plain_http import PLAIN
from tests.controller.processes import ROOT, ControllerProcess
from tests.waiting import wait_until

pytestmark = pytest.mark.broker

KILLS = 3
TOPICS = 4


class Caller(threading.Thread):
    """Splits, merges and registers at random, without a pause, and keeps what was answered."""

    def __init__(self, service: ControllerProcess, seed: int) -> None:
        super().__init__(daemon=True)
        self._service = service
        self._random = random.Random(seed)
        self.topic = f"topic://acme/crash/t{seed}"
        self.path = f"/admin/v2/scalable/{self.topic.removeprefix('topic://')}"
        self.stopping = threading.Event()
        self.done = 0
        """Changes of the layout that were answered with 204."""
        self.unknown = 0
        """Changes of the layout without an answer."""
        self.unsure_segments: set[str] = set()
        """Those of such changes, which the next controller may finish at any time."""
        self.registered: set[str] = set()
        self.unsure: set[str] = set()
        self.wrong: list[str] = []

    def run(self) -> None:
        while not self.stopping.is_set():
            with httpx.Client(base_url=self._service.url, timeout=5, verify=PLAIN) as client:
                try:
                    while not self.stopping.is_set():
                        self.act(client)
                except httpx.TransportError:
                    self.stopping.wait(0.02)

    def act(self, client: httpx.Client) -> None:
        answer = client.get(self.path)
        if answer.status_code == 404:
            client.put(self.path)
            return
        layout = ScalableTopicMetadata.model_validate_json(answer.content)
        assert_tiles(layout)
        active = sorted(
            (segment for segment in layout.segments.values() if segment.state == "ACTIVE"),
            key=lambda segment: segment.hash_range.start,
        )
        at = self._random.randrange(len(active))
        if len(active) < 12 and self._random.random() < 0.5:
            self.change(client, f"/split/{active[at].segment_id}")
        elif at:
            self.change(client, f"/merge/{active[at - 1].segment_id}/{active[at].segment_id}")
        else:
            self.register(client, f"c{self._random.randrange(1000)}")

    def change(self, client: httpx.Client, path: str) -> None:
        segments = set(path.split("/")[2:])
        is_sure = self.unsure_segments.isdisjoint(segments)
        self.unknown += 1
        self.unsure_segments |= segments
        answer = client.post(self.path + path)
        self.unknown -= 1
        if is_sure:
            self.unsure_segments -= segments
        if answer.status_code == 204:
            self.done += 1
        elif is_sure or answer.status_code != 412 or "non-active segment" not in answer.text:
            self.wrong.append(f"{path}: {answer.status_code} {answer.text}")

    def register(self, client: httpx.Client, name: str) -> None:
        self.unsure.add(name)
        if client.put(f"{self.path}/subscriptions/s/consumers/{name}").status_code == 204:
            self.registered.add(name)


def test_kill_9_loses_no_event_or_answer(kafka: str, tmp_path: Path) -> None:
    service = ControllerProcess(tmp_path, more="snapshot_seconds = 0.2")
    listener = Listener(kafka, "topic://acme/crash/")
    callers = [Caller(service, seed) for seed in range(TOPICS)]
    luck = random.Random(7)
    for number in range(KILLS):
        with service.life(bootstrap=kafka) as (_, process):
            if number == 0:
                for caller in callers:
                    caller.start()
            goal = sum(caller.done for caller in callers) + luck.randrange(5, 60)
            wait_until(lambda goal=goal: sum(caller.done for caller in callers) >= goal, 20)
            assert process.poll() is None
    with service.life(bootstrap=kafka) as (client, _):
        for caller in callers:
            caller.stopping.set()
            caller.join()
            assert caller.wrong == []
        # What a kill has left open is finished some time after the start.
        for caller in callers:
            operations = f"{caller.path}/operations"
            wait_until(lambda at=operations: {each["step"] for each in client.get(at).json()} <= {"done", "superseded"})
        wait_until(lambda: client.get("/healthz").json() == {"status": "ok", "outbox": 0, "reason": None})
        for caller in callers:
            layout = ScalableTopicMetadata.model_validate_json(client.get(caller.path).content)
            stats = client.get(f"{caller.path}/stats").json()["subscriptions"]
            assert caller.done <= layout.epoch <= caller.done + caller.unknown
            count = stats["s"]["consumerCount"]
            assert len(caller.registered) <= count <= len(caller.unsure)

            listener.read_until(lambda caller=caller, epoch=layout.epoch: listener.epoch(caller.topic) == epoch)
            listener.read_until(
                lambda caller=caller, count=count: listener.sessions(caller.topic)[-1].consumers == count
            )
            changes = [event for event in listener.layouts(caller.topic) if event.cause != "snapshot"]
            first_seen = list(dict.fromkeys(event.layout.epoch for event in changes))
            assert first_seen == list(range(layout.epoch + 1))
            for event in listener.layouts(caller.topic):
                assert_tiles(event.layout)
            assert changes[-1].layout == layout
            registrations = [event for event in listener.sessions(caller.topic) if event.event == "registered"]
            assert caller.registered <= {event.consumer for event in registrations}
            assert set(range(1, count + 1)) == {event.consumers for event in registrations}
    listener.close()


def test_answered_changes_announced_after_kill(kafka: str, tmp_path: Path) -> None:
    service = ControllerProcess(tmp_path, more="snapshot_seconds = 0.2")
    topic = "topic://acme/away/t"
    path = "/admin/v2/scalable/acme/away/t"
    with service.life() as (client, _):
        client.put(path)
        for segment in range(20):
            assert client.post(f"{path}/split/{segment}").status_code == 204
    listener = Listener(kafka, topic)
    with service.life(bootstrap=kafka) as (_, process):
        listener.read_until(lambda: listener.epoch(topic) == 20)
        process.terminate()
        assert process.wait(30) == 0
    changes = [event.layout.epoch for event in listener.layouts(topic) if event.cause != "snapshot"]
    assert list(dict.fromkeys(changes)) == list(range(21))
    listener.close()


def test_second_process_on_database_exits_in_a_line(tmp_path: Path) -> None:
    service = ControllerProcess(tmp_path, more="snapshot_seconds = 0.2")
    with service.life():
        command = [sys.executable, "-m", "anabranch", "--home", str(ROOT)]
        second = subprocess.run(
            [*command, "-c", str(tmp_path / "more.toml"), "controller"], capture_output=True, text=True, timeout=30
        )
    assert second.returncode == 1
    assert second.stdout == ""
    assert second.stderr.count("\n") == 1
    assert json.dumps(str(tmp_path))[1:-1] in second.stderr
