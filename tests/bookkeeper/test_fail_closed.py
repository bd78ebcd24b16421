"""Commands that refuse, on simulated clusters: two names of one cluster, a source that is away, brokers that run."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import pytest

from anabranch.bookkeeper.guard import BROKERS
from tests.bookkeeper.simulated import CLUSTERS, SWITCH, Simulated, registered, world


@pytest.fixture(scope="module")
def beginning(tmp_path_factory: pytest.TempPathFactory) -> Simulated:
    """A Pulsar whose clusters are registered."""
    one = Simulated(tmp_path_factory.mktemp("closed") / "pulsar", world())
    with one.under_the_commands():
        registered(one, "old", "new")
    return one


@pytest.fixture
def sim(beginning: Simulated, tmp_path: Path) -> Iterator[Simulated]:
    """A copy of it."""
    one = beginning.copied(tmp_path / "pulsar")
    with one.under_the_commands():
        yield one


def refused(one: Simulated, *arguments: str) -> str:
    """Return what a command says that has to be refused, and has to change nothing."""
    ledgers = {name: dict(there) for name, there in one.world.ledgers.items()}
    result = one.run(*arguments)
    assert result is not None
    assert result.exit_code == 1, result.output
    assert "Traceback" not in result.output
    assert one.world.ledgers == ledgers
    return result.output


def test_second_name_of_a_cluster_is_not_registered(sim: Simulated) -> None:
    sim.world.ensembles["alias:2181"] = sim.world.ensembles["a:2181"]
    shown = refused(sim, "register", "--name", "twin", "--metadata-service-uri", "zk://alias:2181/ledgers")
    assert "old are one BookKeeper cluster" in shown or "twin and old are one BookKeeper cluster" in shown
    assert "twin" not in sim.ok("list")


def test_cluster_without_identity_not_registered(sim: Simulated) -> None:
    shown = refused(sim, "register", "--name", "none", "--metadata-service-uri", "zk://nowhere:2181/ledgers")
    assert "there is no /ledgers/INSTANCEID" in shown


@pytest.mark.parametrize("command", [SWITCH, ("rollback", "--no-dry-run"), ("cleanup", "--force", "--no-dry-run")])
def test_two_addresses_of_one_cluster_hold(sim: Simulated, command: tuple[str, ...]) -> None:
    """Registered as two, by a version that did not compare; or an address that leads elsewhere by now."""
    if command != SWITCH:
        sim.ok(*SWITCH)
    sim.world.ensembles["b:2181"] = sim.world.ensembles["a:2181"]
    sim.world.ledgers["new"] = sim.world.ledgers["old"]
    assert "instance-id" in refused(sim, *command)


def test_switch_from_unreachable_source_refused(sim: Simulated) -> None:
    del sim.world.ensembles["a:2181"]["/ledgers/INSTANCEID"]
    for command in (("precheck", "--name", "new"), ("precheck", "--name", "new", "--advance"), SWITCH):
        assert "nothing is known of the ids of old" in refused(sim, *command)


@pytest.mark.parametrize("command", [SWITCH, ("rollback", "--no-dry-run"), ("cleanup", "--force", "--no-dry-run")])
def test_running_brokers_refuse_what_acts(sim: Simulated, command: tuple[str, ...]) -> None:
    if command != SWITCH:
        sim.ok(*SWITCH)
    sim.world.put("pulsar:2181", f"{BROKERS}/broker-1:8080")
    assert "registered now, such as broker-1:8080" in refused(sim, *command)
    assert "stock" not in refused(sim, *command)
    assert "brokers that know one cluster only" in refused(sim, *command, "--brokers", "stock")


def test_newly_started_brokers_hold_open_steps(sim: Simulated) -> None:
    assert sim.run(*SWITCH, kill_at=9) is None
    sim.world.put("pulsar:2181", f"{BROKERS}/broker-1:8080")
    assert "registered now" in refused(sim, *SWITCH)
    shown = sim.ok("status")
    assert shown.splitlines()[-1].endswith("then anabranch bookies switch --target new --no-dry-run")
    sim.world.ensembles["pulsar:2181"][BROKERS].children.clear()
    assert "2 of 2 on new" in sim.ok(*SWITCH)


def test_registry_keeps_the_identity_of_clusters(sim: Simulated) -> None:
    registry = {name: sim.world.ensembles["pulsar:2181"][f"/admin/bookie-clusters/{name}"] for name in ("old", "new")}
    assert all(f'"instance":"i-{name}"'.encode() in node.content for name, node in registry.items())
    sim.world.put(CLUSTERS["new"], "/ledgers/INSTANCEID", b"formatted anew")
    assert "was registered with i-new" in refused(sim, "precheck", "--name", "new")


@pytest.mark.parametrize(
    "command",
    [
        ("register", "--name", "third", "--metadata-service-uri", f"zk://{CLUSTERS['third']}/ledgers"),
        ("unregister", "--name", "new"),
        ("precheck", "--name", "new", "--advance"),
        ("switch", "--target", "new"),
    ],
)
def test_dry_run_of_an_acting_command_writes_nothing(tmp_path: Path, command: tuple[str, ...]) -> None:
    one = Simulated(tmp_path / "dry", world())
    with one.under_the_commands():
        for name in ("old", "new"):
            one.ok("register", "--name", name, "--metadata-service-uri", f"zk://{CLUSTERS[name]}/ledgers")
        dry = () if command[0] == "switch" else ("--dry-run",)
        before = deepcopy(one.world.ensembles)
        result = one.run(*command, *dry)
        assert result is not None
        assert "nothing was written" in result.output or "precheck --name new --advance" in result.output
        assert (one.world.ensembles, one.world.effects) == (before, 0)


def test_refused_registration_is_refused_dry_too(sim: Simulated) -> None:
    sim.world.ensembles["alias:2181"] = sim.world.ensembles["a:2181"]
    uri = "zk://alias:2181/ledgers"
    assert "instance-id" in refused(sim, "register", "--name", "twin", "--metadata-service-uri", uri, "--dry-run")
