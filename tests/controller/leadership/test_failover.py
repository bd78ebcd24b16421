"""Several nodes on a real ZooKeeper, in one process: redirects, takeovers, sessions after a failover, a lost store."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from kazoo.client import KazooClient
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from anabranch.controller.metadata import store_paths
from anabranch.controller.metadata.zookeeper import ZooKeeperStore
from schemas.kafka.messages import LayoutEvent
from tests.controller.conftest import RunningController, run_controller
from tests.controller.listening import Listener
from tests.controller.operations.crash_points import SPLIT_POINTS, Crash, crash_at
from tests.controller.places import end_zookeeper_session
from tests.controller.sessions.test_connections import BRIEF, LONG, Client
from tests.controller.watch.test_watch import events
from tests.examples import only_first
from tests.harness.chaos.nodes import Link
from tests.harness.zookeeper import EmbeddedZooKeeper
from tests.waiting import wait_until

TOPIC = "topic://acme/failover/t"
PATH = "/admin/v2/scalable/acme/failover/t"
_roots = (f"/failover-{number}" for number in iter(range(1_000_000)))
Start = Callable[..., RunningController]
KEY_POINTS = ("create-children", "terminate-parent", "published")
"""At which something is half done; `test_operations` stops at all of them."""


@pytest.fixture
def start(zookeeper: EmbeddedZooKeeper) -> Iterator[Start]:
    """Starts a node of one cluster; `address`: by which it reaches ZooKeeper."""
    root = next(_roots)
    with ExitStack() as stack:

        def start_one(address: str = zookeeper.address, session_s: float = 4, **named: Any) -> RunningController:
            nodes = ZooKeeperStore(address, root, session_s=session_s, wait_s=10)
            return stack.enter_context(run_controller(nodes, **named))

        yield start_one


@contextmanager
def consumer(controller: RunningController, name: str) -> Iterator[Client]:
    with connect(f"{controller.url}{PATH}/consumers".replace("http", "ws", 1), open_timeout=30) as connection:
        one = Client(connection)
        one.register(1, name)
        yield one


def last_words(client: Client) -> dict[str, Any]:
    """The last message before the end of the connection."""
    message: dict[str, Any] = {}
    try:
        while True:
            message = client.next()
    except ConnectionClosed:
        return message


def status(controller: RunningController, call: str) -> int:
    return controller.client.post(f"{PATH}/{call}").status_code


def test_changes_go_to_leader_reads_anywhere(start: Start) -> None:
    leader, other = start(), start()
    path = "/admin/v2/scalable/acme/failover/a%2Fb%20%C3%BC"
    assert leader.client.put(f"{path}?numInitialSegments=2").status_code == 204
    for verb, call in [
        ("POST", "/split/0?authoritative=false&x=%20y"),
        ("POST", "/merge/0/1"),
        ("DELETE", ""),
        ("PUT", ""),
        ("POST", "/autoScalePolicy"),
        ("DELETE", "/autoScalePolicy"),
        ("PUT", "/subscriptions/s?type=QUEUE"),
        ("PUT", "/subscriptions/s/consumers/c"),
        ("POST", "/subscriptions/s/seek?timestamp=7"),
        ("POST", "/subscriptions/s/skip-all"),
    ]:
        body = '{"maxSegments":4}' if call == "/autoScalePolicy" else None
        answer = other.client.request(verb, path + call, content=body)
        if (verb, call) == ("DELETE", "/autoScalePolicy"):
            assert answer.status_code == 204, "there is none to remove"
            continue
        assert (answer.status_code, answer.headers["Location"]) == (307, f"{leader.url}{path}{call}")
        assert leader.url in answer.json()["reason"]
    assert other.client.post(f"{path}/split/0", follow_redirects=True).status_code == 204
    assert other.client.get(path).json() == leader.client.get(path).json()
    assert other.client.get(f"{path}/operations").json()[0]["step"] == "done"
    assert other.client.get("/admin/v2/scalable/acme/failover").json() == ["topic://acme/failover/a%2Fb%20ü"]
    assert other.client.post("/admin/v2/scalable/acme/failover/none/split/0").status_code == 404


def test_consumer_redirected_to_leader(start: Start) -> None:
    leader, other = start(), start()
    leader.client.put(PATH)
    greeting = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    greeting["Sec-WebSocket-Key"] = base64.b64encode(bytes(16)).decode()
    answer = other.client.get(f"{PATH}/consumers", headers=greeting)
    assert answer.status_code == 307
    assert answer.headers["Location"] == f"{leader.url}{PATH}/consumers".replace("http", "ws", 1)
    # The client of `websockets` follows it.
    with consumer(other, "a") as a:
        a.assigned_until([0])
    assert leader.client.get(f"{PATH}/stats").json()["subscriptions"] == {"s": {"consumerCount": 1}}


def test_asked_node_takes_over_without_leader(start: Start) -> None:
    first, second = start(), start()
    first.client.put(PATH)
    first.nodes.close()
    assert wait_until(lambda: status(second, "split/0") == 204)
    assert second.node.leaders.leader(TOPIC) == second.url
    assert second.client.get(PATH).json()["epoch"] == 1


@pytest.mark.parametrize("point", only_first(3, sorted(SPLIT_POINTS[:-1], key=KEY_POINTS.__contains__, reverse=True)))
def test_dead_leaders_operation_finished_unasked(point: str, start: Start) -> None:
    """The leader dies at each step."""
    first, second = start(), start()
    assert first.client.put(PATH).status_code == 204
    with crash_at(point, first.nodes.close), pytest.raises(Crash):
        first.node.service.split_segment(TOPIC, 0)
    wait_until(lambda: [one["step"] for one in second.client.get(f"{PATH}/operations").json()] == ["done"], 20)
    assert second.client.get(PATH).json()["epoch"] == 1
    assert status(second, "split/1") == 204


def test_watch_on_other_node_survives_failover(start: Start) -> None:
    first, second = start(), start()
    first.client.put(PATH)
    with events(f"{second.url}{PATH}/watch") as stream:
        _, _, update = stream.next()
        assert (update["epoch"], update["controllerBrokerUrl"]) == (0, first.url)
        assert status(first, "split/0") == 204
        _, _, update = stream.next()
        assert (update["epoch"], update["controllerBrokerUrl"]) == (1, first.url)
        first.nodes.close()
        while update["controllerBrokerUrl"] != second.url or update["epoch"] != 2:
            status(second, "split/1")
            _, _, update = stream.next()
        assert set(update["segmentBrokers"].values()) == {second.url}


def test_consumers_find_segments_at_next_leader(start: Start) -> None:
    first, second = start(grace_seconds=LONG), start(grace_seconds=LONG)
    first.client.put(f"{PATH}?numInitialSegments=3")
    with consumer(first, "a") as a, consumer(first, "b") as b:
        a.assigned_until([0, 2])
        b.assigned_until([1])
        first.nodes.close()
        wait_until(lambda: second.node.registry.leads(TOPIC))
    with consumer(second, "a") as a:
        a.assigned_until([0, 2])
        with consumer(second, "b") as b:
            assert b.assigned() == (1, [1])
            a.register(2, "late")
            assert a.assigned() == (1, [0])
            assert a.assigned() == (2, [2])
    assert second.client.get(f"{PATH}/stats").json()["subscriptions"] == {"s": {"consumerCount": 3}}


def test_absent_consumer_evicted_by_next_leader(start: Start) -> None:
    """The next leader evicts without being asked."""
    first, second = start(grace_seconds=LONG), start(grace_seconds=BRIEF)
    first.client.put(PATH)
    with consumer(first, "a") as a:
        a.assigned_until([0])
        first.nodes.close()
        wait_until(lambda: second.client.get(f"{PATH}/stats").json()["subscriptions"]["s"] == {"consumerCount": 0}, 20)


def test_lost_session_sends_consumers_to_new_leader(start: Start) -> None:
    first, second = start(), start()
    first.client.put(PATH)
    with consumer(first, "a") as a:
        a.assigned_until([0])
        assert isinstance(first.nodes, ZooKeeperStore)
        end_zookeeper_session(first.nodes)
        message = last_words(a)
        assert message["command"] == "moved"
        assert message["controllerBrokerUrl"] in (None, first.url, second.url)
    leader = wait_until(lambda: next((one for one in (first, second) if one.node.registry.leads(TOPIC)), None))
    with consumer(leader, "a") as a:
        a.assigned_until([0])


def test_isolated_leader_answers_503_then_follows(start: Start, zookeeper: EmbeddedZooKeeper) -> None:
    link = Link(zookeeper.address)
    first, second = start(link.address), start()
    first.client.put(PATH)
    with consumer(first, "a") as a:
        a.assigned_until([0])
        link.cut()
        wait_until(lambda: status(second, "split/0") == 204, 20)
        answer = first.client.post(f"{PATH}/split/1")
        assert (answer.status_code, list(answer.json())) == (503, ["reason"])
        assert first.client.get("/healthz").status_code == 503
        assert last_words(a)["command"] == "moved"
    link.mend()
    wait_until(lambda: status(first, "split/1") == 307, 20)
    assert first.client.get(PATH).json()["epoch"] == 1
    link.close()


def test_isolated_leader_drops_consumers_in_time(start: Start, zookeeper: EmbeddedZooKeeper) -> None:
    """They are gone before another leader can have assigned their segments."""
    link, begun = Link(zookeeper.address), []
    # The shortest grace period that is accepted: as long as a session.
    named = {"session_s": 3, "session_seconds": 3, "grace_seconds": 3}
    first, second = start(link.address, **named), start(**named)
    second.node.leaders.on_begun.insert(0, lambda _: begun.append(time.monotonic()))
    first.client.put(f"{PATH}?numInitialSegments=2")
    with consumer(first, "a") as a, ThreadPoolExecutor(1) as pool:
        a.assigned_until([0, 1])
        link.cut()
        sent_away = pool.submit(lambda: (last_words(a)["command"], time.monotonic()))
        wait_until(lambda: second.node.leaders.term(TOPIC), 20)
        with consumer(second, "b") as b:
            b.assigned_until([0, 1])
            given_at = time.monotonic()
        command, sent_at = sent_away.result(20)
    assert command == "moved"
    assert sent_at < given_at
    assert given_at - begun[0] >= 3, "a had a whole grace period"
    link.close()


def test_nodes_answer_503_until_store_returns(start: Start, zookeeper: EmbeddedZooKeeper) -> None:
    first, second = start(), start()
    first.client.put(PATH)
    zookeeper.kill()
    for node in (first, second):
        wait_until(lambda node=node: node.client.get(PATH).status_code == 503, 20)
        assert status(node, "split/0") == 503
        assert "metadata store" in node.client.get(PATH).json()["reason"]
    zookeeper.start()
    wait_until(lambda: first.client.post(f"{PATH}/split/0", follow_redirects=True).status_code == 204, 30)
    wait_until(lambda: second.client.get(PATH).status_code == 200, 30)
    assert second.client.get(PATH).json()["epoch"] == 1


def test_watch_session_survives_store_outage(start: Start, zookeeper: EmbeddedZooKeeper) -> None:
    first, second = start(), start()
    first.client.put(PATH)
    with events(f"{second.url}{PATH}/watch") as stream:
        assert stream.next()[0] == 0
        zookeeper.kill()
        wait_until(lambda: second.client.get(PATH).status_code == 503, 20)
        zookeeper.start()
        wait_until(lambda: first.client.post(f"{PATH}/split/0", follow_redirects=True).status_code == 204, 30)
        while (update := stream.next())[0] != 1:
            assert update[0] == 0
        assert update[2]["segmentBrokers"].keys() == {"1", "2"}


def test_next_leader_tells_pending_segments_early(start: Start) -> None:
    first, second = start(), start()
    first.client.put(f"{PATH}?numInitialSegments=4")
    with consumer(first, "a") as a, consumer(first, "b") as b:
        b.assigned_until([1, 3])
        a.assigned_until([0, 2])
        first.nodes.close()
    wait_until(lambda: second.node.registry.leads(TOPIC), 20)
    for name, segments in (("a", [0, 2]), ("b", [1, 3])):
        found = second.client.get(f"{PATH}/subscriptions/s/consumers/{name}").json()
        assert [one["segmentId"] for one in found["assignedSegments"]] == segments


def test_merge_pushed_and_segment_has_one_consumer(start: Start) -> None:
    node = start()
    node.client.put(f"{PATH}?numInitialSegments=4")
    with consumer(node, "a") as a, consumer(node, "b") as b:
        b.assigned_until([1, 3])
        assert status(node, "merge/2/1") == 204
        # By the start of the range: 0 (0000), 4 (4000), 3 (c000).
        a.assigned_until([0, 3])
        b.assigned_until([4])


def test_topic_served_at_pip_paths_as_json(start: Start, zookeeper: EmbeddedZooKeeper) -> None:
    node = start()
    node.client.put(PATH)
    node.client.put(f"{PATH}/subscriptions/s%2F1/consumers/c%201")
    client = KazooClient(zookeeper.address)
    client.start()
    assert isinstance(node.nodes, ZooKeeperStore)
    top = f"{node.nodes._tree}/topics/acme/failover/t"
    assert json.loads(client.get(top)[0]) == node.client.get(PATH).json()
    leader, about = client.get(f"{top}/controller")
    assert (leader.decode(), about.ephemeralOwner != 0) == (node.url, True)
    assert json.loads(client.get(f"{top}/subscriptions/s%2F1")[0])["type"] == "STREAM"
    found = json.loads(client.get(f"{top}/subscriptions/s%2F1/consumers/c%201")[0])
    assert (found["consumerName"], found["session"]) == ("c 1", False)
    client.stop()
    client.close()


def test_a_node_that_stops_takes_no_more_topics_over(start: Start) -> None:
    node = start()
    for number in range(3):
        node.nodes.put(store_paths.attended_path(f"{TOPIC}{number}"), b"")
    node.node.leaders.stopping.set()
    node.node.failover.take_over()
    assert node.node.leaders.topics() == []
    node.node.leaders.stopping.clear()
    node.node.failover.take_over()
    assert len(node.node.leaders.topics()) == 3


def test_idle_topic_released_and_used_topic_kept(start: Start) -> None:
    node, other = start(), start()
    for name in ("idle", "busy", "deleted"):
        node.client.put(f"{PATH}-{name}")
    node.client.delete(f"{PATH}-deleted")
    with connect(f"{node.url}{PATH}-busy/consumers".replace("http", "ws", 1)) as connection:
        one = Client(connection)
        one.register(1, "a")
        one.assigned_until([0])

        def is_released() -> bool:
            node.node.failover.release_idle(0, lambda: [f"{TOPIC}-busy"])
            return node.node.leaders.topics() == [f"{TOPIC}-busy"]

        # Once the housekeeper has looked for leftovers.
        wait_until(is_released, 20)
        assert other.client.post(f"{PATH}-idle/split/0").status_code == 204
        assert node.client.post(f"{PATH}-idle/split/1").status_code == 307
    assert node.nodes.get(store_paths.topic_path(f"{TOPIC}-deleted")) is None


@pytest.mark.broker
def test_announcements_continue_without_housekeeper(kafka: str, start: Start) -> None:
    first, second = start(bootstrap=kafka), start(bootstrap=kafka)
    listener = Listener(kafka, TOPIC)
    assert second.client.put(PATH).status_code == 204
    for segment in range(10):
        assert status(second, f"split/{segment}") == 204
    first.nodes.close()
    for segment in range(10, 20):
        assert status(second, f"split/{segment}") == 204
    listener.read_until(lambda: listener.epoch(TOPIC) == 20)
    changes = [event.layout.epoch for event in listener.layouts(TOPIC) if event.cause != "snapshot"]
    assert list(dict.fromkeys(changes)) == list(range(21))
    assert isinstance(listener.layouts(TOPIC)[-1], LayoutEvent)
    wait_until(lambda: second.publisher.waiting() == 0)
    listener.close()
