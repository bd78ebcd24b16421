"""Redirects to another node: the token follows to admitted addresses only, and is in no log."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from anabranch_client.config import ControllerAccess
from anabranch_client.controller import Controller
from anabranch_client.errors import AnabranchError, NotAuthorized, TopicNotFound

pytestmark = pytest.mark.process

NAME = "topic://acme/shop/orders"
TOKEN = "t0ken-of-the-client"
CALLS: dict[str, Callable[[Controller], object]] = {
    "http": lambda controller: controller.layout(NAME),
    "ws": lambda controller: controller.open(NAME, "/consumers"),
}


@contextmanager
def answering(status: str, location: str = "") -> Iterator[tuple[int, list[str]]]:
    """A node that answers everything alike; yields its port and the heads of the requests."""
    heads: list[str] = []
    answer = f"HTTP/1.1 {status}\r\nLocation: {location}\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}"

    def serve() -> None:
        while True:
            connection, _ = server.accept()
            with connection:
                head = b""
                while b"\r\n\r\n" not in head and (more := connection.recv(4_096)):
                    head += more
                if not head:
                    return
                heads.append(head.decode())
                connection.sendall(answer.encode())

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield port, heads
        finally:
            socket.create_connection(("127.0.0.1", port)).close()
            thread.join()


def call(scheme: str, port: int) -> AnabranchError:
    controller = Controller(ControllerAccess((f"http://127.0.0.1:{port}",), TOKEN))
    with pytest.raises(AnabranchError) as raised:
        CALLS[scheme](controller)
    return raised.value


@pytest.mark.parametrize("scheme", CALLS)
def test_redirect_to_the_leader_keeps_the_token(scheme: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with ExitStack() as stack:
        port, heads = stack.enter_context(answering("404 Not Found"))
        location = f"{scheme}://127.0.0.1:{port}/leader"
        first, _ = stack.enter_context(answering("307 Temporary Redirect", location))
        assert isinstance(call(scheme, first), TopicNotFound)
    (head,) = heads
    assert head.startswith("GET /leader ")
    assert f"Authorization: Bearer {TOKEN}" in head
    assert TOKEN not in caplog.text


@pytest.mark.parametrize("scheme", CALLS)
def test_redirect_to_another_host_is_refused(scheme: str) -> None:
    with ExitStack() as stack:
        port, heads = stack.enter_context(answering("404 Not Found"))
        location = f"{scheme}://127.0.0.2:{port}/leader"
        first, _ = stack.enter_context(answering("307 Temporary Redirect", location))
        error = call(scheme, first)
    assert isinstance(error, NotAuthorized)
    assert TOKEN not in str(error)
    assert not heads
