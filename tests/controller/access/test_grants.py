"""Sessions end when their tokens are removed, replaced or narrowed; those of others go on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from anabranch.auth.callers import Access, Caller, Need
from anabranch.auth.tokens import add_token, remove_token
from anabranch.controller.access.grants import Grants
from anabranch.controller.watch.hub import CloseReason
from tests.controller.conftest import RunningController, run_controller
from tests.controller.sessions.test_connections import client
from tests.controller.watch.test_watch import events, socket_at

PATH = "/admin/v2/scalable/acme/grants/t"
READ_IT = Need("read", "acme/grants")
CONSUMERS_PATH = "/admin/v2/scalable/acme/sessions/t"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tokens"


@pytest.fixture
def running(file: Path, tmp_path: Path) -> Iterator[tuple[RunningController, str]]:
    """A controller with a token of an administrator, and that token."""
    admin = add_token(file, "admin", "admin")
    with run_controller(tmp_path / "layouts.db", tokens_file=file) as controller:
        for path in (PATH, CONSUMERS_PATH):
            assert controller.client.put(path, headers=_header(admin)).status_code == 204
        yield controller, admin


def _header(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def narrow(file: Path, name: str, before: str, after: str) -> None:
    text = file.read_text().replace(f"{name} {before} ", f"{name} {after} ")
    new = file.with_name("new")
    new.touch(0o600)
    new.write_text(text)
    new.replace(file)


def end_of(connection: ClientConnection) -> tuple[int, str]:
    """The close code and the reason, after any other messages."""
    try:
        while True:
            connection.recv(30)
    except ConnectionClosed as closed:
        return (closed.rcvd.code, closed.rcvd.reason) if closed.rcvd else (0, "")


@pytest.mark.process
def test_removed_token_ends_its_watch_sessions(running: tuple[RunningController, str], file: Path) -> None:
    """They end with the reason; others go on."""
    controller, admin = running
    url, gone = f"{controller.url}{PATH}/watch", add_token(file, "gone", "read")
    with (
        events(url, **_header(gone)) as stream,
        socket_at(url, additional_headers=_header(gone)) as connection,
        socket_at(url, additional_headers=_header(admin)) as other,
    ):
        assert stream.next()[0] == 0
        for one in (connection, other):
            assert json.loads(one.recv(30))["epoch"] == 0
        remove_token(file, "gone")
        assert stream.next() == (None, "closed", {"reason": CloseReason.REVOKED.value})
        assert end_of(connection) == (4401, CloseReason.REVOKED.value)
        assert controller.client.post(f"{PATH}/split/0", headers=_header(admin)).status_code == 204
        assert json.loads(other.recv(30))["epoch"] == 1


@pytest.mark.process
def test_narrowed_token_loses_its_consumer(running: tuple[RunningController, str], file: Path) -> None:
    """Its segments stay reserved for a return with a token that suffices."""
    controller, admin = running
    worker = add_token(file, "worker", "operate")
    with client(controller, CONSUMERS_PATH, additional_headers=_header(worker)) as one:
        one.register(1, "a")
        one.assigned_until([0])
        with socket_at(f"{controller.url}{PATH}/watch", additional_headers=_header(worker)) as watch:
            watch.recv(30)
            narrow(file, "worker", "operate", "read")
            assert end_of(one.connection) == (4401, CloseReason.REVOKED.value)
            # The lesser role opens this, so it stays open.
            controller.client.post(f"{PATH}/split/0", headers=_header(admin))
            assert json.loads(watch.recv(30))["epoch"] == 1
    with client(controller, CONSUMERS_PATH, additional_headers=_header(admin)) as again:
        again.register(1, "a")
        again.assigned_until([0])


def test_recreated_token_does_not_inherit_sessions(file: Path) -> None:
    token = add_token(file, "worker", "read")
    access = Access(file)
    caller = access.caller(f"Bearer {token}".encode())
    assert caller is not None
    assert access.opens(caller, READ_IT)
    remove_token(file, "worker")
    add_token(file, "worker", "admin")
    access.follow_file()
    assert not access.opens(caller, READ_IT)


@pytest.mark.parametrize(
    ("scope", "opens"),
    [("", True), ("acme", True), ("x acme/grants", True), ("acme/grant", False), ("acme/grants2 grants", False)],
)
def test_session_continues_while_token_covers_it(file: Path, scope: str, opens: bool) -> None:
    token = add_token(file, "worker", "read")
    access = Access(file)
    caller = access.caller(f"Bearer {token}".encode())
    assert caller is not None
    file.write_text(f"{file.read_text().rstrip()} {scope}\n")
    access.follow_file()
    assert access.opens(caller, READ_IT) == opens


def test_session_of_token_lost_on_entry_ends(file: Path) -> None:
    add_token(file, "other", "read")
    grants, ended = Grants(Access(file)), []
    with grants.held(Caller("gone", "read", b"0" * 64), READ_IT, lambda: ended.append(True)):
        assert ended == [True]


def test_without_tokens_nothing_is_ended() -> None:
    ended: list[bool] = []
    with Grants(Access()).held(Caller("anybody", "admin"), READ_IT, lambda: ended.append(True)):
        assert not ended
