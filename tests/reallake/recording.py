"""One local run with everything that happens to a real one, recorded once for all tests that read a lake.

Job, controller, executor, page and traffic run as processes. Several segments are hot at once, consumers come and go,
bad messages arrive, a policy changes, a topic is deleted and made again, and every process is killed with SIGKILL.
"""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx
from confluent_kafka import Producer

from anabranch.local.processes import session_members
from schemas.ids import topic_name
from tests.harness.garbage import KINDS, make_garbage
from tests.local.running import HOME, Run, applied_kinds, end
from tests.waiting import wait_until

NAMESPACE, RECREATED = "acme/shop", "topic://acme/shop/prices"
PARTS = {"kafka", "controller", "job", "executor", "traffic", "page"}
KILLED = [
    [("job", "java"), ("executor", "")],
    [("kafka", ""), ("traffic", ""), ("page", "")],
    [("controller", ""), ("job", "python")],
]
"""Parts whose processes are killed together: all of them, or those that run one program.

A job that is killed as a whole is in tests/streaming/test_kills.py.
"""
TRAFFIC = "[traffic]\npeak_msg_rate_in = 60000\n"
"""Twice the demonstration's: several segments of a topic are over their threshold at one evaluation."""


@dataclass
class Recording:
    """What one run left behind, and what was seen from outside while it ran."""

    folder: str
    exit_code: int = -1
    torn: list[dict[str, Any]] = field(default_factory=list)
    """Layouts that did not tile the hash space, as a client saw them."""
    layouts_seen: int = 0
    operations: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The controller's journal by operation id: each operation as it was last seen."""
    read_at: list[float] = field(default_factory=list)
    """Instants at which the journal was read."""
    garbage: list[str] = field(default_factory=list)
    """Reasons of the dead letters that the bad messages lead to."""
    garbage_sent: int = 0
    policy_changed_at: float = 0.0
    deleted_at: float = 0.0
    left_running: list[int] = field(default_factory=list)

    @property
    def lake(self) -> str:
        return f"{self.folder}/lake"

    @property
    def settings(self) -> list[str]:
        """Options of `anabranch` for the settings of the run."""
        files = (HOME / "conf" / "demonstration.toml", Path(self.folder, "overlay.toml"), Path(self.folder, "run.toml"))
        return [option for file in files for option in ("--config", str(file))]

    @property
    def report(self) -> dict[str, Any]:
        return dict(json.loads(Path(self.folder, "report.json").read_text()))

    def save(self) -> None:
        Path(self.folder, "recording.json").write_text(json.dumps(asdict(self)))


def load_recording(folder: Path) -> Recording:
    """Return the recording in a folder."""
    return Recording(**json.loads((folder / "recording.json").read_text()))


class Observer(threading.Thread):
    """Reads every layout and the controller's journal, some times a second."""

    def __init__(self, url: str, database: Path, recording: Recording) -> None:
        super().__init__(daemon=True)
        self.url, self.database, self.recording, self.stop = url, database, recording, threading.Event()

    def run(self) -> None:
        with httpx.Client(base_url=self.url, timeout=2) as client:
            while not self.stop.wait(0.2):
                with suppress(httpx.HTTPError, ValueError):
                    for topic in client.get(f"/admin/v2/scalable/{NAMESPACE}").json():
                        self._check(client.get(f"/admin/v2/scalable/{topic.removeprefix('topic://')}").json())
                self.read_journal()

    def read_journal(self) -> None:
        """Keep every operation: the controller forgets all but the newest of a topic."""
        began = time.time()
        with suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)) as database:
            for (value,) in database.execute("SELECT value FROM nodes WHERE path LIKE '/topics/%/operations/%'"):
                operation = json.loads(value)
                self.recording.operations[operation["id"]] = operation
            self.recording.read_at.append(began)

    def _check(self, layout: dict[str, Any]) -> None:
        if "segments" not in layout:
            return
        active = [segment["hashRange"] for segment in layout["segments"].values() if segment["state"] == "ACTIVE"]
        ranges = sorted((hashes["start"], hashes["end"] + 1) for hashes in active)
        borders = [0, *(border for pair in ranges for border in pair), 0x10000]
        self.recording.layouts_seen += 1
        if borders[::2] != borders[1::2]:
            self.recording.torn.append(layout)


def record(folder: Path) -> Recording:
    """Run the whole system in the folder, and end it cleanly; about two minutes."""
    recording, run = Recording(str(folder)), Run(folder, settings=TRAFFIC)
    try:
        wait_until(lambda: applied_kinds(run), 400, 0.5)
        observer = Observer(run.endpoints()[1], folder / "controller.db", recording)
        observer.start()
        _happen(recording, run)
        sessions = run.sessions()
        run.process.send_signal(signal.SIGTERM)
        recording.exit_code = run.process.wait(180)
        observer.stop.set()
        observer.join()
        observer.read_journal()
        recording.left_running = [pid for session in sessions.values() for pid in session_members(session)]
    finally:
        end(run)
    recording.save()
    return recording


def _happen(recording: Recording, run: Run) -> None:
    bootstrap, _ = run.endpoints()
    producer = Producer({"bootstrap.servers": bootstrap, "message.max.bytes": 20_000_000, "log_level": 0})
    for parts in KILLED:
        _send_garbage(producer, recording)
        for part, program in parts:
            run.kill(part, program)
        run.wait_for_progress(part for part, _ in parts)
        if ("executor", "") in parts:
            _command(recording, "topics", "policy", "set", NAMESPACE, "--max-segments", "12")
            recording.policy_changed_at = time.time()
        if ("controller", "") in parts:
            _command(recording, "topics", "delete", RECREATED, "--force", "--yes")
            recording.deleted_at = time.time()
            wait_until(lambda: creations(run, RECREATED) == 2, 120, 0.5)
    wait_until(lambda: applied_kinds(run) == {"consumers", "load", "merge"}, 120, 0.5)
    wait_until(lambda: set(run.sessions()) >= PARTS, 60, 0.5)


def creations(run: Run, topic: str) -> int:
    """Return how often the record has the topic's creation."""
    rows = run.rows("events", "subject", "cause", "life")
    return len({row["life"] for row in rows if (row["subject"], row["cause"]) == (topic, "created")})


def _send_garbage(producer: Producer, recording: Recording) -> None:
    topic = topic_name(*NAMESPACE.split("/"), "orders")
    for kind in KINDS:
        bad = make_garbage(topic, time.time_ns() // 1_000_000, Random(f"{kind}/{recording.garbage_sent}"), kind)
        producer.produce(bad.source, key=bad.key, value=bad.value)
        recording.garbage_sent += 1
        if bad.expected:
            recording.garbage.append(bad.expected.value)
    assert producer.flush(60) == 0


def _command(recording: Recording, *arguments: str) -> None:
    """Run a command as a user does, until it is done: the controller may just be starting again."""

    def done() -> bool:
        command = [sys.executable, "-m", "anabranch", *recording.settings, *arguments]
        return subprocess.run(command, cwd=HOME, capture_output=True, timeout=60).returncode == 0

    wait_until(done, 60, 0.5)
