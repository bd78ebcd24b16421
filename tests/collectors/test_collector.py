"""The collector against a cluster of fake brokers: what it says, also when they lie, are slow or cut their answers.

Longer than other files: one test for each way in which a broker can mislead it.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager, suppress

import pytest

from anabranch.admin.transport import Transport
from anabranch.collectors.announced import AnnouncedState
from anabranch.collectors.checkpoint import load_checkpoint, save_checkpoint
from anabranch.collectors.pulsar.calls import ReadIntervals
from anabranch.collectors.pulsar.collector import PulsarCollector
from anabranch.collectors.pulsar.reader import BrokerReader
from schemas.metadata import AutoScalePolicyOverride
from schemas.settings.root import load_settings
from tests.collectors.outlets import Listed
from tests.examples import only_first
from tests.harness.fake_pulsar import FakeBroker, serving_cluster
from tests.waiting import wait_until

pytestmark = pytest.mark.process
T = "topic://acme/shop/orders"
RATES = (100.0, 20_000.0, 300.0, 60_000.0)
QUICK = {"calls_per_second": 500, "load_seconds": 1.0, "consumers": "registered"}
OFTEN = ReadIntervals(brokers_s=0.2, namespaces_s=0.3, topics_s=0.2, consumers_s=0.2, layouts_s=0.4)


class Running:
    """A collector at work in a thread."""

    def __init__(self, url, outlet, options, token=None, max_bytes=50_000_000, said=None, intervals=OFTEN):
        settings = load_settings(environment={}).collect.model_copy(update={**QUICK, **options})
        self.outlet, self.stop = outlet, threading.Event()
        self.transport = Transport(url, token, user_agent="test", timeout_seconds=1.0, max_body_bytes=max_bytes)
        self.said = said or AnnouncedState(sender=time.time_ns() // 1_000_000)
        self.collector = PulsarCollector(
            settings, url, BrokerReader.over(self.transport), self.said, outlet, 1, intervals
        )
        self.status = self.collector.status()
        self.thread = threading.Thread(target=self.collector.run, args=(self.stop, self._keep), daemon=True)
        self.thread.start()

    def _keep(self, status):
        self.status = status
        return True

    def end(self):
        self.stop.set()
        self.thread.join(5)
        self.collector.close()
        self.transport.close()


@contextmanager
def collecting(cluster, outlet=None, token=None, max_bytes=50_000_000, said=None, intervals=OFTEN, **options):
    running = Running(cluster.brokers[0].url, outlet or Listed(), options, token, max_bytes, said, intervals)
    try:
        yield running
    finally:
        running.end()


@pytest.fixture(autouse=True)
def _status_at_once(monkeypatch):
    monkeypatch.setattr("anabranch.collectors.pulsar.collector.STATUS_SECONDS", 0.05)


@pytest.fixture
def cluster():
    with serving_cluster(brokers=2) as found:
        found.topic(T, segments=2, billing=3)
        found.topics[T].rates = {0: RATES, 1: (0.0, 0.0, 0.0, 0.0)}
        yield found


def test_everything_that_a_cluster_has_is_said(cluster):
    cluster.policies["acme/shop"] = {"maxSegments": 8}
    with collecting(cluster) as running:
        out = running.outlet
        wait_until(lambda: len(out.rates()) == 2 and out.consumers.get(T) and out.policies)
        assert out.layouts[T].layout == cluster.topics[T].layout.to_metadata()
        assert out.consumers[T] == {"billing": 3}
        assert out.rates() == {(T, 0): RATES, (T, 1): (0.0, 0.0, 0.0, 0.0)}
        assert out.policies == {"acme/shop": AutoScalePolicyOverride(max_segments=8)}
        assert {one.reporter for one in out.samples} == {broker.name for broker in cluster.brokers}
        wait_until(lambda: running.status.coverage == 1.0)
        assert running.status.is_complete


def test_attached_consumers_counted_without_stats(cluster):
    cluster.topics[T].consumers = {"billing": 2}
    with collecting(cluster, consumers="attached") as running:
        out = running.outlet
        wait_until(lambda: out.consumers.get(T) == {"billing": 2})
        cluster.topics[T].layout = cluster.topics[T].layout.split_segment(0, int(time.time() * 1000))
        wait_until(lambda: out.causes[-1] == "split")
        wait_until(lambda: running.status.is_complete and running.status.coverage == 1.0)
        assert (cluster.calls["scalable-5"], cluster.calls["split"], dict(cluster.controllers)) == (0, 0, {})


def test_changes_are_said_within_two_seconds(cluster):
    with collecting(cluster) as running:
        out, topic = running.outlet, cluster.topics[T]
        wait_until(lambda: out.consumers.get(T) == {"billing": 3})
        began = time.monotonic()
        topic.consumers["billing"] = 4
        wait_until(lambda: out.consumers[T] == {"billing": 4}, 2)
        topic.layout = topic.layout.split_segment(0, int(time.time() * 1000))
        wait_until(lambda: out.causes[-1] == "split", 2)
        del topic.consumers["billing"]
        wait_until(lambda: out.consumers[T] == {}, 2)
        topic.rates[1] = (7.0, 7.0, 7.0, 7.0)
        wait_until(lambda: out.rates().get((T, 1)) == (7.0, 7.0, 7.0, 7.0), 1 + 2)
        assert time.monotonic() - began < 9


def test_unchanged_state_not_repeated_early(cluster):
    with collecting(cluster) as running:
        out = running.outlet
        wait_until(lambda: out.consumers.get(T) == {"billing": 3})
        wait_until(lambda: T in out.deliveries and out.deliveries[T].reported == 2)
        said = out.sent
        calls = cluster.calls.total()
        wait_until(lambda: cluster.calls.total() > calls + 40)
        assert out.sent == said
    with collecting(cluster, snapshot_seconds=0.5) as running:
        wait_until(lambda: running.outlet.causes.count("snapshot") + running.outlet.repeated.count(T) >= 3)
        assert running.outlet.consumers[T] == {"billing": 3}


def test_deleted_topic_retracted_and_recreated_as_new(cluster):
    with collecting(cluster) as running:
        out = running.outlet
        wait_until(lambda: out.consumers.get(T))
        del cluster.topics[T]
        wait_until(lambda: out.deleted == [T])
        cluster.topic(T, segments=1, other=1)
        wait_until(lambda: out.consumers.get(T) == {"other": 1})
        assert len(out.layouts[T].layout.segments) == 1
        assert out.deleted == [T]


def test_deleted_topic_still_listed_is_retracted(cluster, monkeypatch):
    with collecting(cluster) as running:
        out = running.outlet
        wait_until(lambda: T in out.layouts)
        gone = cluster.topics.pop(T)
        kept = dict(cluster.topics)
        monkeypatch.setattr(cluster, "topics", Lists(kept, T))
        wait_until(lambda: out.deleted == [T])
        monkeypatch.setattr(cluster, "topics", {T: gone})
        wait_until(lambda: T in out.layouts)


class Lists(dict):
    """Topics, of which one is listed and is not there, as M1 does after a deletion."""

    def __init__(self, topics, listed):
        super().__init__(topics)
        self.listed = listed

    def __iter__(self):
        return iter([*super().keys(), self.listed])


def cut(handler, body):
    handler.send(200, body[: len(body) // 2], len(body))
    handler.connection.shutdown(socket.SHUT_RDWR)


def stay_silent(handler, _):
    """Until the one who asked has given up."""
    handler.connection.settimeout(60)
    with suppress(OSError):
        handler.connection.recv(1)
    handler.close_connection = True


FAULTS = {
    "no answer": stay_silent,
    "an error": lambda handler, _: handler.send(500, b'{"reason":"no"}'),
    "half an answer as if it were all": lambda handler, body: handler.send(200, body[: len(body) // 2]),
    "endless bytes": lambda handler, _: handler.send(200, b" " * 6_000_000),
    "half an answer, cut": cut,
    "no JSON": lambda handler, _: handler.send(200, b"<html>a proxy</html>"),
}


@pytest.mark.parametrize("fault", only_first(4, FAULTS))
def test_faulty_broker_makes_segments_unknown(cluster, fault):
    """A broker that does not answer properly never makes its segments idle."""
    with collecting(cluster, max_bytes=5_000_000) as running:
        out, status = running.outlet, lambda: running.status
        wait_until(lambda: len(out.rates()) == 2 and status().coverage == 1.0)
        broken, well = cluster.brokers[cluster.owner(T, 0)], cluster.brokers[cluster.owner(T, 1)]
        broken.fault = FAULTS[fault]
        wait_until(lambda: [one.broker for one in status().brokers if not one.answers] == [broken.name])
        sent = sum(one.reporter == broken.name for one in out.samples)
        others = sum(one.reporter == well.name for one in out.samples)
        wait_until(lambda: sum(one.reporter == well.name for one in out.samples) >= others + 2)
        assert sum(one.reporter == broken.name for one in out.samples) == sent
        assert out.rates()[T, 0] == RATES
        assert status().segments_seen == 1
        assert status().unseen == [f"{T}/0"]
        assert any(broken.name in trouble for trouble in status().troubles)
        broken.fault = None
        wait_until(lambda: status().coverage == 1.0 and status().is_complete, 20)


def test_what_was_never_read_is_counted(cluster, monkeypatch):
    """A topic that is listed is missing until its layout, and then its consumers, were read."""
    # After a refusal the leader is asked for anew; as shipped that is after as long as this test waits.
    monkeypatch.setattr("anabranch.collectors.pulsar.brokers.LEADER_SECONDS", 0.5)
    missing = {"parts": 4}

    def refuse(handler, body):
        parts = handler.path.partition("?")[0].removeprefix("/admin/v2/").split("/")
        handler.send(*((500, b'{"reason":"no"}') if len(parts) == missing["parts"] else (200, body)))

    for broker in cluster.brokers:
        broker.faulty, broker.fault = "scalable", refuse
    with collecting(cluster) as running:
        status = lambda: running.status  # noqa: E731
        wait_until(lambda: status().topics_listed == 1 and cluster.calls["scalable-4"] > 1)
        assert (status().topics, status().topics_unread, status().coverage, status().is_complete) == (0, 1, 0.0, False)
        missing["parts"] = 5
        wait_until(lambda: status().coverage == 1.0 and cluster.calls["scalable-5"] > 1)
        assert (status().topics_unread, status().consumers_unread, status().is_complete) == (0, 1, False)
        missing["parts"] = 0
        wait_until(lambda: status().is_complete and not status().consumers_unread)


def test_broker_changes_do_not_stop_reading(cluster):
    with collecting(cluster) as running:
        out, status = running.outlet, lambda: running.status
        wait_until(lambda: out.consumers.get(T) and status().segments_seen == 2)
        second = cluster.brokers[1]
        second.stop()
        wait_until(lambda: not all(one.answers for one in status().brokers))
        cluster.topics[T].consumers["billing"] = 9
        wait_until(lambda: out.consumers[T] == {"billing": 9}, 20)
        second.start(second.port)
        wait_until(lambda: status().is_complete, 20)
        third = FakeBroker(cluster)
        cluster.brokers.append(third)
        wait_until(lambda: len(status().brokers) == 3 and status().coverage == 1.0)
        cluster.brokers.remove(second)
        second.stop()
        wait_until(lambda: len(status().brokers) == 2 and status().coverage == 1.0, 20)
        cluster.topics[T].consumers["billing"] = 2
        wait_until(lambda: out.consumers[T] == {"billing": 2}, 20)


def test_only_leaders_asked_for_consumers(monkeypatch):
    """Another broker would stand by for the leader, and one that stands by when the leader dies is stuck (5.0.0-M1)."""
    monkeypatch.setattr("anabranch.collectors.pulsar.brokers.LEADER_SECONDS", 0.3)
    with serving_cluster(brokers=3) as cluster:
        names = [f"topic://acme/shop/t{number}" for number in range(9)]
        brokers = [one.name for one in cluster.brokers]
        for number, name in enumerate(names):
            cluster.topic(name, segments=1, billing=1)
            cluster.leaders[name] = brokers[number % 3]
        asked = cluster.controllers
        with collecting(cluster) as running:
            out, status = running.outlet, lambda: running.status
            wait_until(lambda: all(out.consumers.get(name) for name in names))
            wait_until(lambda: running.collector.has_seen_all and status().consumers_unread == 0)
            assert asked == {name: {cluster.leaders[name]} for name in names}
            dead = cluster.brokers[2]
            its = [name for name in names if cluster.leaders[name] == dead.name]
            cluster.listed = list(brokers)
            dead.stop()
            wait_until(lambda: any(one.broker == dead.name and not one.answers for one in status().brokers))
            # Layouts are asked elsewhere at once, consumers of nobody else as long as it is listed.
            for name in its:
                topic = cluster.topics[name]
                topic.layout = topic.layout.split_segment(0, int(time.time() * 1000))
            wait_until(lambda: all(len(out.layouts[name].layout.segments) == 3 for name in its), 20)
            assert asked == {name: {cluster.leaders[name]} for name in names}
            # Its session is over, and clients have made another broker the leader.
            for name in its:
                cluster.leaders[name] = brokers[0]
                cluster.topics[name].consumers["billing"] = 2
            cluster.listed.remove(dead.name)
            wait_until(lambda: all(out.consumers[name] == {"billing": 2} for name in its), 20)
            assert all(asked[name] == {dead.name, brokers[0]} for name in its)
            # The broker comes back, and leads nothing.
            dead.start(dead.port)
            cluster.listed.append(dead.name)
            wait_until(lambda: sum(one.answers for one in status().brokers) == 3)
            looks = cluster.calls["scalable-5"]
            wait_until(lambda: cluster.calls["scalable-5"] > looks + 40)
            assert all(asked[name] == {cluster.leaders[name]} for name in names if name not in its)


def test_unlisted_leader_leaves_consumers_unknown(cluster):
    outside = FakeBroker(cluster)
    cluster.listed = [one.name for one in cluster.brokers]
    cluster.brokers.append(outside)
    cluster.leaders[T] = outside.name
    try:
        with collecting(cluster) as running:
            wait_until(lambda: T in running.outlet.layouts)
            cluster.listed = cluster.listed[:2]
            # It is asked for as often as it may be, and found to be listed nowhere.
            wait_until(lambda: running.status.consumers_unread == 1 or running.outlet.consumers.get(T))
            assert outside.name not in cluster.controllers[T]
    finally:
        outside.stop()


def test_no_broker_at_all_is_said_and_waited_for():
    with serving_cluster() as cluster:
        cluster.topic(T)
        broker = cluster.brokers[0]
        broker.stop()
        with collecting(cluster) as running:
            wait_until(lambda: any("no connection" in trouble for trouble in running.status.troubles))
            assert running.outlet.records == []
            broker.start(broker.port)
            wait_until(lambda: T in running.outlet.layouts)


def test_second_collector_announces_all_correctly(cluster):
    """As after a kill -9: the second knows nothing of the first."""
    first, second = Listed(), Listed()
    with collecting(cluster, first):
        wait_until(lambda: first.consumers.get(T) and len(first.rates()) == 2)
    cluster.topics[T].layout = cluster.topics[T].layout.split_segment(1, int(time.time() * 1000))
    with collecting(cluster, second):
        wait_until(lambda: second.consumers.get(T) and {(T, 2), (T, 3)} <= second.rates().keys())
    assert second.layouts[T].layout == cluster.topics[T].layout.to_metadata()
    assert second.deleted == []
    assert second.layouts[T].sender > first.layouts[T].sender


def test_deletion_without_collector_is_announced(cluster, tmp_path):
    file, url = tmp_path / "topics.json", cluster.brokers[0].url
    cluster.topic("topic://acme/shop/stays", 1)
    with collecting(cluster) as running:
        wait_until(lambda: len(running.outlet.layouts) == 2)
    save_checkpoint(file, url, running.said)
    del cluster.topics[T]
    began = load_checkpoint(file, url, 0)
    assert began.sender > running.said.sender
    with collecting(cluster, said=began) as running:
        wait_until(lambda: running.outlet.deleted)
        wait_until(lambda: running.outlet.layouts)
        assert (running.outlet.deleted, list(running.outlet.layouts)) == ([T], ["topic://acme/shop/stays"])
        assert not began.before
    assert load_checkpoint(file, "http://another", 0).before == {}
    file.write_text("{half")
    assert load_checkpoint(file, url, 7).sender == 7


def test_token_kept_from_unconfigured_brokers(cluster):
    """Brokers of this machine and configured ones get the token, no others."""
    cluster.listed = [broker.name for broker in cluster.brokers] + ["broker-9.example:8080"]
    with collecting(cluster, token="secret") as running:
        wait_until(lambda: any("the token is not sent" in trouble for trouble in running.status.troubles))
        wait_until(lambda: running.status.coverage == 1.0)


def test_condition_ends_with_the_broker_it_is_about(cluster):
    own = [broker.name for broker in cluster.brokers]
    cluster.listed = [*own, "broker-9.example:8080"]
    with collecting(cluster, token="secret") as running:
        wait_until(lambda: any("broker-9.example" in trouble for trouble in running.status.troubles))
        cluster.listed = own
        wait_until(lambda: not running.status.troubles)


@pytest.mark.parametrize(
    ("path", "about", "end"),
    [
        ("namespaces/gone/a/scalableTopicAutoScalePolicy", "policy gone/a", lambda c: c.tenants.update(gone=[])),
        ("namespaces/gone", "namespaces gone", lambda c: c.tenants.pop("gone")),
        ("brokers/configuration/runtime", "settings", lambda c: setattr(c, "listed", [c.brokers[0].name])),
    ],
    ids=["namespace", "tenant", "broker"],
)
def test_condition_ends_with_what_was_asked_about(path, about, end, cluster):
    cluster.tenants["gone"] = ["gone/a"]
    for broker in cluster.brokers[1 if about == "settings" else 0 :]:
        broker.faulty = path.partition("/")[0]
        broker.fault = lambda handler, body: handler.send(500 if handler.path.endswith(path) else 200, body)
    with collecting(cluster, load_seconds=0.0) as running:
        wait_until(lambda: any(trouble.startswith(about) for trouble in running.status.troubles))
        end(cluster)
        wait_until(lambda: not running.status.troubles)


def test_odd_broker_and_topic_lists_stop_nothing(cluster):
    cluster.listed = [cluster.brokers[0].name, "", "a b", "x:99999", "http://10.0.0.1:1", cluster.brokers[1].name]
    cluster.topics["topic://acme/shop/with space"] = cluster.topics[T]
    cluster.topics["topic://acme/shop/"] = cluster.topics[T]
    with collecting(cluster) as running:
        wait_until(lambda: running.outlet.consumers.get(T))
        wait_until(lambda: running.status.coverage == 1.0)
        assert set(running.outlet.layouts) == {T}


def test_stale_rates_under_traffic_not_sent(cluster):
    with collecting(cluster) as running:
        out, status = running.outlet, lambda: running.status
        wait_until(lambda: len(out.rates()) == 2 and status().coverage == 1.0)
        stuck, well = cluster.brokers[cluster.owner(T, 0)], cluster.brokers[cluster.owner(T, 1)]
        stuck.is_stuck = True
        wait_until(lambda: [one.broker for one in status().brokers if one.stuck] == [stuck.name])
        wait_until(lambda: any(stuck.name in one and "the same rates" in one for one in status().troubles))
        sent = sum(one.reporter == stuck.name for one in out.samples)
        # The other one is idle, which looks the same and is fine.
        others = sum(one.reporter == well.name for one in out.samples)
        wait_until(lambda: sum(one.reporter == well.name for one in out.samples) >= others + 3)
        assert sum(one.reporter == stuck.name for one in out.samples) == sent
        assert status().unseen == [f"{T}/0"]
        stuck.is_stuck = False
        wait_until(lambda: status().coverage == 1.0 and not status().troubles)
        assert sum(one.reporter == stuck.name for one in out.samples) > sent


def test_no_broker_gets_more_calls_than_it_may():
    with serving_cluster(brokers=1) as cluster:
        for number in range(300):
            cluster.topic(f"topic://acme/shop/t{number}", segments=1, s=1)
        with collecting(cluster, calls_per_second=50, intervals=OFTEN._replace(layouts_s=60, consumers_s=1)) as running:
            wait_until(lambda: cluster.calls.total() > 50)
            began, before = time.monotonic(), cluster.calls.total()
            wait_until(lambda: cluster.calls.total() > before + 150, 20)
            calls, seconds = cluster.calls.total() - before, time.monotonic() - began
            assert calls <= 50 * (seconds + 1) + 1, "50 a second, and what one second left over"
            assert running.status.consumers_age_seconds < 30


STATS = {
    "msgRateIn": 1.0,
    "oldestBacklogMessageAgeSeconds": 900,
    "waitingPublishers": 2,
    "subscriptions": {
        "billing": {
            "msgBacklog": 9_000,
            "msgRateOut": 1.0,
            "oldestBacklogMessageAgeSeconds": 840,
            "consumers": [{"consumerName": "c0", "availablePermits": 0}],
        }
    },
}


def test_slow_segment_stats_asked_when_enabled(cluster):
    cluster.topics[T].slow = {1: STATS}
    with collecting(cluster, segment_stats=True, consumers="attached") as running:
        out = running.outlet
        wait_until(lambda: T in out.deliveries and out.deliveries[T].segments)
        [slow] = out.deliveries[T].segments
        assert (slow.id, slow.backlog, slow.backlog_age_seconds, slow.waiting_publishers) == (1, 9_000, 840, 2)
        cluster.topics[T].slow = {}
        wait_until(lambda: not out.deliveries[T].segments)


def test_slow_segment_stats_off_by_default(cluster):
    cluster.topics[T].slow = {1: STATS}
    with collecting(cluster, consumers="attached") as running:
        wait_until(lambda: T in running.outlet.deliveries and running.outlet.deliveries[T].reported == 2)
        assert cluster.calls["scalable-7"] == 0
