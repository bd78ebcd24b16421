"""Watching over HTTP at a real controller: the layout at once, every later one, resumption, ends, stalled clients."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from anabranch.controller.watch.layout_watcher import LayoutWatcher
from anabranch.controller.watch.transport import KEEP_ALIVE_SECONDS
from tests.controller.conftest import RunningController, run_controller
from tests.controller.plain_http import PLAIN
from tests.controller.watch.observing import open_sessions
from tests.waiting import wait_until

pytestmark = pytest.mark.process

SESSIONS = 200


class Events:
    """A stream of server-sent events as it is read."""

    def __init__(self, answer: httpx.Response) -> None:
        self._lines = answer.iter_lines()

    def next(self) -> tuple[int | None, str, Any]:
        """Id, kind and data of the next event; comments are passed over."""
        fields: dict[str, str] = {}
        for line in self._lines:
            if line and not line.startswith(":"):
                name, _, value = line.partition(": ")
                fields[name] = value
            elif not line and fields:
                break
        return (int(fields["id"]) if "id" in fields else None), fields["event"], json.loads(fields["data"])


@contextmanager
def events(url: str, **headers: str) -> Iterator[Events]:
    with httpx.Client(timeout=30, verify=PLAIN) as client, client.stream("GET", url, headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield Events(answer)


def socket_at(url: str, **named: Any) -> ClientConnection:
    connection: ClientConnection = connect(url.replace("http://", "ws://"), open_timeout=30, **named)
    return connection


def sessions(controller: RunningController) -> int:
    return open_sessions(controller.watcher.hub)


@pytest.fixture
def path(controller: RunningController, namespace: str) -> str:
    """The path of a new topic of one segment."""
    path = f"/admin/v2/scalable/{namespace}/t"
    assert controller.client.put(path).status_code == 204
    return path


def test_session_gets_current_and_later_layouts(controller: RunningController, path: str, namespace: str) -> None:
    with events(f"{controller.url}{path}/watch") as stream:
        id, kind, first = stream.next()
        assert (id, kind) == (0, "layout")
        assert first == {
            "topic": f"topic://{namespace}/t",
            "epoch": 0,
            "controllerBrokerUrl": controller.url,
            "segmentBrokers": {"0": controller.url},
            "layout": controller.client.get(path).json(),
        }
        controller.client.post(f"{path}/split/0")
        id, kind, second = stream.next()
        assert (id, kind, second["epoch"]) == (1, "layout", 1)
        assert sorted(second["segmentBrokers"]) == ["1", "2"]
        assert second["layout"] == controller.client.get(path).json()
        controller.client.post(f"{path}/autoScalePolicy", json={"maxSegments": 7})
        id, _, third = stream.next()
        assert (id, third["layout"]) == (1, controller.client.get(path).json())


def test_session_resumes_after_last_event(controller: RunningController, path: str) -> None:
    for segment in (0, 1, 2):
        controller.client.post(f"{path}/split/{segment}")
    with events(f"{controller.url}{path}/watch", **{"Last-Event-ID": "2"}) as stream:
        assert stream.next()[0] == 3
    with events(f"{controller.url}{path}/watch", **{"Last-Event-ID": "3"}) as stream:
        controller.client.post(f"{path}/split/3")
        assert stream.next()[0] == 4


def test_session_of_former_incarnation_gets_layout(controller: RunningController, path: str) -> None:
    with events(f"{controller.url}{path}/watch?since=99") as stream:
        assert stream.next()[0] == 0


def test_bad_epoch_is_400_and_missing_topic_404(controller: RunningController, path: str) -> None:
    answer = controller.client.get(f"{path}/watch", headers={"Last-Event-ID": "one"})
    assert (answer.status_code, "epoch" in answer.json()["reason"]) == (400, True)
    answer = controller.client.get(f"{path}else/watch")
    assert (answer.status_code, "not found" in answer.json()["reason"]) == (404, True)
    with pytest.raises(InvalidStatus) as refused:
        socket_at(f"{controller.url}{path}else/watch")
    assert refused.value.response.status_code == 404


def test_the_stream_ends_with_the_topic_and_says_so(controller: RunningController, path: str) -> None:
    with events(f"{controller.url}{path}/watch") as stream, socket_at(f"{controller.url}{path}/watch") as connection:
        stream.next()
        connection.recv(30)
        controller.client.delete(path)
        assert stream.next() == (None, "closed", {"reason": "the topic was deleted"})
        with pytest.raises(ConnectionClosed) as closed:
            connection.recv(30)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 4404


def test_a_web_socket_gets_the_same_messages(controller: RunningController, path: str) -> None:
    with socket_at(f"{controller.url}{path}/watch") as connection, events(f"{controller.url}{path}/watch") as stream:
        for segment in (0, 1, 2):
            assert json.loads(connection.recv(30)) == stream.next()[2]
            controller.client.post(f"{path}/split/{segment}")
    with socket_at(f"{controller.url}{path}/watch?since=2") as connection:
        assert json.loads(connection.recv(30))["epoch"] == 3


def test_sessions_whose_clients_leave_are_forgotten(controller: RunningController, path: str, namespace: str) -> None:
    # Of its own topic: those of the test before may only just end.
    hub, topic = controller.watcher.hub, f"topic://{namespace}/t"
    with socket_at(f"{controller.url}{path}/watch") as connection, events(f"{controller.url}{path}/watch") as stream:
        connection.recv(30)
        stream.next()
        assert open_sessions(hub, topic) == 2
    wait_until(lambda: open_sessions(hub, topic) == 0)


def test_a_page_of_another_origin_may_not_connect(controller: RunningController, path: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        socket_at(f"{controller.url}{path}/watch", origin="http://elsewhere.example")
    assert refused.value.response.status_code == 403
    with socket_at(f"{controller.url}{path}/watch", origin=controller.url) as connection:
        assert json.loads(connection.recv(30))["epoch"] == 0


def test_watching_needs_the_token_as_everything_else(tmp_path: Any) -> None:
    with run_controller(tmp_path / "layouts.db", token="s3cret") as guarded:
        good = {"Authorization": "Bearer s3cret"}
        path = "/admin/v2/scalable/a/b/t"
        guarded.client.put(path, headers=good)
        assert guarded.client.get(f"{path}/watch").status_code == 401
        with pytest.raises(InvalidStatus) as refused:
            socket_at(f"{guarded.url}{path}/watch")
        assert refused.value.response.status_code == 401
        with (
            events(f"{guarded.url}{path}/watch", **good) as stream,
            socket_at(f"{guarded.url}{path}/watch", additional_headers=good) as connection,
        ):
            assert stream.next()[0] == json.loads(connection.recv(30))["epoch"] == 0


def test_idle_sessions_hold_no_turn_of_their_token(controller: RunningController, path: str) -> None:
    with ExitStack() as held:
        for _ in range(40):
            # They know the present epoch, so that there is nothing to send but the head of the answer.
            held.enter_context(events(f"{controller.url}{path}/watch", **{"Last-Event-ID": "0"}))
        began = time.monotonic()
        assert controller.client.post(f"{path}/split/0").status_code == 204
        assert time.monotonic() - began < KEEP_ALIVE_SECONDS / 3


def test_sessions_see_the_promised_split(controller: RunningController, path: str) -> None:
    ready = threading.Barrier(SESSIONS + 1)

    def look(number: int) -> list[int | None]:
        if number % 2:
            with events(f"{controller.url}{path}/watch") as stream:
                seen = [stream.next()[0]]
                ready.wait(60)
                return [*seen, stream.next()[0]]
        with socket_at(f"{controller.url}{path}/watch") as connection:
            seen = [json.loads(connection.recv(30))["epoch"]]
            ready.wait(60)
            return [*seen, json.loads(connection.recv(30))["epoch"]]

    with ThreadPoolExecutor(SESSIONS) as pool:
        looks = [pool.submit(look, number) for number in range(SESSIONS)]
        ready.wait(60)
        assert controller.client.post(f"{path}/split/0").status_code == 204
        assert [one.result(60) for one in looks] == [[0, 1]] * SESSIONS


def test_slow_client_cut_off_while_others_go_on(tmp_path: Any) -> None:
    with run_controller(tmp_path / "layouts.db") as running:
        path = "/admin/v2/scalable/a/b/t"
        running.client.put(f"{path}?numInitialSegments=500")
        with closing(socket.socket()) as stalled, events(f"{running.url}{path}/watch") as stream:
            stream.next()
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stalled.connect(("127.0.0.1", running.client.base_url.port))
            stalled.sendall(f"GET {path}/watch HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            wait_until(lambda: sessions(running) == 2)
            for number in range(200):
                running.client.post(f"{path}/autoScalePolicy", json={"maxSegments": 1 + number % 2})
                stream.next()
                if sessions(running) == 1:
                    break
            assert sessions(running) == 1
            running.client.delete(path)
            assert stream.next()[1] == "closed"


def test_a_stop_ends_all_sessions_at_once(tmp_path: Any) -> None:
    with run_controller(tmp_path / "layouts.db") as running:
        path = "/admin/v2/scalable/a/b/t"
        running.client.put(path)
        watcher: LayoutWatcher = running.watcher
        with events(f"{running.url}{path}/watch") as stream, socket_at(f"{running.url}{path}/watch") as connection:
            stream.next()
            connection.recv(30)
            running.stop()
            assert stream.next()[2] == {"reason": "the controller is stopping; watch again elsewhere"}
            with pytest.raises(ConnectionClosed):
                connection.recv(30)
        assert open_sessions(watcher.hub) == 0
