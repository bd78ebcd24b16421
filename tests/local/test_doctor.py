"""The doctor: a good machine passes, and each fault is named with what to do about it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from anabranch.auth.tokens import add_token
from anabranch.cli.main import cli
from anabranch.local.doctor import examine, wrong_packages
from anabranch.local.processes import TOKEN_VARIABLE, carries_token
from anabranch.local.setup import LOCALFS_JAR
from anabranch.local.supervisor import lock_folder
from tests.cli.conftest import stranger
from tests.controller.conftest import run_controller
from tests.lake.object_store import serving
from tests.local.settings import home_with
from tests.waiting import wait_until

HOME = Path(__file__).resolve().parents[2]


@pytest.fixture
def object_store(monkeypatch):
    yield from serving(monkeypatch)


def wrong(file: Path) -> dict:
    """What the doctor finds wrong, by the check's name."""
    return {finding.check: finding for finding in examine(HOME, [file]) if not finding.ok}


def test_the_doctor_finds_this_machine_well(tmp_path, jars):
    findings = examine(HOME, [home_with(tmp_path)])
    assert [finding for finding in findings if not finding.ok] == []
    assert {"python", "java", "packages", "jars for spark", "jars for kafka", "jars for zookeeper", "disk", "lake"} <= {
        f.check for f in findings
    }


def test_the_doctor_says_what_is_wrong_and_what_to_do(tmp_path, jars, broker):
    folder = tmp_path / "jars"
    shutil.copytree(jars.spark, folder / "spark")
    (folder / "spark" / LOCALFS_JAR).unlink()
    next(iter((folder / "spark").glob("delta-spark*.jar"))).write_text("tampered")
    file = home_with(tmp_path, jars=str(folder), broker_port=broker.port, free_disk_mb=10**9)
    found = wrong(file)
    assert set(found) == {"jars for spark", "jars for kafka", "jars for zookeeper", "disk", "port of Kafka"}
    assert "another SHA-256" in found["jars for spark"].found
    assert all(finding.remedy for finding in found.values())


@pytest.mark.process
def test_table_in_a_pipe_keeps_each_path_on_a_line(tmp_path):
    file = home_with(tmp_path)
    run = CliRunner().invoke(cli, ["--home", str(HOME), "-c", str(file), "doctor"])
    assert any(line.startswith("ok") and str(file) in line for line in run.output.splitlines()), run.output


def port_of_the_controller(tmp_path, monkeypatch, url):
    """What the doctor says of the controller's port when that is the one of an address; it has time."""
    monkeypatch.setattr("anabranch.local.doctor.HEALTH_SECONDS", 120.0)
    file = home_with(tmp_path)
    file.write_text(f"{file.read_text()}[controller]\nport = {urlsplit(url).port}\n")
    (finding,) = (finding for finding in examine(HOME, [file]) if finding.check == "port of the controller")
    return finding


@pytest.mark.process
def test_port_of_our_running_controller_is_known(tmp_path, monkeypatch):
    with run_controller(tmp_path / "layouts.db") as running:
        finding = port_of_the_controller(tmp_path, monkeypatch, running.url)
    assert "used by a controller that says" in finding.found


@pytest.mark.process
@pytest.mark.parametrize(
    ("status", "body", "ok", "said"),
    [
        (200, b'{"status":"ok"}', True, "used by a controller that says ok"),
        (503, b'{"status":"failing"}', False, "used by a controller that says failing"),
        (200, b"ok\n", False, "stop that process, or set 0"),
    ],
    ids=["healthy", "failing", "foreign"],
)
def test_port_is_well_with_a_healthy_controller_alone(tmp_path, monkeypatch, status, body, ok, said):
    with stranger((status, {}, body)) as server:
        finding = port_of_the_controller(tmp_path, monkeypatch, server.url)
    assert (finding.ok, said in f"{finding.found} {finding.remedy}") == (ok, True), finding


@pytest.mark.process
def test_the_doctor_names_the_key_of_wrong_settings(tmp_path):
    file = tmp_path / "wrong.toml"
    file.write_text("[stream]\nbukets = 1\n")
    assert "stream.bukets" in wrong(file)["settings"].found


@pytest.mark.process
def test_token_file_open_to_others_is_named(tmp_path):
    add_token(tmp_path / "tokens", "executor", "operate")
    file = home_with(tmp_path)
    file.write_text(f'{file.read_text()}\n[controller]\ntokens_file = "{tmp_path}/tokens"\n')
    assert "tokens" not in wrong(file)
    (tmp_path / "tokens").chmod(0o644)
    assert "chmod 600" in wrong(file)["tokens"].found


def test_a_table_that_cannot_be_read_is_named(tmp_path, jars):
    log = tmp_path / "lake" / "decisions" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text("garbage")
    found = wrong(home_with(tmp_path))
    assert set(found) == {"lake"}
    assert "decisions" in found["lake"].found


@pytest.mark.process
@pytest.mark.parametrize("fault", ["", "condition ignored"])
def test_object_storage_of_the_lake_is_tried(tmp_path, monkeypatch, object_store, fault):
    monkeypatch.setenv("ANABRANCH_LAKE__PATH", "s3://bucket/lake")
    object_store.fail_puts(fault)
    [finding] = [finding for finding in examine(HOME, [home_with(tmp_path)]) if finding.check == "object storage"]
    assert finding.ok == (not fault)
    assert object_store.keys() == []


def test_a_policy_that_cannot_be_read_is_named(tmp_path, jars):
    file = home_with(tmp_path)
    policy = tmp_path / "policy.toml"
    policy.write_text("maxSegments = 'many'\n")
    file.write_text(f'{file.read_text()}[policy]\ncluster = "{policy}"\n')
    found = wrong(file)
    assert set(found) == {"policy"}
    assert "maxSegments" in found["policy"].found


@pytest.mark.parametrize(("bootstrap", "ok"), [("127.0.0.1:1", True), ("kafka.invalid:9092", False)])
def test_remote_kafka_must_answer(tmp_path, jars, bootstrap, ok):
    file = home_with(tmp_path)
    file.write_text(f'{file.read_text()}[kafka]\nbootstrap = "{bootstrap}"\n')
    (kafka,) = (finding for finding in examine(HOME, [file]) if finding.check == "Kafka")
    assert kafka.ok is ok
    assert bootstrap in kafka.found


def test_unusable_certificates_and_clear_text_named(tmp_path, jars):
    file = home_with(tmp_path)
    common = file.read_text()
    file.write_text(f'{common}[controller]\ncertificate = "nowhere.pem"\nkey = "nowhere.key"\n')
    assert "nowhere.pem" in wrong(file)["transport"].found
    file.write_text(f'{common}[controller]\nurl = "http://c.invalid:8080"\n')
    (transport,) = (finding for finding in examine(HOME, [file]) if finding.check == "transport")
    assert transport.ok
    assert "without TLS" in transport.found


@pytest.mark.broker
def test_a_kafka_that_answers_is_well(tmp_path, jars, broker):
    file = home_with(tmp_path)
    file.write_text(f'{file.read_text()}[kafka]\nbootstrap = "{broker.bootstrap}"\n')
    (kafka,) = (finding for finding in examine(HOME, [file]) if finding.check == "Kafka")
    assert kafka.found == f"{broker.bootstrap} answers"


def test_killed_run_named_and_living_run_accepted(tmp_path, jars):
    file, folder = home_with(tmp_path), tmp_path / "var"
    folder.mkdir()
    left = subprocess.Popen(
        [sys.executable, "-c", "import threading; threading.Event().wait()"],
        start_new_session=True,
        env={**os.environ, TOKEN_VARIABLE: "killed"},
    )
    try:
        wait_until(lambda: carries_token(left.pid, "killed"))
        entry = {"part": "x", "session": left.pid, "token": "killed"}
        (folder / "processes.json").write_text(json.dumps([entry]))
        assert f"sessions {left.pid}" in wrong(file)["local run"].found
        with lock_folder(folder):
            assert "local run" not in wrong(file)
        assert left.poll() is None
    finally:
        left.kill()
        left.wait()


def test_missing_or_other_package_is_named():
    """Packages that only other machines need are left out."""
    lock = "click==0.0.1 \\\n    --hash=sha256:00\nno-such-package==1 \\\nonly-there==1 ; sys_platform == 'win32' \\\n"
    changed, missing = wrong_packages(lock)
    assert changed.startswith("click ")
    assert changed.endswith("instead of 0.0.1")
    assert missing == "no-such-package is missing"


def test_the_command_answers_json_with_an_exit_code(tmp_path, jars):
    arguments = ["--config", str(home_with(tmp_path, free_disk_mb=10**9)), "doctor", "--output", "json"]
    done = subprocess.run(
        [sys.executable, "-m", "anabranch", *arguments], cwd=HOME, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert [finding["check"] for finding in json.loads(done.stdout) if not finding["ok"]] == ["disk"]
