"""`anabranch run`: what is wrong is one line, and a start that is interrupted leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, KafkaException, TopicPartition

from anabranch.cli.main import cli
from anabranch.local.broker import is_serving
from anabranch.local.local_run import LocalRun, part_environment, port_of_page
from anabranch.local.processes import session_members
from anabranch.local.run_file import write_run_file
from anabranch.local.setup import check_client_package
from anabranch.local.supervisor import lock_folder
from runtime.java_home import SetupError
from schemas.kafka.connection import KafkaConnection
from schemas.kafka.topics import SEGMENT_STATS
from schemas.settings.root import SECRET_VARIABLES, load_settings, without_secrets
from tests.waiting import wait_until

HOME = Path(__file__).resolve().parents[2]


def settings_file(tmp_path: Path, **local) -> Path:
    text = f'[lake]\npath = "{tmp_path}/lake"\n[stream]\ncheckpoint = "{tmp_path}/checkpoints/stream"\n'
    text += f'[controller]\nport = 0\ndatabase = "{tmp_path}/controller.db"\n[local]\nfolder = "{tmp_path}/var"\n'
    text += "".join(f"{key} = {value}\n" for key, value in local.items())
    file = tmp_path / "run.toml"
    file.write_text(text)
    return file


def command(*arguments: str, file: Path | None = None) -> list[str]:
    config = [] if file is None else ["--config", str(file)]
    return [sys.executable, "-m", "anabranch", *config, "run", *arguments]


def run(*arguments: str, file: Path | None = None) -> subprocess.CompletedProcess:
    return subprocess.run(
        command(*arguments, file=file), cwd=HOME, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
    )


def messages(bootstrap: str, topic: str) -> int:
    """How many messages a Kafka topic holds; 0 when there is no such topic yet."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "onlooker", "log_level": 0})
    try:
        partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        return sum(consumer.get_watermark_offsets(TopicPartition(topic, one), timeout=10)[1] for one in partitions)
    except KafkaException:
        return 0
    finally:
        consumer.close()


def test_a_shadow_without_a_pulsar_is_refused():
    refused = CliRunner().invoke(cli, ["run", "--local", "--shadow"])
    assert (refused.exit_code, "--shadow is for --pulsar" in refused.output) == (2, True), refused.output


@pytest.mark.process
def test_missing_local_option_explains_clusters():
    done = run()
    assert done.returncode == 2
    assert "--local" in done.stderr


@pytest.mark.process
def test_a_duration_that_cannot_be_read_is_refused():
    done = run("--local", "--for", "soon")
    assert done.returncode == 2
    assert "'soon' is no duration" in done.stderr


def test_too_little_disk_is_one_line_with_what_to_do(tmp_path, jars):
    done = run("--local", "--no-screen", file=settings_file(tmp_path, free_disk_mb=10**9))
    assert done.returncode == 1
    assert done.stderr.strip().count("\n") == 0
    assert "make room" in done.stderr


def test_second_run_in_folder_names_the_first(tmp_path, jars):
    with lock_folder(tmp_path / "var"):
        done = run("--local", "--no-screen", file=settings_file(tmp_path))
    assert done.returncode == 1
    assert f"process {os.getpid()}" in done.stderr


def test_checkpoint_without_broker_gives_advice(tmp_path, jars):
    (tmp_path / "checkpoints" / "stream" / "offsets").mkdir(parents=True)
    done = run("--local", "--no-screen", file=settings_file(tmp_path))
    assert done.returncode == 1
    assert "make reset" in done.stderr


@pytest.mark.process
def test_unwritable_report_refused_before_start(tmp_path):
    done = run("--local", "--for", "1s", "--report", str(tmp_path / "none" / "r.json"), file=settings_file(tmp_path))
    assert done.returncode == 2
    assert f"there is no folder {tmp_path}/none" in done.stderr
    assert not (tmp_path / "var").exists()


def test_parts_get_no_foreign_cluster_from_shell():
    shell = {
        "PATH": "/bin",
        "JAVA_HOME": "/java",
        "SPARK_HOME": "/spark3",
        "PYSPARK_PYTHON": "python2",
        "HADOOP_CONF_DIR": "/hdfs",
        "ANABRANCH_KAFKA_BOOTSTRAP": "live:9092",
        "ANABRANCH_CONTROLLER_URL": "http://live",
        "ANABRANCH_CONTROLLER_METADATA": "zk://live:2181",
        "ANABRANCH_CONTROLLER_METADATA_AUTH": "me:s3cret",
    }
    assert part_environment(shell, "127.0.0.1:1", "http://127.0.0.1:2") == {
        "PATH": "/bin",
        "JAVA_HOME": "/java",
        "ANABRANCH_KAFKA_BOOTSTRAP": "127.0.0.1:1",
        "ANABRANCH_CONTROLLER_URL": "http://127.0.0.1:2",
    }


def test_servers_are_given_no_secret():
    shell = {"PATH": "/bin", **dict.fromkeys(SECRET_VARIABLES, "s3cret")}
    assert without_secrets(shell) == {"PATH": "/bin"}
    assert {"ANABRANCH_CONTROLLER_TOKEN", "ANABRANCH_KAFKA_PASSWORD"} < SECRET_VARIABLES


@pytest.mark.soak
@pytest.mark.broker
def test_run_stays_on_own_cluster(tmp_path, jars):
    shell = {
        "ANABRANCH_KAFKA_BOOTSTRAP": "live.invalid:9092",
        "ANABRANCH_CONTROLLER_URL": "http://live.invalid",
        "http_proxy": "http://127.0.0.1:1",
        "HTTP_PROXY": "http://127.0.0.1:1",
    }
    without = ["--without", "job", "--without", "executor", "--no-screen"]
    with subprocess.Popen(
        command("--local", *without, file=settings_file(tmp_path)),
        cwd=HOME,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **shell},
    ) as running:
        try:
            file = tmp_path / "var" / "run.toml"
            wait_until(lambda: file.exists() and file.read_text(), 60)
            bootstrap = load_settings([file], HOME, {}).kafka.bootstrap
            wait_until(lambda: is_serving(KafkaConnection(bootstrap)), 60)
            wait_until(lambda: messages(bootstrap, SEGMENT_STATS.name) > 0, 60, 0.2)
        finally:
            running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0
    assert "live.invalid" not in (tmp_path / "var" / "log" / "controller.log").read_text()


@pytest.mark.process
def test_run_file_names_the_kind_of_load(tmp_path):
    settings = load_settings([HOME / "conf/clients.toml"], tmp_path, {})
    file = write_run_file(settings, "127.0.0.1:1", 2, 3, pulsar=False, shadow=False)
    assert load_settings([file], HOME, {}).traffic.load == "clients"


@pytest.mark.process
@pytest.mark.parametrize("pulsar", [False, True])
def test_run_file_alone_leads_to_the_same_state(tmp_path, pulsar):
    settings = load_settings([HOME / "conf/demonstration-pulsar.toml"], tmp_path, {})
    file = write_run_file(settings, "127.0.0.1:1", 2, 3, pulsar=pulsar, shadow=pulsar)
    alone = load_settings([file], HOME, {})
    assert alone.lake_path == f"{tmp_path}/var/with-pulsar/lake"
    assert alone.stream.checkpoint == f"{tmp_path}/checkpoints/with-pulsar/stream"
    assert (alone.local.folder, alone.collect.folder) == (str(file.parent), f"{tmp_path}/var/with-pulsar/collect")
    assert alone.controller.database == f"{tmp_path}/var/controller/controller.db"
    assert (alone.kafka.bootstrap, alone.controller.url) == ("127.0.0.1:1", "http://127.0.0.1:2")
    assert alone.executor.mode == ("observe" if pulsar else settings.executor.mode)


@pytest.mark.process
def test_run_file_keeps_a_checkpoint_in_object_storage(tmp_path):
    overlay = tmp_path / "s3.toml"
    overlay.write_text('[stream]\ncheckpoint = "s3a://bucket/checkpoint"\n')
    settings = load_settings([HOME / "conf/demonstration.toml", overlay], tmp_path, {})
    file = write_run_file(settings, "127.0.0.1:1", 2, 3, pulsar=False, shadow=False)
    assert load_settings([file], HOME, {}).stream.checkpoint == "s3a://bucket/checkpoint"


@pytest.mark.broker
def test_unreadable_tables_give_advice(tmp_path, jars):
    log = tmp_path / "lake" / "decisions" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text("garbage")
    done = run("--local", "--no-screen", file=settings_file(tmp_path))
    assert done.returncode == 2
    assert "if its log is damaged, put a backup in its place" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.broker
@pytest.mark.parametrize("name", [pytest.param(signal.SIGTERM, marks=pytest.mark.soak), signal.SIGINT])
def test_signal_during_start_leaves_nothing(tmp_path, jars, name):
    record = tmp_path / "var" / "processes.json"
    log = tmp_path / "out.log"
    with open(log, "wb") as output:
        running = subprocess.Popen(
            command("--local", "--no-screen", file=settings_file(tmp_path)),
            cwd=HOME,
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
        )
    try:
        wait_until(lambda: record.exists() and json.loads(record.read_text()), 60)
        sessions = [entry["session"] for entry in json.loads(record.read_text())]
        running.send_signal(name)
        running.wait(60)
    finally:
        running.kill()
        running.wait()
    assert sessions
    assert [pid for session in sessions for pid in session_members(session)] == []
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ((), ["local", "demonstration", "story", "clients"]),
        (("--demand", "generated"), ["local", "demonstration", "story", "generated"]),
        (("--field",), ["local", "generated"]),
        (("--pulsar",), ["local", "demonstration", "demonstration-pulsar"]),
    ],
)
def test_each_demand_has_settings_and_a_place_of_its_own(tmp_path, monkeypatch, options, names):
    runs = []
    monkeypatch.setattr("anabranch.local.local_run.LocalRun", lambda settings, files, *_, **__: runs.append(files))
    CliRunner().invoke(cli, ["--home", str(tmp_path), "run", "--local", *options])
    assert [file.stem for file in runs[0]] == names


def test_state_of_another_demand_is_refused(tmp_path):
    (tmp_path / "var").mkdir()
    (tmp_path / "var" / "run.toml").write_text('[traffic]\nload = "generated"\n')
    with pytest.raises(SetupError, match=r"--demand generated.*local reset"):
        LocalRun(load_settings([HOME / "conf/clients.toml"], tmp_path, {}), []).start()


@pytest.mark.process
def test_taken_port_of_the_page_is_named():
    said = []
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        assert port_of_page(taken, said.append) not in (0, taken)
    assert said == [f"port {taken} for the page is taken: it gets a free one"]


@pytest.mark.parametrize("option", ["--pulsar", "--field"])
def test_real_clients_refuse_other_demands(tmp_path, option):
    done = CliRunner().invoke(cli, ["--home", str(tmp_path), "run", "--local", "--demand", "clients", option])
    assert done.exit_code == 2
    assert "--demand clients" in done.output


def test_missing_client_package_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SetupError, match="pip install"):
        check_client_package()
