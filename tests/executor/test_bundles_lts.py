"""The family `bundles` on two real clusters of three brokers of Pulsar 4.0.7 under load, one for each load manager."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from click.testing import CliRunner

from anabranch.admin.bundles import BundleAdmin
from anabranch.admin.cluster import ClusterAdmin
from anabranch.cli.bundles.explanation import cycle_text
from anabranch.cli.main import cli
from anabranch.cli.published_loads import open_published_loads
from anabranch.collectors.bundles import Unread
from anabranch.local.setup import Jars
from engine.bundles.cycle import Cycle
from lake.tables import create_lake
from schemas.bundles import LocalBrokerData
from schemas.kafka.broker_messages import BrokerLoadReport
from schemas.settings.root import load_settings
from tests.executor import bundle_orders, orders
from tests.executor.bundled import PATIENCE_S, Balancing, Bundled, plain_load
from tests.executor.conftest import House, transport_at
from tests.executor.gate import answers, open_gate
from tests.executor.test_crash import started
from tests.harness.pulsar.cluster import BUNDLE_BROKERS, EXTENSIBLE, MODULAR, PulsarCluster
from tests.waiting import wait_until

pytestmark = [pytest.mark.pulsar, pytest.mark.soak, pytest.mark.timeout(600)]

NAMESPACE, BUNDLES, TOPICS = "public/shop", 16, 16
"""The topics are in eight of the bundles, one to three in each."""
BY_RATES = {
    "loadBalancerLoadSheddingStrategy": "UniformLoadShedder",
    "minUnloadMessage": "1",
    "minUnloadMessageThroughput": "1",
    "maxUnloadPercentage": "0.5",
    "loadBalancerDistributeBundlesEvenlyEnabled": "false",
    "loadBalancerMsgThroughputMultiplierDifferenceShedderThreshold": "2",
    "loadBalancerMsgRateDifferenceShedderThreshold": "100",
    "maxUnloadBundleNumPerShedding": "2",
}
"""Brokers of one machine say the same usage, that of the machine: they can be balanced by their rates alone."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(MODULAR, id="modular"),
        # Also the manager of the Pulsar 5 of test_bundles_pulsar.
        pytest.param(EXTENSIBLE, id="extensible", marks=pytest.mark.soak),
    ],
)
def bundled(
    request: pytest.FixtureRequest,
    pulsar_jars: Path,
    pulsar_lts_jars: Path,
    jars: Jars,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Bundled]:
    """A cluster under load."""
    folder = tmp_path_factory.mktemp("lts")
    settings = BUNDLE_BROKERS | {"loadManagerClassName": request.param, "webSocketServiceEnabled": True}
    cluster = PulsarCluster(folder, pulsar_lts_jars, jars.zookeeper, "256m", settings=settings)
    try:
        cluster.start(3)
        url = cluster.brokers[0].admin_url
        transport = transport_at(url, 30)
        with httpx.Client(base_url=url, timeout=30, follow_redirects=True) as client:
            made = client.put(f"/admin/v2/namespaces/{NAMESPACE}", json={"bundles": {"numBundles": BUNDLES}})
            assert made.status_code == 204
            one = Bundled(cluster, client, BundleAdmin(transport), transport, NAMESPACE, request.param)
            with plain_load(pulsar_jars, one, TOPICS, 20, folder / "load.log"):
                wait_until(lambda: len(one.owners()) >= 8, 3 * PATIENCE_S, every_s=0.5)
                yield one
        transport.close()
    finally:
        cluster.stop()


@pytest.fixture
def house(bundled: Bundled, tmp_path: Path) -> Iterator[House]:
    """A fresh lake, and a gate before the first broker."""
    lake = str(tmp_path / "lake")
    create_lake(lake)
    url = bundled.cluster.brokers[0].admin_url
    with open_gate(url) as gate:
        yield House(lake, SimpleNamespace(url=url, client=bundled.client), gate, NAMESPACE)  # type: ignore[arg-type]


def pile_up(bundled: Bundled) -> None:
    """The first broker gets everything."""
    first = bundled.cluster.brokers[0].id
    for bundle, owner in bundled.owners().items():
        if owner != first:
            bundled.move(bundle, first)


def explained(lake: str, bundle: str) -> str:
    """What an operator is told who asks why a bundle was moved."""
    settings = Path(lake).with_name("explain.toml")
    settings.write_text(f'[lake]\npath = "{lake}"\n')
    done = CliRunner().invoke(cli, ["--config", str(settings), "bundles", "explain", "test", "--bundle", bundle])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_hot_broker_relieved_by_explained_moves(bundled: Bundled, house: House):
    pile_up(bundled)
    first, *others = bundled.cluster.brokers
    balancing = Balancing(bundled, house, BY_RATES)

    def carry_out(cycle: Cycle) -> None:
        before = bundled.owners()
        ends = balancing.carry_out(cycle)
        now = bundled.owners()
        for one in cycle.decided:
            bundle, source, destination = (
                one.decision.bundle,
                one.decision.source_broker,
                one.decision.destination_broker,
            )
            if before.get(bundle) == source:
                assert (ends[bundle], now.get(bundle) == destination) in (("applied", True), ("superseded", False))
            else:
                # The cluster has moved it by itself since it was collected, and the executor sees that.
                assert ends[bundle] == "superseded"
            assert f"unload {bundle} from {source} to {destination}" in explained(house.lake, bundle)

    def balanced() -> bool:
        carry_out(balancing.decided())
        return all(bundled.owned(broker) for broker in others)

    def even() -> bool:
        try:
            cycle = balancing.cycle()
        except Unread:
            return False
        if cycle.decided:
            carry_out(cycle)
        rates = [balancing.rate(one) for one in (first, *others)]
        # Right after a move the client sends what has waited, so the rates of the first rounds do not count.
        return min(rates[1:]) > 10 and max(rates) < 0.7 * sum(rates)

    wait_until(balanced, PATIENCE_S)
    wait_until(even, 2 * PATIENCE_S, every_s=1)


def fullest(data: LocalBrokerData) -> float:
    """Usage of a broker's fullest resource, as a fraction; memory has no weight."""
    resources = (data.cpu, data.bandwidth_in, data.bandwidth_out)
    return max(one.usage / one.limit if one.limit > 0 else 0.0 for one in resources)


def test_usage_shedder_decides_on_collected_load(bundled: Bundled, house: House):
    pile_up(bundled)
    first, idle, _ = bundled.cluster.brokers
    shedder = "ThresholdShedder" if bundled.manager == MODULAR else "TransferShedder"
    settings = {"loadBalancerLoadSheddingStrategy": shedder, "loadBalancerHistoryResourcePercentage": "0"}
    balancing = Balancing(bundled, house, settings)
    cycle = wait_until(lambda: (cycle := balancing.cycle()) and balancing.rate(first) > 100 and cycle, PATIENCE_S)
    owners = bundled.owners()
    assert (cycle.shedding.strategy, set(cycle.live)) == (shedder, {one.id for one in bundled.cluster.brokers})
    held = {one.gate for one in cycle.shedding.readings if not one.passed}
    assert not held & {"load-data", "load-data-fresh", "enough-brokers", "balancer-enabled"}
    # Brokers of one machine differ by when they last looked at its processors: a few minutes old, they may be moved.
    for one in cycle.decided:
        assert owners[one.decision.bundle] == one.decision.source_broker
    if bundled.manager == MODULAR:
        usages = [fullest(balancing.state.reports[one.id].in_effect.data) for one in bundled.cluster.brokers]
        is_hot = max(usages) >= sum(usages) / 3 + 0.1
        assert ("above-average" in held) or is_hot
        assert is_hot or not cycle.decided
    else:
        assert bool(cycle.decided) is (cycle.shedding.label == "Success")
        assert cycle.decided or held & {"unbalanced", "hit-count", "transferable", "top-bundles", "fits-what-is-needed"}
    if not cycle.decided and bundled.manager == MODULAR:
        # The other shedder goes by processors, which all of them share: there any broker may be the fullest.
        assert "it gets nothing by unloading" in cycle_text(balancing.state, cycle, idle.id)
    if bundled.manager == EXTENSIBLE:
        report = balancing.reports[first.id]
        assert isinstance(report, BrokerLoadReport)
        assert report.data.weighted_max_e_m_a is not None

        def names_its_bundles() -> bool:
            assert balancing.cycle()
            newest = balancing.reports[first.id]
            assert isinstance(newest, BrokerLoadReport)
            named = {one.bundle_name for one in newest.top_bundles.top_bundles_load_data}
            return named == set(bundled.owned(first))

        wait_until(names_its_bundles, PATIENCE_S, every_s=1)


@pytest.mark.parametrize("bundled", [MODULAR], indirect=True, ids=["modular"])
def test_stored_reports_equal_broker_reports(bundled: Bundled, tmp_path: Path):
    # Brokers of the extensible manager publish their loads when these change by a tenth, or every 15 minutes.
    file = tmp_path / "published.toml"
    file.write_text(
        f'[controller]\nurl = "{bundled.cluster.brokers[0].admin_url}"\n'
        f'[bookies]\nmetadata = "zk://{bundled.cluster.zookeeper.address}"\n'
    )
    bundle, source = min(bundled.owners().items())
    destination = next(one.id for one in bundled.cluster.brokers if one.id != source)
    with ExitStack() as stack:
        loads = open_published_loads(load_settings([file]), stack)
        bundled.move(bundle, destination)
        wait_until(
            lambda: bundle in loads.read_local("test", destination, 1).data.last_stats, 2 * PATIENCE_S, every_s=1
        )


def test_killed_broker_used_again_when_back(bundled: Bundled, house: House):
    *_, third = bundled.cluster.brokers
    moved = next(bundle for bundle in sorted(bundled.owners()))
    bundled.move(moved, third.id)
    balancing = Balancing(bundled, house, BY_RATES)
    third.kill()
    # It is listed until its session ends, and does not answer: it neither gives nor gets.
    cycle = balancing.cycle()
    assert third.id not in cycle.live
    assert all(one.decision.destination_broker != third.id for one in cycle.decided)
    cluster = ClusterAdmin(bundled.transport)
    wait_until(lambda: third.id not in cluster.brokers().value, PATIENCE_S)
    wait_until(lambda: moved in bundled.owners(), PATIENCE_S, every_s=0.5)
    bundled.cluster.begin(third)
    assert bundled.owned(third) == []

    def used() -> bool:
        balancing.carry_out(balancing.decided())
        return bool(bundled.owned(third))

    wait_until(used, PATIENCE_S)
    wait_until(lambda: balancing.cycle() and balancing.rate(third) > 1, PATIENCE_S, every_s=1)


@pytest.mark.parametrize("point", [pytest.param("after-intent", marks=pytest.mark.soak), "after-call"])
def test_killed_unload_settled_by_bundle_owner(bundled: Bundled, house: House, tmp_path: Path, point: str):
    bundle, source = min(bundled.owners().items())
    destination = next(one.id for one in bundled.cluster.brokers if one.id != source)
    orders.commit(house.lake, [bundle_orders.unload(point, bundle, source, destination)])
    with started(house, tmp_path, point) as process:
        assert process.wait(60) == -signal.SIGKILL
    with house.running():
        [end] = wait_until(house.ends, PATIENCE_S)
    # One call of the modular manager in ten ends elsewhere: that is repeated once by who made it and lives.
    calls = 1 if point == "after-call" else end["attempt"]
    assert house.gate.count("PUT") == calls
    assert calls == 1 or (calls == 2 and bundled.manager == MODULAR)
    arrived = bundled.owners()[bundle] == destination
    assert end["status"] == ("applied" if arrived else "superseded")


def test_unload_overtaken_after_kill_superseded(bundled: Bundled, house: House, tmp_path: Path):
    """Although its answer was 204."""
    bundle, source = max(bundled.owners().items())
    destination, elsewhere = (one.id for one in bundled.cluster.brokers if one.id != source)
    orders.commit(house.lake, [bundle_orders.unload("missed", bundle, source, destination)])
    house.gate.before_next("PUT", lambda: bundled.move(bundle, elsewhere))
    house.gate.on("PUT", answers(204))
    with started(house, tmp_path, "after-call") as process:
        assert process.wait(60) == -signal.SIGKILL
    with house.running():
        [end] = wait_until(house.ends, PATIENCE_S)
    assert end["status"] == "superseded"
    assert elsewhere in end["error"]
    assert house.gate.count("PUT") == 1
    assert bundled.owners()[bundle] == elsewhere
