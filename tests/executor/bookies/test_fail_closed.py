"""Commands that refuse, on simulated clusters: two names of one cluster, a source that is away, brokers that run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from executor.bookies.guard import BROKERS
from tests.executor.bookies.simulated import CLUSTERS, Simulated, registered, world

SWITCH = ("switch", "--target", "new", "--no-dry-run")


@pytest.fixture
def pulsar(tmp_path: Path) -> Iterator[Simulated]:
    """A Pulsar whose clusters are registered."""
    one = Simulated(tmp_path / "pulsar", world())
    with one.under_the_commands():
        registered(one, "old", "new")
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


def test_second_name_of_a_cluster_is_not_registered(pulsar: Simulated) -> None:
    pulsar.world.ensembles["alias:2181"] = pulsar.world.ensembles["a:2181"]
    shown = refused(pulsar, "register", "--name", "twin", "--metadata-service-uri", "zk://alias:2181/ledgers")
    assert "old are one BookKeeper cluster" in shown or "twin and old are one BookKeeper cluster" in shown
    assert "twin" not in pulsar.ok("list")


def test_cluster_without_an_identity_is_not_registered(pulsar: Simulated) -> None:
    shown = refused(pulsar, "register", "--name", "none", "--metadata-service-uri", "zk://nowhere:2181/ledgers")
    assert "there is no /ledgers/INSTANCEID" in shown


@pytest.mark.parametrize("command", [SWITCH, ("rollback", "--no-dry-run"), ("cleanup", "--force", "--no-dry-run")])
def test_addresses_that_lead_to_one_cluster_hold_what_acts(pulsar: Simulated, command: tuple[str, ...]) -> None:
    """Registered as two, by a version that did not compare; or an address that leads elsewhere by now."""
    if command != SWITCH:
        pulsar.ok(*SWITCH)
    pulsar.world.ensembles["b:2181"] = pulsar.world.ensembles["a:2181"]
    pulsar.world.ledgers["new"] = pulsar.world.ledgers["old"]
    assert "instance-id" in refused(pulsar, *command)


def test_switch_away_from_a_source_that_is_down_is_refused(pulsar: Simulated) -> None:
    del pulsar.world.ensembles["a:2181"]["/ledgers/INSTANCEID"]
    for command in (("precheck", "--name", "new"), ("precheck", "--name", "new", "--advance"), SWITCH):
        assert "nothing is known of the ids of old" in refused(pulsar, *command)


@pytest.mark.parametrize("command", [SWITCH, ("rollback", "--no-dry-run"), ("cleanup", "--force", "--no-dry-run")])
def test_running_brokers_refuse_what_acts(pulsar: Simulated, command: tuple[str, ...]) -> None:
    if command != SWITCH:
        pulsar.ok(*SWITCH)
    pulsar.world.put("pulsar:2181", f"{BROKERS}/broker-1:8080")
    assert "registered now, such as broker-1:8080" in refused(pulsar, *command)
    assert "stock" not in refused(pulsar, *command)
    assert "brokers that know one cluster only" in refused(pulsar, *command, "--brokers", "stock")


def test_brokers_that_started_meanwhile_hold_open_steps(pulsar: Simulated) -> None:
    assert pulsar.run(*SWITCH, kill_at=9) is None
    pulsar.world.put("pulsar:2181", f"{BROKERS}/broker-1:8080")
    assert "registered now" in refused(pulsar, *SWITCH)
    shown = pulsar.ok("status")
    assert shown.splitlines()[-1].endswith("then anabranch bookies switch --target new --no-dry-run")
    pulsar.world.ensembles["pulsar:2181"][BROKERS].children.clear()
    assert "2 of 2 on new" in pulsar.ok(*SWITCH)


def test_registry_keeps_the_identity_of_clusters(pulsar: Simulated) -> None:
    registry = {
        name: pulsar.world.ensembles["pulsar:2181"][f"/admin/bookie-clusters/{name}"] for name in ("old", "new")
    }
    assert all(f'"instance":"i-{name}"'.encode() in node.content for name, node in registry.items())
    pulsar.world.put(CLUSTERS["new"], "/ledgers/INSTANCEID", b"formatted anew")
    assert "was registered with i-new" in refused(pulsar, "precheck", "--name", "new")
