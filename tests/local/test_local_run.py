"""Local runs with real clients or a real Pulsar in separate processes, parts of them killed with SIGKILL."""

from __future__ import annotations

import json
import signal
from contextlib import suppress
from html import unescape

import httpx
import pytest
from click.testing import CliRunner

from anabranch.cli.main import cli
from anabranch.local.pulsar.traffic import TOPIC
from tests.harness.pulsar.client_log import dropped_receipts
from tests.local.running import Run, applied_ids, applied_kinds, end, superseded_by_others
from tests.waiting import wait_until

pytestmark = [pytest.mark.local_run, pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(900)]


@pytest.fixture
def run_with_clients(tmp_path, jars):
    one = Run(tmp_path, "--demand", "clients", base="clients")
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


@pytest.mark.soak
def test_clients_lose_nothing_when_parts_are_killed(run_with_clients):
    run = run_with_clients
    wait_until(lambda: applied_kinds(run), 240, 0.5)
    before = len(applied_ids(run))
    for part in ("collector", "executor", "controller", "job"):
        run.kill(part)
    # Decided, applied and followed by the clients, after all of them are back.
    wait_until(lambda: len(applied_ids(run)) >= before + 2, 240, 0.5)
    run.process.send_signal(signal.SIGTERM)
    assert run.process.wait(180) == 0, run.output[-3000:]

    report = json.loads(run.report.read_text())
    assert report["integrity"]["ok"], report["integrity"]
    assert report["deadLetters"] == {}
    assert superseded_by_others(run.folder / "lake") == [], "nobody else acts on the topics"
    counts = report["clients"]
    assert counts["produced"] == counts["consumed"] > 10_000, counts
    assert (counts["lost"], counts["outOfOrder"], counts["failed"]) == (0, 0, 0), counts


@pytest.mark.soak
def test_pulsar_topic_splits_and_merges_without_loss(run_with_pulsar):
    """Every message comes once."""
    run = run_with_pulsar
    wait_until(lambda: "load" in applied_kinds(run), 240, 0.5)
    run.kill("collector")
    run.kill("executor")
    wait_until(lambda: applied_kinds(run) == {"load", "merge"}, 240, 0.5)
    # With a third action, messages have come to what the first two made.
    wait_until(lambda: len(applied_ids(run)) >= 3, 240, 0.5)
    run.process.send_signal(signal.SIGTERM)
    assert run.process.wait(180) == 0, (run.folder / "out.log").read_text()[-3000:]

    report = json.loads(run.report.read_text())
    assert report["integrity"]["ok"], report["integrity"]
    assert report["deadLetters"] == {}
    assert superseded_by_others(run.folder / "lake") == [], "nobody else acts on the topic"
    load = report["load"]
    assert load["finished"]
    assert load["acknowledged"] > 1_000
    assert len(load["segments"]) >= 4
    assert (load["missing"], load["inversions"]) == (0, 0), load
    assert load["resent"] <= dropped_receipts(run.folder / "log" / "load.log"), load


@pytest.mark.soak
def test_pulsars_scaler_observed_and_reported_in_full(run_in_the_shadow):
    """The report has both sides in every form."""
    run, path = run_in_the_shadow, f"/admin/v2/scalable/{TOPIC.removeprefix('topic://')}"
    wait_until(lambda: (run.folder / "run.toml").is_file() and (run.folder / "run.toml").read_text(), 240, 0.5)
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
