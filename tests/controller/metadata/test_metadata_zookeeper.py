"""What only ZooKeeper can do to a store: several clients, a server that goes away, a read that is out of date."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import takewhile

import pytest
from kazoo.security import OPEN_ACL_UNSAFE

from anabranch.controller.errors import StartError
from anabranch.controller.metadata.base import (
    ABSENT,
    Append,
    ChangeKind,
    Check,
    Delete,
    Put,
    SessionState,
    StoreUnavailable,
    VersionConflict,
)
from anabranch.controller.metadata.commit_plan import PlanStep
from anabranch.controller.metadata.commit_size import CommitTooLarge
from anabranch.controller.metadata.zookeeper import ZooKeeperStore, _Look
from anabranch.local.broker import free_ports
from tests.controller.places import end_zookeeper_session
from tests.harness.zookeeper import EmbeddedZooKeeper, four_letters
from tests.waiting import wait_until

pytestmark = pytest.mark.process


@pytest.fixture
def root(request: pytest.FixtureRequest) -> str:
    """A root of its own for each test."""
    return f"/zk-{request.node.name}"


@pytest.fixture
def stores(zookeeper: EmbeddedZooKeeper, root: str) -> Iterator[Callable[[], ZooKeeperStore]]:
    """Opens stores at the same root, and closes them."""
    opened: list[ZooKeeperStore] = []

    def open_one() -> ZooKeeperStore:
        opened.append(ZooKeeperStore(zookeeper.address, root, session_s=30))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


class Interrupted(ZooKeeperStore):
    """A store whose next commit is held up between its look and its multi: as a slow thread would."""

    meanwhile: Callable[[], object] | None = None

    def _send(self, steps: list[PlanStep], look: _Look, ephemeral: str | None = None) -> int | None:
        act, self.meanwhile = self.meanwhile, None
        if act:
            act()
        return super()._send(steps, look, ephemeral)


def test_second_client_sees_writes_and_versions(stores: Callable[[], ZooKeeperStore]) -> None:
    first, second = stores(), stores()
    seen: list[tuple[str, ChangeKind]] = []
    second.watch("/a", lambda path, kind: seen.append((path, kind)))
    version = first.put("/a/b", b"1")
    wait_until(lambda: ("/a/b", ChangeKind.CREATED) in seen)
    assert second.get("/a/b") == first.get("/a/b")
    assert second.put("/a/b", b"2", version) > version


@pytest.mark.parametrize("op", [Put, Delete, Check])
def test_node_recreated_before_multi_not_confused(
    zookeeper: EmbeddedZooKeeper, root: str, stores: Callable[[], ZooKeeperStore], op: type[Put | Delete | Check]
) -> None:
    other = stores()
    slow = Interrupted(zookeeper.address, root)
    try:
        old = other.put("/leader", b"one")

        def replace() -> None:
            # ZooKeeper's own data version is 0 both before and after.
            other.delete("/leader")
            other.create_ephemeral("/leader", b"two")

        slow.meanwhile = replace
        conditional = Put("/leader", b"", old) if op is Put else op("/leader", old)  # type: ignore[arg-type]
        with pytest.raises(VersionConflict):
            slow.commit(conditional, Put("/layout", b"of the old leader"))
        assert other.get("/layout") is None
    finally:
        slow.close()


def test_changes_between_read_and_multi_rechecked(
    zookeeper: EmbeddedZooKeeper, root: str, stores: Callable[[], ZooKeeperStore]
) -> None:
    other = stores()
    slow = Interrupted(zookeeper.address, root)
    try:
        slow.meanwhile = lambda: other.put("/up/other", b"")
        slow.put("/up/mine", b"", ABSENT)
        slow.meanwhile = lambda: other.delete("/up/other")
        with pytest.raises(VersionConflict):
            slow.delete("/up/other")
        slow.meanwhile = lambda: other.put("/here", b"")
        with pytest.raises(VersionConflict):
            slow.commit(Check("/here", ABSENT), Put("/x", b""))
        slow.meanwhile = lambda: other.create_ephemeral("/leader", b"two")
        assert slow.create_ephemeral("/leader", b"one") is None
        assert other.children("/") == ["here", "leader", "up"]
    finally:
        slow.close()


def test_no_server_at_the_start_is_told_in_time() -> None:
    (port,) = free_ports(1)
    with pytest.raises(StartError, match=str(port)):
        ZooKeeperStore(f"127.0.0.1:{port}", "/x", wait_s=0.5)


def test_calls_fail_soon_and_recover_with_server(
    zookeeper: EmbeddedZooKeeper, stores: Callable[[], ZooKeeperStore]
) -> None:
    store, states, seen = stores(), list[SessionState](), list[tuple[str, ChangeKind]]()
    held = store.create_ephemeral("/e", b"1")
    store.on_session(states.append)
    store.watch("/", lambda path, kind: seen.append((path, kind)))
    zookeeper.kill()
    wait_until(lambda: store.session is SessionState.SUSPENDED)
    started = time.monotonic()
    for act in (lambda: store.get("/e"), lambda: store.put("/e", b""), lambda: store.watch("/x", lambda *_: None)):
        with pytest.raises(StoreUnavailable):
            act()
    assert time.monotonic() - started < 5
    zookeeper.start()
    wait_until(lambda: store.session is SessionState.CONNECTED)
    wait_until(lambda: states == [SessionState.SUSPENDED, SessionState.CONNECTED])
    found = store.get("/e")
    assert found
    assert found.version == held
    store.put("/after", b"1")
    wait_until(lambda: ("/after", ChangeKind.CREATED) in seen)


def test_watch_survives_session_and_reports_changes(stores: Callable[[], ZooKeeperStore]) -> None:
    store, other = stores(), stores()
    other.put("/w/changes", b"1")
    other.put("/w/goes", b"1")
    seen: list[tuple[str, ChangeKind]] = []
    store.watch("/w", lambda path, kind: seen.append((path, kind)))
    states: list[SessionState] = []
    back = threading.Event()
    missed = False

    def write_once(state: SessionState) -> None:
        nonlocal missed
        states.append(state)
        if state is not SessionState.CONNECTED and not missed:
            missed = True
            other.commit(Put("/w/changes", b"2"), Delete("/w/goes"), Put("/w/comes", b"1"))
        if state is SessionState.CONNECTED:
            back.set()

    store.on_session(write_once)
    end_zookeeper_session(store)
    assert back.wait(10)
    assert SessionState.LOST in states
    expected = {("/w/changes", ChangeKind.CHANGED), ("/w/goes", ChangeKind.DELETED), ("/w/comes", ChangeKind.CREATED)}
    wait_until(lambda: expected <= set(seen))
    other.put("/w/after", b"1")
    wait_until(lambda: ("/w/after", ChangeKind.CREATED) in seen)


def test_user_nodes_closed_to_others(zookeeper: EmbeddedZooKeeper, root: str) -> None:
    owner = ZooKeeperStore(zookeeper.address, root, credentials="anabranch:s3cret")
    owner.commit(Put("/a/b", b"1"), Append("/queue", b"2"))
    again = ZooKeeperStore(zookeeper.address, root, credentials="anabranch:s3cret")
    assert again.get("/a/b") == owner.get("/a/b")
    for credentials in (None, "anabranch:wrong"):
        with pytest.raises(StartError, match="NoAuth"):
            ZooKeeperStore(zookeeper.address, root, credentials=credentials)
    for store in (owner, again):
        store.close()


def test_tree_older_than_login_is_warned_of(
    zookeeper: EmbeddedZooKeeper, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    for credentials, lines in ((None, 0), ("anabranch:s3cret", 1)):
        ZooKeeperStore(zookeeper.address, root, credentials=credentials).close()
        assert len([line for line in caplog.messages if "made without a log-in" in line]) == lines


def test_node_that_others_may_write_is_found(zookeeper: EmbeddedZooKeeper, root: str) -> None:
    owner = ZooKeeperStore(zookeeper.address, root, credentials="anabranch:s3cret")
    owner.commit(Put("/topics/acme/shop/orders/controller", b"http://one:8080"), Put("/nodes/one", b"{}"))
    again = ZooKeeperStore(zookeeper.address, root, credentials="anabranch:s3cret")
    assert again.open_node is None
    for path in ("/topics/acme/shop/orders", "/nodes"):
        before, _ = owner._client.get_acls(f"{root}/tree{path}")
        owner._client.set_acls(f"{root}/tree{path}", OPEN_ACL_UNSAFE)
        found = ZooKeeperStore(zookeeper.address, root, credentials="anabranch:s3cret")
        assert found.open_node == f"{root}/tree{path}"
        owner._client.set_acls(f"{root}/tree{path}", before)
        found.close()
    for store in (owner, again):
        store.close()


def watched_nodes(store: ZooKeeperStore) -> int:
    """How many nodes kazoo believes to be watched, and the store's own table has; and whether the server agrees."""
    client = store._client
    return len(client._data_watchers) + len(client._child_watchers) + len(store._server_watches._holders)


def watches_at_server(zookeeper: EmbeddedZooKeeper, store: ZooKeeperStore) -> int:
    """How many nodes the server watches for the session of the store; others' sessions come and go."""
    lines = four_letters(zookeeper.address, b"wchc").decode().splitlines()
    session = lines.index(f"0x{store._client.client_id[0]:x}")
    return len(list(takewhile(lambda line: line.startswith("\t"), lines[session + 1 :])))


def test_watches_of_idle_nodes_leave_nothing(
    zookeeper: EmbeddedZooKeeper, stores: Callable[[], ZooKeeperStore]
) -> None:
    store, other = stores(), stores()
    store.put("/quiet/below", b"1")
    store.watch("/kept", lambda *_: None)
    store.sync()
    before = watched_nodes(store), watches_at_server(zookeeper, store)
    for number in range(50):
        for path in ("/quiet", f"/unknown/{number}", f"/unknown/{number}/below"):
            store.watch(path, lambda *_: None).cancel()
    seen: list[str] = []
    first = store.watch("/quiet", lambda path, _: seen.append(path))
    second = store.watch("/quiet", lambda path, _: seen.append(path), below=False)
    other.put("/quiet/below/more", b"1")
    wait_until(lambda: seen)
    other.delete("/quiet/below/more")
    first.cancel()
    seen.clear()
    other.put("/quiet", b"2")
    wait_until(lambda: "/quiet" in seen)
    second.cancel()
    wait_until(lambda: (watched_nodes(store), watches_at_server(zookeeper, store)) == before)
    kept: list[str] = []
    store.watch("/kept", lambda path, _: kept.append(path))
    other.put("/kept", b"1")
    wait_until(lambda: kept)


def test_watch_after_removed_one_hears_everything(stores: Callable[[], ZooKeeperStore]) -> None:
    store, other = stores(), stores()
    store.put("/w", b"0")
    for number in range(100):
        seen: list[str] = []
        earlier = store.watch("/w", lambda *_: None)
        remove = threading.Thread(target=earlier.cancel)
        remove.start()
        watch = store.watch("/w", lambda path, _: seen.append(path))  # noqa: B023
        other.put("/w", str(number).encode())
        wait_until(lambda: seen, 5)  # noqa: B023
        remove.join()
        watch.cancel()


def test_large_removals_split_and_large_commit_safe(stores: Callable[[], ZooKeeperStore]) -> None:
    """A commit that is too large harms nothing."""
    store = stores()
    check = Check("/held", store.put("/held", b""))
    paths = [f"/long/{'n' * 9_000}{number}" for number in range(300)]
    store.commit_in_parts([check], [Put(path, b"1") for path in paths])
    changes = store.session_changes
    with pytest.raises(CommitTooLarge, match="ZooKeeper takes 900000 at once"):
        store.commit(*(Delete(path) for path in paths))
    with pytest.raises(CommitTooLarge):
        store.check_fits(*(Put(path, b"1") for path in paths))
    assert len(store.children("/long")) == 300
    store.commit_in_parts([check], [Delete(path) for path in paths])
    assert not store.children("/long")
    assert store.session_changes == changes, "the server has closed no connection"
    store.put("/held", b"2")
    with pytest.raises(VersionConflict):
        store.commit_in_parts([check], [Put("/more", b"")])
