"""Layouts that are pushed: by a real controller, and by servers that fail half-way."""

from __future__ import annotations

import json
import threading

import pytest

from anabranch.admin import watch as watch_module
from anabranch.admin.answers import Lost, Misdirected, Nonsense, NotConnected
from anabranch.admin.topics import ScalableTopics
from anabranch.admin.watch import NoWatch, watch_layouts
from decisions.topic.layout import SegmentLayout
from tests.admin.conftest import Front, transport
from tests.admin.server import http, serving

pytestmark = pytest.mark.process

ORDERS = "topic://acme/shop/orders"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=hex\r\nConnection: close\r\n\r\n"


def layout(splits: int = 0) -> SegmentLayout:
    found = SegmentLayout.create(1, 0)
    for _ in range(splits):
        found = found.split_segment(found.active[0].segment_id, 0)
    return found


def event(found: SegmentLayout, kind: str = "layout", end: str = "\n") -> bytes:
    message = json.dumps({"topic": ORDERS, "layout": json.loads(found.to_metadata().to_json())})
    return f"id: {found.epoch}{end}event: {kind}{end}data: {message}{end}{end}".encode()


def pushed(*scripts, since: int = -1, **more) -> list:
    with serving(*scripts) as server:
        return list(watch_layouts(transport(server.url, **more), ORDERS, since))


def test_controller_pushes_layouts_until_deletion(front: Front) -> None:
    topics, topic = ScalableTopics(transport(front.controller.url, timeout_seconds=5)), front.create("orders")
    front.controller.service.split_segment(topic, 0)
    epochs = []
    for pushed in topics.watch(topic, 0):
        assert isinstance(pushed, SegmentLayout)
        epochs.append(pushed.epoch)
        if pushed.epoch < 4:
            front.controller.service.split_segment(topic, pushed.active[0].segment_id)
        else:
            front.controller.service.delete_topic(topic)
    assert epochs == [1, 2, 3, 4]


def test_layout_events_read_and_others_ignored():
    stream = b": \n\n" + event(layout()) + b": still here\n\n" + event(layout(1), "another") + event(layout(2))
    assert pushed(HEAD + stream) == [layout(), layout(2)]


def test_line_endings_and_chunk_borders_accepted():
    stream = event(layout(), end="\r\n") + event(layout(1), end="\r") + event(layout(2))

    def in_pieces(send):
        send(HEAD)
        for at in range(0, len(stream), 7):
            send(stream[at : at + 7])

    assert pushed(in_pieces) == [layout(), layout(1), layout(2)]


def test_the_last_epoch_is_told_with_the_token():
    with serving(HEAD) as server:
        assert list(watch_layouts(transport(server.url, "s3cret"), ORDERS, 7)) == []
    assert server.asked[0].startswith("GET /admin/v2/scalable/acme/shop/orders/watch HTTP/1.1\r\n")
    for line in ("Last-Event-ID: 7", "Accept: text/event-stream", "Authorization: Bearer s3cret"):
        assert f"\r\n{line}\r\n" in server.asked[0]


@pytest.mark.parametrize(
    ("answer", "status"),
    [(http(404), 404), (http(401), 401), (http(500), 500), (http(200, b"{}", Content_Type="application/json"), 200)],
)
def test_server_without_push_says_so(answer, status):
    assert pushed(answer) == [NoWatch(status)]


@pytest.mark.parametrize("data", ["nonsense", "{}", "[]", '{"layout": {}}', '{"layout": 7}', "[" * 100_000])
def test_what_is_no_layout_ends_the_watch(data):
    stream = event(layout()) + f"event: layout\ndata: {data}\n\n".encode() + event(layout(1))
    first, last = pushed(HEAD + stream)
    assert first == layout()
    assert isinstance(last, Nonsense)


def test_an_event_that_was_cut_off_is_none():
    assert pushed(HEAD + event(layout()) + event(layout(1))[:-1]) == [layout()]
    chunked = HEAD.replace(b"Connection", b"Transfer-Encoding: chunked\r\nConnection")
    one = event(layout())
    first, last = pushed(chunked + f"{len(one):x}\r\n".encode() + one + b"\r\n10\r\nabc")
    assert first == layout()
    assert isinstance(last, Lost)


def test_a_server_that_falls_silent_is_lost(monkeypatch):
    monkeypatch.setattr(watch_module, "SILENCE_SECONDS", 1.0)
    released = threading.Event()

    def silent(send):
        send(HEAD + event(layout()))
        released.wait(10)

    with serving(silent) as server:
        first, last = watch_layouts(transport(server.url), ORDERS, 0)
        released.set()
    assert first == layout()
    assert isinstance(last, Lost)


def test_an_event_without_an_end_is_not_read_on(monkeypatch):
    monkeypatch.setattr(watch_module, "MAX_BODY_BYTES", 1_000_000)

    def pour(send):
        send(HEAD + event(layout()) * 2000 + b"data: ")
        while send(b"a" * 65536):
            pass

    found = pushed(pour)
    assert found[:-1] == [layout()] * 2000
    assert isinstance(found[-1], Lost)
    assert "larger than" in found[-1].why


def test_unreachable_server_and_dead_redirect():
    [nobody] = watch_layouts(transport("http://127.0.0.1:1"), ORDERS, 0)
    assert isinstance(nobody, NotConnected)
    [nowhere] = pushed(http(307, Location="ftp://x"))
    assert isinstance(nowhere, Misdirected)


def test_redirect_to_pushing_node_followed():
    with serving(HEAD + event(layout())) as leader:
        assert pushed(http(307, Location=f"{leader.url}/elsewhere"), since=3) == [layout()]
    assert "Last-Event-ID: 3" in leader.asked[0]
