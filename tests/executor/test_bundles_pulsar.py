"""The family `bundles` on a real cluster of two brokers with the extensible load manager, while messages come."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from anabranch.admin.answers import Answered
from anabranch.admin.bundles import BundleAdmin
from anabranch.local.setup import Jars
from lake.tables import create_lake
from tests.examples import only_first
from tests.executor import bundle_orders, orders
from tests.executor.bundled import PATIENCE_S, Balancing, Bundled, plain_load
from tests.executor.conftest import House, transport_at
from tests.executor.gate import LOST_AFTER, open_gate
from tests.executor.test_crash import started
from tests.harness.pulsar.cluster import BUNDLE_BROKERS, PulsarCluster
from tests.waiting import wait_until

pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(600)]

NAMESPACE, TOPICS = "public/hot", 8
_STRINGS = '{"name":"","schema":"","type":"STRING","properties":{}}'


@dataclass
class Published(Bundled):
    """A namespace to which the test itself sends messages."""

    def other(self, broker: str) -> str:
        """The other broker."""
        return next(one.id for one in self.cluster.brokers if one.id != broker)

    def publish(self, topic: int) -> bool:
        """One message by REST; whether it was taken."""
        message = {"valueSchema": _STRINGS, "producerName": "test", "messages": [{"payload": "x" * 100}]}
        answer = self.client.post(f"/topics/persistent/{NAMESPACE}/t{topic}", json=message)
        return answer.status_code == 200 and "messageId" in answer.text


@pytest.fixture(scope="module")
def bundled(pulsar_jars: Path, jars: Jars, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Published]:
    """A cluster with a namespace of four bundles, of which each is owned."""
    cluster = PulsarCluster(
        tmp_path_factory.mktemp("bundled"), pulsar_jars, jars.zookeeper, "320m", settings=BUNDLE_BROKERS
    )
    try:
        cluster.start(2)
        url = cluster.brokers[0].admin_url
        transport = transport_at(url, 30)
        with httpx.Client(base_url=url, timeout=30, follow_redirects=True) as client:
            made = client.put(f"/admin/v2/namespaces/{NAMESPACE}", json={"bundles": {"numBundles": 4}})
            assert made.status_code == 204
            one = Published(cluster, client, BundleAdmin(transport), transport, NAMESPACE)
            for topic in range(TOPICS):
                assert client.put(f"/admin/v2/persistent/{NAMESPACE}/t{topic}").status_code == 204
                wait_until(lambda topic=topic: one.publish(topic), PATIENCE_S)
            yield one
        transport.close()
    finally:
        cluster.stop()


@pytest.fixture
def house(bundled: Published, tmp_path: Path) -> Iterator[House]:
    """A fresh lake, and a gate before the first broker."""
    lake = str(tmp_path / "lake")
    create_lake(lake)
    url = bundled.cluster.brokers[0].admin_url
    with open_gate(url) as gate:
        yield House(lake, SimpleNamespace(url=url, client=bundled.client), gate, NAMESPACE)  # type: ignore[arg-type]


def test_a_hot_broker_is_read_relieved_and_read_again(
    bundled: Published, house: House, pulsar_jars: Path, tmp_path: Path
):
    owners, first = bundled.owners(), bundled.cluster.brokers[0].id
    for bundle, source in sorted(owners.items()):
        if source != first:
            assert isinstance(bundled.bundles.unload(NAMESPACE, bundle.rpartition("/")[2], first), Answered)
    chosen = {
        "loadBalancerLoadSheddingStrategy": "UniformLoadShedder",
        "minUnloadMessage": "1",
        "minUnloadMessageThroughput": "1",
        "maxUnloadPercentage": "0.5",
        "loadBalancerDistributeBundlesEvenlyEnabled": "false",
        "loadBalancerMsgThroughputMultiplierDifferenceShedderThreshold": "1.5",
    }
    balancing = Balancing(bundled, house, chosen)
    with plain_load(pulsar_jars, bundled, TOPICS, 20, tmp_path / "load.log"):
        cycle = balancing.decided()
    for one in cycle.decided:
        assert one.decision.source_broker == first
        assert one.decision.destination_broker == bundled.other(first)
    assert set(balancing.carry_out(cycle).values()) == {"applied"}
    balancing.cycle()
    seen = balancing.state.ownership[NAMESPACE].owners
    for one in cycle.decided:
        assert seen[one.decision.bundle.rpartition("/")[2]] == bundled.other(first)


def ended(house: House) -> str:
    """How the only decision has ended."""
    [end] = wait_until(house.ends, PATIENCE_S)
    return str(end["status"])


def test_bundles_unloaded_under_traffic(bundled: Published, house: House):
    before, stop, taken = bundled.owners(), threading.Event(), [0] * TOPICS
    assert before

    def load() -> None:
        while not stop.is_set():
            for topic in range(TOPICS):
                taken[topic] += bundled.publish(topic)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        with house.running():
            rows = [
                bundle_orders.unload(f"move-{number}", bundle, source, bundled.other(source))
                for number, (bundle, source) in enumerate(sorted(before.items()))
            ]
            orders.commit(house.lake, rows)
            wait_until(lambda: len(house.ends()) == len(rows), PATIENCE_S)
        moved = list(taken)
        wait_until(lambda: all(now > then for now, then in zip(taken, moved, strict=True)), PATIENCE_S)
    finally:
        stop.set()
        thread.join()
    assert {end["status"] for end in house.ends()} == {"applied"}
    assert bundled.owners() == {bundle: bundled.other(source) for bundle, source in before.items()}
    assert house.gate.count("PUT") == len(rows)


@pytest.mark.parametrize("point", only_first(1, ["after-call", "after-intent", "before-end"]))
def test_killed_executor_moves_bundle_once(bundled: Published, house: House, tmp_path: Path, point: str):
    bundle, source = min(bundled.owners().items())
    orders.commit(house.lake, [bundle_orders.unload(f"move-{point}", bundle, source, bundled.other(source))])
    with started(house, tmp_path, point) as process:
        assert process.wait(60) == -signal.SIGKILL
    with house.running():
        assert ended(house) == "applied"
    assert house.gate.count("PUT") == 1
    assert bundled.owners()[bundle] == bundled.other(source)


def test_unload_with_lost_answer_known_by_owner(bundled: Published, house: House):
    bundle, source = max(bundled.owners().items())
    orders.commit(house.lake, [bundle_orders.unload("lost", bundle, source, bundled.other(source))])
    # Its owner is asked at once: another broker would only name it, and that answer would be the lost one.
    with open_gate(f"http://{source}") as gate:
        gate.on("PUT", LOST_AFTER)
        with house.running(url=gate.url):
            assert ended(house) == "applied"
        assert gate.count("PUT") == 1


def test_unload_of_moved_bundle_superseded_uncalled(bundled: Published, house: House):
    bundle, source = max(bundled.owners().items())
    orders.commit(house.lake, [bundle_orders.unload("late", bundle, bundled.other(source), source)])
    with house.running():
        assert ended(house) == "superseded"
    assert house.gate.count("PUT") == 0


def test_a_bundle_is_split_where_it_was_decided(bundled: Published, house: House):
    first = f"{NAMESPACE}/0x00000000_0x40000000"
    orders.commit(house.lake, [bundle_orders.split("split", first, ["0x30000000"])])
    with house.running():
        assert ended(house) == "applied"
    ranges = bundled.bundles.ranges(NAMESPACE)
    assert isinstance(ranges, Answered)
    assert ranges.value[:2] == ("0x00000000_0x30000000", "0x30000000_0x40000000")
