"""Every command ends with 3 when the lake, the controller, Kafka or ZooKeeper behind it gives no answer."""

from __future__ import annotations

import shlex

import pytest
from click.testing import CliRunner

from anabranch.cli.exits import UNREACHABLE, USAGE
from anabranch.cli.main import cli
from lake.tables import create_lake
from schemas.tables.rows import TABLES
from tests.cli.test_cli import LEAVES

CLOSED = "127.0.0.1:1"
LAKE = (
    "serve executor pause acme/shop --reason tried",
    "serve executor resume all --reason tried",
    "serve executor status",
    "serve alerts check",
    "serve alerts list",
    "serve alerts test OverloadNotRelieved",
    "status",
    "plan",
    "explain orders",
    "history orders",
    "sql 'SELECT count(*) FROM decisions'",
    "decisions list",
    "decisions show aa1",
    "decisions waiting",
    "decisions approve aa1 --reason tried",
    "decisions reject aa1 --reason tried",
    "decisions pause acme/shop --reason tried",
    "decisions resume all --reason tried",
    "decisions replay",
    "whatif backtest --policy calm.toml",
    "whatif suggest",
    "whatif shadow report",
    "bundles explain west",
    "bundles history west",
    "bookies history",
    "lake check",
    "lake create",
    "lake optimize",
    "lake retain batches --days 30",
    "lake retain decisions --days 30 --apply",
    "lake show",
    "lake show decisions",
    "lake vacuum",
)
CONTROLLER = (
    "topics adopt orders acme/shop/orders",
    "topics clear-backlog acme/shop/orders s --yes",
    "topics create acme/shop/orders",
    "topics delete acme/shop/orders --yes",
    "topics list acme/shop",
    "topics merge acme/shop/orders 0 1",
    "topics namespaces create acme/shop",
    "topics namespaces delete acme/shop",
    "topics namespaces list acme",
    "topics policy get acme/shop/orders",
    "topics policy remove acme/shop/orders",
    "topics policy set acme/shop/orders --max-segments 2",
    "topics rebucket acme/shop/orders 0 2",
    "topics sealed acme/shop/orders",
    "topics seek acme/shop/orders s --ago 1h",
    "topics show acme/shop/orders",
    "topics split acme/shop/orders 0",
    "topics stats acme/shop/orders",
    "topics watch acme/shop/orders",
    "policy show acme/shop/orders",
)
ZOOKEEPER = (
    "bookies check",
    "bookies cleanup --src-cluster old",
    "bookies list",
    "bookies precheck --name new",
    "bookies register --name new",
    "bookies rollback",
    "bookies status",
    "bookies switch --target new",
    "bookies unregister --name old",
)
KAFKA = ("kafka check", "kafka create")
ELSEWHERE = {
    # Processes and parts of a run: a supervisor starts them again, and 1 says so as well as 3.
    *("run", "serve stream", "serve executor", "serve controller", "serve controller copy", "serve web"),
    *("serve alerts", "serve collector bundles", "serve collector kafka", "serve collector pulsar", "local traffic"),
    # They ask no server.
    *("decisions decide", "whatif simulate", "policy check", "bundles check", "local reset"),
    *("config check", "config completion", "config schema", "config show"),
    *("config token list", "config token new", "config token remove"),
    # Answers about what gives no answer, and fetching.
    *("doctor", "local setup"),
    # They start a Spark.
    *("lake register", "lake state rebuild", "lake state show"),
}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A function that runs a command where nothing answers; the lake is the folder `lake`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "calm.toml").write_text("maxSegments = 4\n")
    settings = tmp_path / "own.toml"
    settings.write_text(
        f'[lake]\npath = "{tmp_path}/lake"\n[local]\nfolder = "{tmp_path}/var"\n'
        f'[stream]\ncheckpoint = "{tmp_path}/checkpoint"\n[controller]\nurl = "http://{CLOSED}"\n'
        f'[bookies]\nmetadata = "zk://{CLOSED}"\n[kafka]\nbootstrap = "{CLOSED}"\n'
    )
    return lambda command: CliRunner().invoke(cli, ["-c", str(settings), *shlex.split(command)])


def damage(lake):
    """A lake whose tables cannot be read."""
    for name in TABLES:
        log = lake / name / "_delta_log"
        log.mkdir(parents=True)
        (log / f"{0:020}.json").write_text("{")


def test_each_command_is_asked_without_an_answer():
    commands = (*LAKE, *CONTROLLER, *ZOOKEEPER, *KAFKA)
    asked = {leaf for leaf in LEAVES if any(f"{command} ".startswith(f"{leaf} ") for command in commands)}
    assert set(LEAVES) - asked - ELSEWHERE == set()


@pytest.mark.parametrize("command", LAKE)
def test_unreadable_lake_ends_with_3(run, tmp_path, command):
    damage(tmp_path / "lake")
    done = run(command)
    assert (done.exit_code, str(tmp_path) in done.stderr) == (UNREACHABLE, True), done.output


@pytest.mark.parametrize("command", CONTROLLER)
def test_absent_controller_ends_with_3(run, command):
    done = run(command)
    assert (done.exit_code, CLOSED in done.stderr) == (UNREACHABLE, True), done.output


@pytest.mark.parametrize("command", ZOOKEEPER)
def test_absent_zookeeper_ends_with_3(run, monkeypatch, command):
    monkeypatch.setattr("anabranch.cli.metadata_client._CONNECT_SECONDS", 0.2)
    done = run(command)
    assert (done.exit_code, f"no ZooKeeper answers at {CLOSED}" in done.stderr) == (UNREACHABLE, True), done.output


@pytest.mark.parametrize("command", KAFKA)
def test_absent_kafka_ends_with_3(run, monkeypatch, command):
    monkeypatch.setattr("anabranch.cli.commands.kafka.SECONDS", 0.5)
    done = run(command)
    assert (done.exit_code, CLOSED in done.stderr) == (UNREACHABLE, True), done.output


@pytest.mark.parametrize("command", ["explain nobody", "history nobody", "plan", "plan --topics nobody"])
def test_lake_without_topics_ends_with_3(run, tmp_path, command):
    create_lake(str(tmp_path / "lake"))
    done = run(command)
    assert (done.exit_code, " on record" in done.stderr) == (UNREACHABLE, True), done.output


@pytest.mark.parametrize("command", ["explain", "history orders extra", "plan --limit 0", "sql --output xml"])
def test_wrong_usage_ends_with_2(run, command):
    assert run(command).exit_code == USAGE
