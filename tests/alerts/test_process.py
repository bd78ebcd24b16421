"""`anabranch serve alerts` as a process on a real Alertmanager, both killed: no notice is lost or sent twice."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from anabranch.alerts.record import recorded_alerts
from anabranch.cli.main import cli
from anabranch.local.processes import tethered
from tests.alerts.alertmanager import RealAlertmanager, ensure_alertmanager
from tests.alerts.receiver import receiving
from tests.alerts.test_evaluator import OPEN
from tests.local.lake import decision, outcome, write
from tests.waiting import wait_until

pytestmark = pytest.mark.process

PROJECT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def program():
    return ensure_alertmanager(PROJECT / ".cache" / "alertmanager")


class Alerts:
    """The command, in a home of its own."""

    def __init__(self, home, url):
        self.home, self.lake, self.process = home, str(home / "lake"), None
        home.mkdir()
        (home / "anabranch.toml").write_text('[lake]\npath = "lake"\n[alerts]\nrules = "rules.yaml"\n')
        (home / "rules.yaml").write_text(
            json.dumps(
                {
                    "interval": "1s",
                    "rules": [{**OPEN, "above": 0}],
                    "destinations": {"am": {"kind": "alertmanager", "url": url, "allow_local": True}},
                }
            )
        )

    def words(self, *words):
        return ["--home", str(self.home), "alerts", *words]

    def command(self, *words):
        return [sys.executable, "-m", "anabranch", *self.words(*words)]

    def start(self):
        with open(self.home / "log", "ab") as log:
            self.process = subprocess.Popen(tethered(self.command()), stdout=log, stderr=log, cwd=PROJECT)

    def kill(self, how=signal.SIGKILL):
        self.process.send_signal(how)
        return self.process.wait(30)

    def told(self):
        return [row for row in recorded_alerts(self.lake) if row["status"] == "told"]


@pytest.fixture(params=["1s"])
def running(program, tmp_path, request):
    with receiving() as receiver:
        manager = RealAlertmanager(program, tmp_path / "am", receiver.url, request.param)
        alerts = Alerts(tmp_path / "home", manager.url)
        manager.start()
        try:
            yield receiver, manager, alerts
        finally:
            for one in (alerts.process, manager._process):
                if one is not None and one.poll() is None:
                    os.kill(one.pid, signal.SIGKILL)
                    one.wait()


def heard(receiver, status):
    return sorted(
        alert["labels"]["topic"] for body in receiver.bodies for alert in body["alerts"] if alert["status"] == status
    )


def test_evaluator_kills_lose_and_repeat_no_alert(running):
    """Evaluator and Alertmanager are killed in turn."""
    receiver, manager, alerts = running
    write(alerts.lake, decision(0, subject="one"))
    alerts.start()
    wait_until(lambda: heard(receiver, "firing") == ["one"], 60)
    wait_until(lambda: len(alerts.told()) == 1, 30)
    alerts.kill()

    write(alerts.lake, decision(1, 2, subject="two"))
    alerts.start()
    wait_until(lambda: heard(receiver, "firing") == ["one", "two"], 60)
    wait_until(lambda: len(alerts.told()) == 2, 30)
    notified = time.time()
    wait_until(lambda: manager.remembers(notified), 30)

    manager.kill()
    write(alerts.lake, decision(2, 3, subject="three"), outcome("d1", "applied", 9))
    wait_until(lambda: any(row["status"] == "resolved" for row in recorded_alerts(alerts.lake)), 30)
    assert len(alerts.told()) == 2
    alerts.kill()
    manager.start()
    alerts.start()
    wait_until(lambda: heard(receiver, "firing") == ["one", "three", "two"], 60)
    wait_until(lambda: heard(receiver, "resolved") == ["one"], 60)
    wait_until(lambda: len(alerts.told()) == 4, 30)
    assert {alert["labels"]["topic"] for alert in manager.alerts()} == {"two", "three"}
    assert alerts.kill(signal.SIGTERM) == 0
    assert heard(receiver, "firing") == ["one", "three", "two"]
    assert heard(receiver, "resolved") == ["one"]


@pytest.mark.parametrize("running", ["5m"], indirect=True)
def test_resolved_alert_outlives_a_kill_of_both(running):
    """Alertmanager notifies of a resolved alert after five minutes, and is killed before that."""
    receiver, manager, alerts = running
    write(alerts.lake, decision(0, subject="one"))
    alerts.start()
    wait_until(lambda: heard(receiver, "firing") == ["one"], 60)
    wait_until(lambda: len(alerts.told()) == 1, 30)
    notified = time.time()
    wait_until(lambda: manager.remembers(notified), 30)
    write(alerts.lake, outcome("d1", "applied", 9))
    wait_until(lambda: len(alerts.told()) == 2 and not manager.alerts(), 60)
    alerts.kill()
    manager.kill()
    assert heard(receiver, "resolved") == []
    manager.start()
    alerts.start()
    wait_until(lambda: heard(receiver, "resolved") == ["one"], 60)
    assert heard(receiver, "firing") == ["one"]


def test_command_shows_alerts_and_checks_rules(tmp_path):
    with receiving() as receiver:
        alerts = Alerts(tmp_path / "home", receiver.url)
        write(alerts.lake, decision(0, subject="one"))

        def said(*words):
            done = CliRunner().invoke(cli, alerts.words(*words))
            assert isinstance(done.exception, SystemExit | None), done.exception
            return done.exit_code, done.output

        assert said("test", "Open", "--at", "2026-11-20T12:00:10Z") == (1, "firing: one 10\n")
        assert said("test", "Open", "--at", "2026-11-20T11:00") == (0, "Open says nothing at 2026-11-20T11:00:00Z\n")
        code, words = said("test", "Opn")
        assert code == 2
        assert "no rule is called 'Opn'; there are: Open" in words
        assert said("check") == (0, "1 rules, 0 of them wrong; told to am\n")
        assert said("list")[1] == "no alert fires or is pending\n"
        # A process of its own: the command takes over what signals do.
        assert subprocess.run(alerts.command("--once"), cwd=PROJECT, check=False).returncode == 0
        assert [alert["labels"]["topic"] for body in receiver.bodies for alert in body] == ["one"]
        assert "firing    Open: one" in said("list")[1]
        assert [row["status"] for row in json.loads(said("list", "--all", "--output", "json")[1])] == [
            "firing",
            "due",
            "told",
        ]
        (alerts.home / "rules.yaml").write_text("rules: [{name: A, sql: SELECT x FROM decisions, summary: s}]")
        code, words = said("check")
        assert code == 1
        assert "A: " in words
        wrong = "SELECT subject AS topic, max(decided_at) FROM decisions GROUP BY subject"
        (alerts.home / "rules.yaml").write_text(
            json.dumps(
                {
                    "rules": [
                        {**OPEN, "name": "Sound"},
                        {"name": "Nameless", "sql": wrong, "summary": "s"},
                        {"name": "Reserved", "sql": "SELECT subject AS __topic FROM decisions", "summary": "s"},
                    ]
                }
            )
        )
        ended = subprocess.run(alerts.command("--once"), cwd=PROJECT, capture_output=True, text=True, check=False)
        assert (ended.returncode, "cannot be evaluated: Nameless, Reserved\n" in ended.stderr) == (1, True)
        code, words = said("check")
        assert code == 1
        assert re.findall(r"^(\w+): the column (\S+) cannot be a label", words, re.MULTILINE) == [
            ("Nameless", "'max(decisions.decided_at)'"),
            ("Reserved", "'__topic'"),
        ]
