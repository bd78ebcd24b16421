"""Sizes that ZooKeeper's requests cannot hold: ten thousand consumers, long names, layouts of thousands of segments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from anabranch.admin.answers import Answered, Refused
from anabranch.admin.topics import ScalableTopics
from anabranch.admin.transport import Transport
from anabranch.controller.errors import PreconditionFailed
from anabranch.controller.metadata import store_paths
from anabranch.controller.metadata.base import Put
from anabranch.controller.metadata.records import ConsumerRegistration
from anabranch.controller.metadata.zookeeper import ZooKeeperStore
from anabranch.controller.outbox.announcements import layout_announcement
from decisions.topic.layout import SegmentLayout
from schemas.base import MAX_NAME_BYTES
from schemas.kafka.messages import ConsumerEvent
from tests.controller.conftest import RunningController, run_controller
from tests.controller.places import Place
from tests.harness.zookeeper import EmbeddedZooKeeper
from tests.waiting import wait_until

TOPIC = "topic://acme/sizes/t"
PATH = "/admin/v2/scalable/acme/sizes/t"
MANY = 10_000
LONGEST = "\U0001f600" * MAX_NAME_BYTES
"""Twelve bytes a character in the store."""


@pytest.fixture
def nodes(zookeeper: EmbeddedZooKeeper) -> Iterator[Callable[[], ZooKeeperStore]]:
    opened: list[ZooKeeperStore] = []

    def one() -> ZooKeeperStore:
        opened.append(ZooKeeperStore(zookeeper.address, "/sizes", session_s=5))
        return opened[-1]

    yield one
    for store in opened:
        store.close()


def consumers(controller: RunningController) -> int | None:
    """Registered consumers; None while ZooKeeper or the leader is away, as on a busy machine."""
    answered = controller.client.get(f"{PATH}/stats")
    if answered.status_code == 503:
        return None
    assert answered.status_code == 200, answered.text
    return int(answered.json()["subscriptions"]["s"]["consumerCount"])


@pytest.mark.parametrize("count", [800, pytest.param(MANY, marks=pytest.mark.soak)])
def test_evictions_of_many_consumers_all_announced(nodes: Callable[[], ZooKeeperStore], count: int) -> None:
    with run_controller(nodes()) as first:
        first.client.put(PATH)
        first.client.put(f"{PATH}/subscriptions/s")
        names = [f"consumer-{number:05d}" for number in range(count)]
        paths = {name: store_paths.consumer_path(TOPIC, "s", name) for name in names}
        registered = [Put(paths[name], ConsumerRegistration(consumer_name=name).to_json().encode()) for name in names]
        first.nodes.commit_in_parts([], [Put(store_paths.attended_path(TOPIC), b""), *registered])
        first.nodes.close()
        # All of them are counted within the grace period, however long a busy machine reads.
        with run_controller(nodes(), grace_seconds=10) as second:
            wait_until(lambda: second.node.leaders.term(TOPIC), 20)
            assert wait_until(lambda: consumers(second), 20) == count
            wait_until(lambda: consumers(second) == 0, 150, every_s=0.5)
            found = [one for one in second.announced(TOPIC) if isinstance(one, ConsumerEvent)]
            gone = [one for one in found if one.event == "unregistered"]
            assert [one.consumers for one in gone] == list(reversed(range(count)))
            assert {one.consumer for one in gone} == set(names)
            assert second.client.delete(PATH).status_code == 204


def test_accepted_names_stored_found_and_removed(place: Place) -> None:
    odd = [LONGEST, "%" * MAX_NAME_BYTES, ".", "..", "a/b", "%2F", "\x00\x7f", "\ufeff\u2028", "ü 日本", "controller"]
    with run_controller(place.open()) as controller:
        topics = ScalableTopics(Transport(controller.url, None, user_agent="test", timeout_seconds=30))
        # One long name at a time: the path of a request has a limit of its own.
        long = [one for name in odd[:2] for one in ((name, "s", "c"), ("t", name, "c"), ("t", "s", name))]
        for names in [*long, *((name, name, name) for name in odd[2:])]:
            prefix, (name, subscription, consumer) = "topic://acme/sizes/", names
            # White space, control characters and percent signs of a topic's name are spelling.
            name = name.strip("\x00\x7f\ufeff\u2028 ").replace("%", "p")[: MAX_NAME_BYTES - len(prefix)]
            topic = prefix + (name or "t")
            assert topics.create_topic(topic, 1, {}) == Answered(None), topic[:40]
            for who in (consumer, "x"):
                assert topics.register_consumer(topic, subscription, who, "STREAM") == Answered(None), who[:20]
            stats = topics.stats(topic)
            assert isinstance(stats, Answered)
            assert stats.value["subscriptions"] == {subscription: {"consumerCount": 2}}
            assert topics.unregister_consumer(topic, subscription, consumer) == Answered(None)
            assert topics.delete_topic(topic) == Answered(None)
            assert isinstance(topics.layout(topic), Refused)
            # As a takeover does that was begun before the deletion: it makes an empty node with a leader.
            controller.node.leaders.lead(topic)
        assert topics.list_topics("acme/sizes") == Answered([])

        def is_empty() -> bool:
            controller.node.failover.release_idle(0, list)
            return not controller.nodes.children(store_paths.namespace_path("acme/sizes"))

        wait_until(is_empty, 30)
        topics.close()


def test_oversized_layout_refused_before_any_step(nodes: Callable[[], ZooKeeperStore]) -> None:
    with run_controller(nodes()) as controller:
        path = PATH.replace("/t", "/large")
        refused = controller.client.put(f"{path}?numInitialSegments=20000")
        assert refused.status_code == 412
        assert "20000 segments" in refused.json()["reason"]
        most = largest(controller, path)
        assert controller.client.put(f"{path}?numInitialSegments={most}").status_code == 204
        before = controller.client.get(path).json()
        for call in ("split/0", "merge/0/1"):
            refused = controller.client.post(f"{path}/{call}")
            assert refused.status_code == 412, call
            assert "at once" in refused.json()["reason"]
        assert controller.client.get(path).json() == before
        assert controller.client.get(f"{path}/operations").json() == []
        assert controller.client.post(f"{path}/autoScalePolicy", content='{"maxSegments": 9000}').status_code == 204
        assert controller.client.delete(path).status_code == 204


def largest(controller: RunningController, path: str) -> int:
    """The largest number of segments that a new topic can have on this store."""
    topic = "topic://" + path.removeprefix("/admin/v2/scalable/")

    def fits(segments: int) -> bool:
        now = controller.clock()
        layout: Any = SegmentLayout.create(segments, now, {}).to_metadata().model_copy(update={"created_at_ms": now})
        try:
            controller.store.check_fits(topic, layout, layout_announcement(topic, "created", layout, now))
        except PreconditionFailed:
            return False
        return True

    low, high = 200, 2_000
    assert fits(low)
    assert not fits(high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
