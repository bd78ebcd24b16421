"""Subscriptions moved to a time or to the end, on a real broker: what a consumer reads then, and what sessions hold."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Consumer, Message

from anabranch.controller.segments.base import SegmentStoreError, SubscriptionInUse, SubscriptionNotFound, Target
from anabranch.controller.segments.kafka import KafkaSegments
from anabranch.controller.segments.kafka_names import group_id, kafka_topic
from anabranch.controller.sessions import draining
from schemas.kafka.connection import KafkaConnection
from tests.controller.conftest import LIFE, RunningController
from tests.controller.segments import test_segments_kafka
from tests.controller.segments.killed_at import WHOLE
from tests.controller.sessions.test_connections import client, controller
from tests.waiting import wait_until

pytestmark = pytest.mark.broker

NAME = "acme/seeking/t"
PATH = f"/admin/v2/scalable/{NAME}"
WHOLE_SEGMENT, LOWER_CHILD, UPPER_CHILD = (
    f"segment://{NAME}/{descriptor}" for descriptor in ("0000-ffff-0", "0000-7fff-1", "8000-ffff-2")
)
write = partial(test_segments_kafka.write, life=LIFE)
acknowledge = partial(test_segments_kafka.acknowledge, life=LIFE)
TIMES = [1_000, 2_000, 1_500, 3_000]
VALUES = [b"a", b"b", b"c", b"d"]


@pytest.fixture(scope="module")
def segments(kafka_segments: KafkaSegments) -> KafkaSegments:
    return kafka_segments.of_incarnation(LIFE)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic that no other test uses."""
    return f"topic://acme/seeking/{request.node.name}"


@pytest.fixture
def running(segments: KafkaSegments, tmp_path: Path) -> Iterator[RunningController]:
    """A controller with a topic of one segment with four messages, and a subscription."""
    with life(segments, tmp_path) as one:
        yield one
        one.client.delete(PATH)


@contextmanager
def life(segments: KafkaSegments, folder: Path) -> Iterator[RunningController]:
    with controller(folder, segments=segments) as one:
        if one.client.get(PATH).status_code == 404:
            assert one.client.put(PATH).status_code == 204
            assert one.client.put(f"{PATH}/subscriptions/s").status_code == 204
            write(segments._kafka.connection.bootstrap, WHOLE_SEGMENT, VALUES, TIMES)
        yield one


def seek(running: RunningController, timestamp: object, subscription: str = "s") -> httpx.Response:
    return running.client.post(f"{PATH}/subscriptions/{subscription}/seek", params={"timestamp": str(timestamp)})


def skip_all(running: RunningController, subscription: str = "s") -> httpx.Response:
    return running.client.post(f"{PATH}/subscriptions/{subscription}/skip-all")


def split(running: RunningController) -> None:
    assert running.client.post(f"{PATH}/split/0").status_code == 204


def resumed(kafka: str, segment: str, subscription: str, count: int) -> list[bytes]:
    """The next `count` values that a consumer of the subscription is given."""
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": group_id(segment, subscription, LIFE)})
    consumer.subscribe([kafka_topic(segment, LIFE)])
    found: list[Message] = []
    wait_until(lambda: found.extend(consumer.consume(count - len(found), 0.1)) or len(found) >= count, 30)
    consumer.close()
    return [value for message in found if (value := message.value()) is not None]


@pytest.mark.parametrize(
    ("target", "position", "sealed"),
    [
        (0, 0, False),
        (1_000, 0, False),
        (1_001, 1, False),
        (2_000, 1, False),
        (2_001, 3, False),
        (3_000, 3, False),
        (3_001, 4, False),
        (2**63 - 1, 4, False),
        ("latest", 4, False),
        (1_001, 1, True),
        (3_001, 4, True),
        (2**63 - 1, 4, True),
        ("latest", 4, True),
    ],
)
def test_seek_by_time_finds_first_message(
    kafka: str, segments: KafkaSegments, target: Target, position: int, sealed: bool
) -> None:
    segment = segments.create(f"topic://acme/segments/seek-{target}-{sealed}", 0, WHOLE, ["audit", "billing"])
    write(kafka, segment, [b"a", b"b", b"c", b"d"], [1_000, 2_000, 1_500, 3_000])
    acknowledge(kafka, segment, "billing", 2)
    if sealed:
        segments.terminate(segment)
    for _ in range(2):
        segments.seek(segment, "billing", target)
        assert segments.stats(segment).backlog == {"audit": 4, "billing": 4 - position}
    assert resumed(kafka, segment, "billing", 4 - position) == [b"a", b"b", b"c", b"d"][position:]


def test_seek_on_empty_segment_goes_to_start(segments: KafkaSegments, topic: str) -> None:
    segment = segments.create(topic, 0, WHOLE, ["billing"])
    for target in (0, 2**63 - 1, "latest"):
        segments.seek(segment, "billing", target)
        assert segments.backlog(segment, "billing") == 0


def test_seek_does_not_create_subscription(segments: KafkaSegments, topic: str) -> None:
    segment = segments.create(topic, 0, WHOLE, ["billing"])
    with pytest.raises(SubscriptionNotFound):
        segments.seek(segment, "audit", 0)
    segments.check_unused(segment, "audit")
    assert segments.subscriptions(segment) == ["billing"]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_attached_subscription_moves_after_close(kafka: str, segments: KafkaSegments, protocol: str) -> None:
    segment = segments.create(f"topic://acme/segments/seek-used-{protocol}", 0, WHOLE, ["billing"])
    write(kafka, segment, [b"a", b"b"])
    consumer = Consumer(
        {
            "bootstrap.servers": kafka,
            "group.id": group_id(segment, "billing", LIFE),
            "group.protocol": protocol,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([kafka_topic(segment, LIFE)])
    wait_until(lambda: consumer.poll(0.1), 30)
    for ask in (
        lambda: segments.check_unused(segment, "billing"),
        lambda: segments.seek(segment, "billing", "latest"),
        lambda: segments.seek(segment, "billing", 0),
    ):
        with pytest.raises(SubscriptionInUse, match="close them first"):
            ask()
    assert segments.backlog(segment, "billing") == 2
    consumer.close()
    segments.check_unused(segment, "billing")
    segments.seek(segment, "billing", "latest")
    assert segments.backlog(segment, "billing") == 0


def test_seek_moves_one_subscription_everywhere(
    kafka: str, running: RunningController, segments: KafkaSegments
) -> None:
    """The subscription moves on sealed and active segments."""
    running.client.put(f"{PATH}/subscriptions/other")
    split(running)
    write(kafka, LOWER_CHILD, [b"e", b"f"], [2_500, 4_000])
    acknowledge(kafka, WHOLE_SEGMENT, "s", 3)
    for timestamp, values in [(2_500, [b"d"]), (0, VALUES), (9_000, [])]:
        for _ in range(2):
            assert seek(running, timestamp).status_code == 204
        assert segments.backlog(WHOLE_SEGMENT, "s") == len(values)
        assert segments.backlog(LOWER_CHILD, "s") == (2 if values else 0)
        assert segments.backlog(UPPER_CHILD, "s") == 0
    assert seek(running, 2_501).status_code == 204
    assert resumed(kafka, WHOLE_SEGMENT, "s", 1) == [b"d"]
    assert resumed(kafka, LOWER_CHILD, "s", 1) == [b"f"]
    assert [segments.backlog(one, "other") for one in (WHOLE_SEGMENT, LOWER_CHILD)] == [4, 2]


def test_skip_all_clears_backlog_and_reads_new(kafka: str, running: RunningController, segments: KafkaSegments) -> None:
    split(running)
    write(kafka, UPPER_CHILD, [b"old"])
    for _ in range(2):
        assert skip_all(running).status_code == 204
    assert [segments.backlog(one, "s") for one in (WHOLE_SEGMENT, LOWER_CHILD, UPPER_CHILD)] == [0, 0, 0]
    write(kafka, UPPER_CHILD, [b"new"])
    assert resumed(kafka, UPPER_CHILD, "s", 1) == [b"new"]


def test_a_queue_is_moved_like_a_stream(running: RunningController, segments: KafkaSegments) -> None:
    running.client.put(f"{PATH}/subscriptions/q?type=QUEUE")
    assert seek(running, 2_001, "q").status_code == 204
    assert segments.stats(WHOLE_SEGMENT).backlog == {"q": 1, "s": 4}
    assert skip_all(running, "q").status_code == 204
    assert segments.stats(WHOLE_SEGMENT).backlog == {"q": 0, "s": 4}


def test_seek_pushes_assignments_and_survives_restart(
    kafka: str, segments: KafkaSegments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody looks by itself what was drained: only the seek can have been noticed.
    monkeypatch.setattr(draining, "DELAY_SECONDS", 3600.0)
    with life(segments, tmp_path) as running, client(running, PATH) as one:
        one.register(1, "a")
        assert one.assigned() == (1, [0])
        split(running)
        assert skip_all(running).status_code == 204
        assert one.assigned() == (1, [1, 2])
        assert seek(running, 2_001).status_code == 204
        assert one.assigned() == (1, [0])
    with life(segments, tmp_path) as running, client(running, PATH) as one:
        one.register(1, "a")
        assert one.assigned() == (1, [0])
        acknowledge(kafka, WHOLE_SEGMENT, "s", 4)
        assert seek(running, 9_000).status_code == 204
        assert one.assigned() == (1, [1, 2])
        one.register(1, "a")
        assert seek(running, 9_000).status_code == 204
        assert one.assigned() == (1, [1, 2])
    with life(segments, tmp_path) as running, client(running, PATH) as one:
        one.register(1, "a")
        assert one.assigned() == (1, [1, 2])
        running.client.delete(PATH)


def test_one_attached_segment_blocks_the_seek(kafka: str, running: RunningController, segments: KafkaSegments) -> None:
    split(running)
    write(kafka, UPPER_CHILD, [b"e"])
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": group_id(UPPER_CHILD, "s", LIFE)})
    consumer.subscribe([kafka_topic(UPPER_CHILD, LIFE)])
    wait_until(lambda: consumer.poll(0.1), 30)
    for answer in (seek(running, 3_000), skip_all(running)):
        assert answer.status_code == 412
        assert f"s on {UPPER_CHILD}" in answer.json()["reason"]
        assert "close them first" in answer.json()["reason"]
    assert segments.backlog(WHOLE_SEGMENT, "s") == 4
    consumer.close()
    assert skip_all(running).status_code == 204
    assert segments.backlog(WHOLE_SEGMENT, "s") == 0


def test_seek_adds_subscription_and_skips_missing(running: RunningController, segments: KafkaSegments) -> None:
    """A segment without the subscription gets it; a missing segment is passed over."""
    split(running)
    segments.delete_subscription(WHOLE_SEGMENT, "s")
    segments.delete(LOWER_CHILD)
    assert seek(running, 2_001).status_code == 204
    assert segments.backlog(WHOLE_SEGMENT, "s") == 1
    assert segments.subscriptions(UPPER_CHILD) == ["s"]


class Broken(KafkaSegments):
    """On some segments Kafka does not answer requests to move a subscription."""

    unreachable: tuple[str, ...] = ()

    def seek(self, segment: str, subscription: str, target: Target) -> None:
        if segment in self.unreachable:
            raise SegmentStoreError(f"cannot move {subscription} on {segment}: Kafka gave no answer")
        super().seek(segment, subscription, target)


def test_interrupted_seek_is_503_and_repeatable(kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted seek leaves nothing drained."""
    monkeypatch.setattr(draining, "DELAY_SECONDS", 3600.0)
    segments = Broken(KafkaConnection(kafka))
    with life(segments, tmp_path) as running, client(running, PATH) as one:
        one.register(1, "a")
        one.assigned()
        split(running)
        assert skip_all(running).status_code == 204
        assert one.assigned() == (1, [1, 2])
        segments.unreachable = (UPPER_CHILD,)
        assert seek(running, 0).status_code == 503
        assert segments.of_incarnation(LIFE).backlog(WHOLE_SEGMENT, "s") == 4
        assert one.assigned() == (1, [0])
        segments.unreachable = ()
        assert seek(running, 9_000).status_code == 204
        assert one.assigned() == (1, [1, 2])
        running.client.delete(PATH)


class Slow(KafkaSegments):
    """Whose termination of a segment waits until it may go on."""

    def __init__(self, kafka: KafkaConnection) -> None:
        super().__init__(kafka)
        self.begun, self.may_go_on = threading.Event(), threading.Event()

    def terminate(self, segment: str) -> int:
        self.begun.set()
        assert self.may_go_on.wait(60)
        return super().terminate(segment)


def test_seek_during_split_waits_and_moves_all(kafka: str, tmp_path: Path) -> None:
    segments = Slow(KafkaConnection(kafka))
    with life(segments, tmp_path) as running:
        calls = [threading.Thread(target=split, args=[running]), threading.Thread(target=skip_all, args=[running])]
        calls[0].start()
        assert segments.begun.wait(60)
        calls[1].start()
        write(kafka, WHOLE_SEGMENT, [b"late"])
        segments.may_go_on.set()
        for call in calls:
            call.join()
        living = segments.of_incarnation(LIFE)
        assert [living.backlog(one, "s") for one in (WHOLE_SEGMENT, LOWER_CHILD, UPPER_CHILD)] == [0, 0, 0]
        write(kafka, LOWER_CHILD, [b"new"])
        assert resumed(kafka, LOWER_CHILD, "s", 1) == [b"new"]
        running.client.delete(PATH)


def test_deleted_subscription_frees_its_name(kafka: str, running: RunningController, segments: KafkaSegments) -> None:
    """PIP-468 "Admin API": the controller unregisters all consumers and deletes the subscription from every segment."""
    settings = {"bootstrap.servers": kafka, "auto.offset.reset": "earliest"}
    reader = Consumer({**settings, "group.id": group_id(WHOLE_SEGMENT, "s", LIFE)})
    reader.subscribe([kafka_topic(WHOLE_SEGMENT, LIFE)])
    wait_until(lambda: reader.poll(0.1), 30)
    of_subscription, operations = f"{PATH}/subscriptions/s", running.node.registry._operations
    with client(running, PATH) as one:
        one.register(1, "a")
        one.assigned()
        assert running.client.delete(of_subscription).status_code == 204
        assert one.next()["command"] == "closed"
        assert running.client.get(f"{PATH}/stats").json()["subscriptions"] == {}
        # Its positions are those of consumers that have not left: nothing new may begin there.
        one.register(1, "a")
        assert (one.next()["status"], running.client.put(of_subscription).status_code) == (412, 412)
        operations.resume_open()
        assert segments.of_incarnation(LIFE).subscriptions(WHOLE_SEGMENT) == ["s"]
        split(running)
        reader.close()
        operations.resume_open()
        assert segments.of_incarnation(LIFE).subscriptions(WHOLE_SEGMENT) == []
        assert running.client.put(of_subscription).status_code == 204
    assert resumed(kafka, WHOLE_SEGMENT, "s", 4) == VALUES
