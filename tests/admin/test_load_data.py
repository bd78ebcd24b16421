"""A followed topic on a real WebSocket server that behaves as Pulsar's does after a value was retracted."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import Server, ServerConnection, serve

from anabranch.admin.answers import Answered, Nonsense, NotConnected, Reply, Response
from anabranch.admin.cluster import ClusterAdmin, ReaderProgress
from anabranch.admin.load_data import BROKER_LOAD, FollowedTopic, NoLoadData
from tests.waiting import wait_until

pytestmark = pytest.mark.process

KEY = "broker-1:8080"


class Topic:
    """A topic, its readers and what the broker counts of them."""

    def __init__(self) -> None:
        self.sent: dict[str, int] = {}
        self.dead: set[str] = set()
        self.readers: list[tuple[str, ServerConnection]] = []
        self.is_silent, self.since = False, "noon"
        self.lock = threading.Lock()

    def handle(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        [reader] = parse_qs(urlsplit(connection.request.path).query)["readerName"]
        with self.lock:
            self.sent[reader] = 0
            self.readers.append((reader, connection))
        try:
            for _ in connection:
                continue
        except ConnectionClosed:
            pass

    def publish(self, value: bytes | None) -> None:
        """Give a message to the newest reader; None retracts a value, which ends the delivery without a word."""
        reader, connection = self.readers[-1]
        self.sent[reader] += 1
        if value is None:
            self.dead.add(reader)
        if reader not in self.dead:
            payload = base64.b64encode(value or b"").decode()
            connection.send(json.dumps({"key": KEY, "messageId": "CAAQADAA", "payload": payload}))

    def progress(self, topic: str, reader: str) -> Reply[ReaderProgress | None]:
        assert topic == BROKER_LOAD
        if self.is_silent:
            return NotConnected("GET", "refused")
        with self.lock:
            return Answered(ReaderProgress(self.sent[reader], self.since) if reader in self.sent else None)


@pytest.fixture
def topic() -> Topic:
    return Topic()


@pytest.fixture
def followed(topic: Topic) -> Iterator[FollowedTopic]:
    server: Server = serve(topic.handle, "127.0.0.1", 0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.socket.getsockname()[1]}"
    following = FollowedTopic(url, None, BROKER_LOAD, topic.progress, timeout_seconds=5, silence_seconds=0.5)
    try:
        wait_until(lambda: topic.readers)
        yield following
    finally:
        following.close()
        server.shutdown()
        thread.join()


def known(followed: FollowedTopic) -> bytes | None:
    try:
        return followed.newest(KEY)
    except NoLoadData:
        return None


def fault(followed: FollowedTopic) -> str:
    try:
        followed.newest(KEY)
    except NoLoadData as error:
        return str(error)
    return ""


def test_reader_is_replaced_after_a_retraction(topic: Topic, followed: FollowedTopic) -> None:
    topic.publish(b"old")
    wait_until(lambda: known(followed) == b"old")
    topic.publish(None)
    topic.publish(b"unheard")
    wait_until(lambda: len(topic.readers) == 2)
    assert known(followed) is None, "what was known may have been retracted"
    topic.publish(b"new")
    wait_until(lambda: known(followed) == b"new")


def test_values_unknown_while_broker_does_not_count(topic: Topic, followed: FollowedTopic) -> None:
    topic.publish(b"a")
    wait_until(lambda: known(followed) == b"a")
    topic.is_silent = True
    wait_until(lambda: "its statistics cannot be read" in fault(followed))
    topic.is_silent = False
    wait_until(lambda: known(followed) == b"a")
    assert len(topic.readers) == 1


def test_reader_is_replaced_when_its_topic_moves(topic: Topic, followed: FollowedTopic) -> None:
    topic.publish(b"a")
    wait_until(lambda: known(followed) == b"a")
    topic.since = "later"
    wait_until(lambda: len(topic.readers) == 2)
    topic.publish(b"b")
    wait_until(lambda: known(followed) == b"b")


class Stats:
    """A transport that answers with the statistics of a topic."""

    def __init__(self, body: object) -> None:
        self._body = body

    def exchange(
        self, method: str, path: str, query: object = None, body: object = None, headers: object = None
    ) -> object:
        assert path == f"/admin/v2/{BROKER_LOAD}/stats"
        return Response(200, "", json.dumps(self._body).encode(), path)


def test_progress_is_that_of_the_named_reader() -> None:
    consumers = [
        {"consumerName": "YwG0j", "msgOutCounter": 32, "connectedSince": "2026-11-26T12:27:40.845Z"},
        {"consumerName": "anabranch-1", "msgOutCounter": 4, "connectedSince": "2026-11-26T12:27:43.015Z"},
    ]
    body = {"subscriptions": {f"reader-{number}": {"consumers": [each]} for number, each in enumerate(consumers)}}
    admin = ClusterAdmin(Stats(body))  # type: ignore[arg-type]
    expected = ReaderProgress(4, "2026-11-26T12:27:43.015Z")
    assert admin.reader_progress(BROKER_LOAD, "anabranch-1") == Answered(expected)
    assert admin.reader_progress(BROKER_LOAD, "anabranch-2") == Answered(None)
    del consumers[1]["connectedSince"]
    assert isinstance(admin.reader_progress(BROKER_LOAD, "anabranch-1"), Nonsense)
