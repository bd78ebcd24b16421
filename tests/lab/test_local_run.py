"""A whole local run in separate processes, every part of it killed with SIGKILL: it goes on, and its counts add up."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from html import unescape
from pathlib import Path
from random import Random

import httpx
import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from deltalake import DeltaTable

from anabranch.cli import cli
from lab.garbage import KINDS, make_garbage
from lab.processes import session_members
from lab.pulsar.load import dropped_receipts
from lab.pulsar.traffic import TOPIC
from schemas.ids import topic_name
from tests.waiting import wait_until

HOME = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.local_run, pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(900)]


class Run:
    """A run in a folder of its own."""

    def __init__(self, folder: Path, *more: str, on_terminal: bool = False) -> None:
        self.folder = folder
        overlay = folder / "overlay.toml"
        overlay.write_text(
            f'[lake]\npath = "{folder}/lake"\n[stream]\ncheckpoint = "{folder}/checkpoints/stream"\n'
            f'[controller]\ndatabase = "{folder}/controller.db"\n[local]\nfolder = "{folder}"\n'
            f'[collect]\nfolder = "{folder}/collect"\n'
        )
        arguments = [
            "--config",
            "conf/demonstration.toml",
            "--config",
            str(overlay),
            "run",
            "--local",
            *more,
        ]
        self.report = folder / "report.json"
        command = [sys.executable, "-m", "anabranch.cli", *arguments]
        if on_terminal:
            ours, its = pty.openpty()
            self.process = subprocess.Popen(command, cwd=HOME, stdin=subprocess.DEVNULL, stdout=its, stderr=its)
            os.close(its)
            threading.Thread(target=self._keep_output, args=(ours,), daemon=True).start()
            return
        with open(folder / "out.log", "ab") as log:
            self.process = subprocess.Popen(
                [*command, "--no-screen", "--report", str(self.report)],
                cwd=HOME, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def _keep_output(self, terminal: int) -> None:
        """What comes to a terminal, until nobody has it open any more."""
        with open(self.folder / "out.log", "ab", buffering=0) as log, suppress(OSError):
            while said := os.read(terminal, 65_536):
                log.write(said)
        os.close(terminal)

    @property
    def output(self) -> str:
        """What it has written so far."""
        return (self.folder / "out.log").read_text(errors="replace")

    def sessions(self) -> dict[str, int]:
        """The session of each running part."""
        try:
            return {
                entry["part"]: entry["session"] for entry in json.loads((self.folder / "processes.json").read_text())
            }
        except OSError:
            return {}

    def rows(self, table: str, *columns: str) -> list[dict]:
        folder = self.folder / "lake" / table
        if not (folder / "_delta_log").is_dir():
            return []
        return DeltaTable(str(folder)).to_pyarrow_table(columns=list(columns)).to_pylist()

    def endpoints(self) -> tuple[str, str]:
        """Kafka's bootstrap and the controller's URL."""
        values = dict(
            line.split(" = ") for line in (self.folder / "run.toml").read_text().splitlines() if " = " in line
        )
        return values["bootstrap"].strip('"'), values["url"].strip('"')

    def kill(self, part: str, program: str = "") -> None:
        """SIGKILL to everything of a part, or only to those of its processes that run `program`."""
        for pid in session_members(self.sessions()[part]):
            if Path(f"/proc/{pid}/comm").read_text().startswith(program):
                os.kill(pid, signal.SIGKILL)

    def wait_for_progress(self, of: str) -> None:
        """Until the part runs in a session other than before, and batches and outcomes are written again."""
        batches, outcomes = len(self.rows("batches", "batch_id")), len(self.rows("outcomes", "status"))
        wait_until(lambda: of in self.sessions() and session_members(self.sessions()[of]), 60, 0.1)
        wait_until(lambda: len(self.rows("batches", "batch_id")) > batches + 2, 120, 0.5)
        wait_until(lambda: len(self.rows("outcomes", "status")) > outcomes + 1, 120, 0.5)


@pytest.fixture
def run(tmp_path, jars):
    one = Run(tmp_path)
    yield one
    end(one)


@pytest.fixture
def run_with_pulsar(tmp_path, jars, pulsar_jars):
    one = Run(tmp_path, "--pulsar")
    yield one
    end(one)


@pytest.fixture
def run_in_the_shadow(tmp_path, jars, pulsar_jars):
    one = Run(tmp_path, "--pulsar", "--shadow", on_terminal=True)
    yield one
    end(one)


def end(one: Run) -> None:
    """Ends what a test that failed has left."""
    if one.process.poll() is None:
        one.process.kill()
        one.process.wait()
    for session in one.sessions().values():
        for pid in session_members(session):
            os.kill(pid, signal.SIGKILL)


class Onlooker(threading.Thread):
    """Looks at every layout as fast as it can, and keeps those that do not tile the hash space."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url, self.torn, self.seen, self.stop = url, [], 0, threading.Event()

    def run(self) -> None:
        with httpx.Client(base_url=self.url, timeout=2) as client:
            while not self.stop.wait(0.05):
                try:
                    for topic in client.get("/admin/v2/scalable/acme/shop").json():
                        layout = client.get(f"/admin/v2/scalable/{topic.removeprefix('topic://')}").json()
                        self._look(layout)
                except (httpx.HTTPError, ValueError):
                    continue

    def _look(self, layout: dict) -> None:
        expected = 0
        active = [s["hashRange"] for s in layout["segments"].values() if s["state"] == "ACTIVE"]
        for hashes in sorted(active, key=lambda hashes: hashes["start"]):
            if hashes["start"] != expected:
                break
            expected = hashes["end"] + 1
        self.seen += 1
        if expected != 0x10000:
            self.torn.append(layout)


def applied_kinds(run: Run) -> set[str]:
    """What kinds of decisions were applied so far."""
    applied = {
        row["decision_id"] for row in run.rows("outcomes", "decision_id", "status") if row["status"] == "applied"
    }
    kinds = set()
    for row in run.rows("decisions", "decision_id", "action", "reason"):
        if row["decision_id"] in applied:
            kinds.add("merge" if row["action"] == "merge" else "consumers" if "consumer" in row["reason"] else "load")
    return kinds


def test_every_part_is_killed_and_the_run_goes_on_with_nothing_lost_and_nothing_done_twice(run):
    wait_until(lambda: applied_kinds(run), 150, 0.5)
    bootstrap, url = run.endpoints()
    onlooker = Onlooker(url)
    onlooker.start()
    producer = Producer({"bootstrap.servers": bootstrap, "message.max.bytes": 20_000_000})
    expected = set()
    killed = [
        ("stream", ""),
        ("executor", ""),
        ("controller", ""),
        ("broker", ""),
        ("stream", "java"),
        ("stream", "python"),
    ]
    for part, program in killed:
        for kind in KINDS:
            bad = make_garbage(topic_name("acme", "shop", "orders"), time.time_ns() // 1_000_000, Random(kind), kind)
            producer.produce(bad.source, key=bad.key, value=bad.value)
            expected |= {bad.expected.value} if bad.expected else set()
        assert producer.flush(30) == 0
        run.kill(part, program)
        run.wait_for_progress(part)
    wait_until(lambda: applied_kinds(run) == {"consumers", "load", "merge"}, 120, 0.5)
    onlooker.stop.set()
    onlooker.join()
    sessions = run.sessions()
    run.process.send_signal(signal.SIGTERM)
    assert run.process.wait(180) == 0, (run.folder / "out.log").read_text()[-3000:]

    assert onlooker.seen > 100
    assert onlooker.torn == []
    report = json.loads(run.report.read_text())
    assert report["integrity"]["ok"], report["integrity"]
    assert report["integrity"]["kafka"]["lag"] == 0
    assert report["restarts"] >= len(killed)
    messages = report["messages"]
    assert expected <= set(report["deadLetters"])
    assert messages["total"] == messages["accepted"] + messages["suppressed"] + messages["deadLetters"]
    assert set(sessions) == {"broker", "controller", "stream", "executor", "traffic", "web"}
    assert [pid for session in sessions.values() for pid in session_members(session)] == []


def test_on_a_real_pulsar_a_topic_is_split_under_load_and_merged_after_it_and_every_message_comes_once(run_with_pulsar):
    run = run_with_pulsar
    wait_until(lambda: "load" in applied_kinds(run), 240, 0.5)
    run.kill("collect")
    run.kill("executor")
    wait_until(lambda: applied_kinds(run) == {"load", "merge"}, 240, 0.5)
    run.process.send_signal(signal.SIGTERM)
    assert run.process.wait(180) == 0, (run.folder / "out.log").read_text()[-3000:]

    report = json.loads(run.report.read_text())
    assert report["integrity"]["ok"], report["integrity"]
    assert report["deadLetters"] == {}
    load = report["load"]
    assert load["finished"]
    assert load["acknowledged"] > 1_000
    assert len(load["segments"]) >= 4
    assert (load["missing"], load["inversions"]) == (0, 0), load
    assert load["resent"] <= dropped_receipts(run.folder / "log" / "load.log"), load


def test_beside_pulsars_own_scaler_we_only_look_and_the_report_has_both_sides_in_every_form(run_in_the_shadow):
    run, path = run_in_the_shadow, f"/admin/v2/scalable/{TOPIC.removeprefix('topic://')}"
    wait_until(lambda: (run.folder / "run.toml").is_file(), 240, 0.5)
    _, url = run.endpoints()

    def they_have_split() -> bool:
        with suppress(httpx.HTTPError):
            answer = httpx.get(url + path, timeout=5)
            return answer.status_code == 200 and answer.json()["nextSegmentId"] >= 3
        return False

    wait_until(they_have_split, 240, 0.5)
    run.process.send_signal(signal.SIGINT)
    assert run.process.wait(180) == 0, run.output[-3000:]

    assert {row["status"] for row in run.rows("outcomes", "status")} <= {"observed"}
    options = [option for name in ("overlay", "run") for option in ("--config", str(run.folder / f"{name}.toml"))]
    told = CliRunner().invoke(
        cli, ["--config", "conf/demonstration.toml", *options, "shadow", "report", "--output", "json"]
    )
    assert told.exit_code == 0, told.output
    found = json.loads(told.stdout)
    theirs = [row for row in found["actions"] if row["theirsAt"]]
    ours = [row for row in found["actions"] if row["oursAt"]]
    assert (theirs[0]["topic"], theirs[0]["action"], theirs[0]["segments"]) == (TOPIC, "split", [0])
    sides = [found[side]["splits"] + found[side]["merges"] for side in ("theirs", "ours")]
    assert [len(theirs), len(ours)] == sides
    agreement = found["agreement"]
    # To each of theirs there is what we decided or would have said at that moment.
    assert "not known then" not in agreement["otherwise"], found
    answers = agreement["decidedBefore"], agreement["sameAtThatMoment"], *agreement["otherwise"].values()
    assert sum(answers) == len(theirs)
    page = unescape((run.folder / "shadow.html").read_text())
    for said in (run.output, page):
        assert "the cluster's scaler" in said
        assert "Anabranch" in said
        assert f"split 0 of {TOPIC}" in said or ("<td>split 0</td>" in said and TOPIC in said)
        assert theirs[0]["verdict"] in said
