"""Promises of `anabranch.controller.metadata.base`, kept by both stores: SQLite and a real ZooKeeper."""

from __future__ import annotations

import random
import threading

import pytest

from anabranch.controller.metadata.base import (
    ABSENT,
    Append,
    ChangeKind,
    Check,
    Delete,
    InvalidTreeChange,
    MetadataStore,
    Put,
    SessionLost,
    SessionState,
    Stored,
    VersionConflict,
)
from anabranch.controller.metadata.zookeeper import ZooKeeperStore
from tests.controller.places import Place
from tests.waiting import wait_until


@pytest.fixture
def store(place: Place) -> MetadataStore:
    """An empty store of either kind."""
    return place.open()


def node(store: MetadataStore, path: str) -> Stored:
    """The node, which must be there."""
    found = store.get(path)
    assert found, path
    return found


class Seen:
    """What a watch said so far."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, ChangeKind]] = []

    def __call__(self, path: str, kind: ChangeKind) -> None:
        self.calls.append((path, kind))

    def wait_for(self, *expected: tuple[str, ChangeKind]) -> None:
        wait_until(lambda: set(expected) <= set(self.calls))


def test_value_round_trips_and_absence_is_none(store: MetadataStore) -> None:
    assert store.get("/a") is None
    version = store.put("/a", b"\x00\xff")
    assert store.get("/a") == Stored(b"\x00\xff", version)
    store.put("/a", b"")
    assert node(store, "/a").value == b""
    store.delete("/a")
    assert store.get("/a") is None


def test_put_creates_parents_and_children_are_sorted(store: MetadataStore) -> None:
    for name in ("c", "a", "b", "B"):
        store.put(f"/top/mid/{name}", b"1")
    assert node(store, "/top/mid").value == b""
    assert store.children("/top/mid") == ["B", "a", "b", "c"]
    assert store.children("/") == ["top"]
    assert store.children("/none") == []


def test_write_versions_grow_and_are_never_reused(store: MetadataStore) -> None:
    versions = [store.put("/a", b"1"), store.put("/a", b"1")]
    store.delete("/a")
    versions += [store.put("/b", b"1"), store.put("/a", b"1")]
    assert versions == sorted(set(versions))
    assert versions[0] > 0


def test_versions_not_reused_after_reopening(place: Place) -> None:
    store = place.open()
    version = store.put("/a", b"1")
    store.delete("/a")
    store.close()
    assert place.open().put("/a", b"1") > version


def test_old_version_conflicts_after_recreation(store: MetadataStore) -> None:
    old = store.put("/a", b"1")
    store.delete("/a", old)
    new = store.put("/a", b"1")
    for op in (Put("/a", b"2", old), Delete("/a", old), Check("/a", old)):
        with pytest.raises(VersionConflict) as conflict:
            store.commit(op)
        assert conflict.value.path == "/a"
    assert store.get("/a") == Stored(b"1", new)


def test_absent_is_expected_and_checked_for(store: MetadataStore) -> None:
    store.commit(Check("/a", ABSENT), Put("/b", b"1", ABSENT))
    for op in (Put("/b", b"2", ABSENT), Check("/b", ABSENT), Put("/a", b"2", 7), Check("/a", 7), Delete("/a")):
        with pytest.raises(VersionConflict):
            store.commit(op)
    assert node(store, "/b").value == b"1"


def test_a_commit_is_done_whole_or_not_at_all(store: MetadataStore) -> None:
    a, gone = store.commit(Put("/a", b"1"), Put("/gone", b"1"))
    answer = store.commit(Check("/a", a), Put("/x/y", b"2"), Delete("/gone", gone))
    assert answer == [a, node(store, "/x/y").version, ABSENT]
    with pytest.raises(VersionConflict) as conflict:
        store.commit(Put("/x/y", b"3"), Put("/new/deep", b"3"), Delete("/a", a), Check("/gone", gone))
    assert conflict.value.path == "/gone"
    assert node(store, "/x/y").value == b"2"
    assert store.children("/") == ["a", "x"]


def test_duplicate_or_invalid_path_refused(store: MetadataStore) -> None:
    with pytest.raises(ValueError, match="twice"):
        store.commit(Put("/a", b"1"), Check("/a", 1))
    for path in ("", "a", "/", "/a/", "//a", "/a/../b", "/.", "/a\x00"):
        with pytest.raises(ValueError, match="not a path"):
            store.get(path)
        with pytest.raises(ValueError, match="not a path"):
            store.put(path, b"")
    assert store.children("/") == []


def test_parent_not_deletable_without_children(store: MetadataStore) -> None:
    store.put("/a/b", b"1")
    with pytest.raises(InvalidTreeChange) as refused:
        store.commit(Put("/c", b"1"), Delete("/a"))
    assert refused.value.path == "/a"
    assert store.get("/c") is None
    store.commit(Delete("/a/b"), Delete("/a"))
    assert store.children("/") == []


def test_concurrent_increments_all_kept(place: Place) -> None:
    stores = [place.open()]
    stores.append(place.open() if isinstance(stores[0], ZooKeeperStore) else stores[0])
    stores[0].put("/count", b"0")

    def increment(store: MetadataStore) -> None:
        for _ in range(20):
            while True:
                found = node(store, "/count")
                try:
                    store.put("/count", b"%d" % (int(found.value) + 1), found.version)
                    break
                except VersionConflict:
                    continue

    threads = [threading.Thread(target=increment, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(int(node(store, "/count").value) for store in stores) == 40


def test_ephemeral_held_once_and_can_be_requested(store: MetadataStore) -> None:
    version = store.create_ephemeral("/up/leader", b"one")
    assert version == node(store, "/up/leader").version
    assert store.create_ephemeral("/up/leader", b"one") == version
    assert store.create_ephemeral("/up/leader", b"two") is None
    store.put("/plain", b"one")
    assert store.create_ephemeral("/plain", b"one") is None


def test_ephemeral_has_no_children_and_stays_so(place: Place) -> None:
    store = place.open()
    store.create_ephemeral("/e", b"1")
    with pytest.raises(InvalidTreeChange, match=r"^/e/x: "):
        store.put("/e/x/y", b"1")
    with pytest.raises(InvalidTreeChange, match=r"^/e/x: "):
        store.create_ephemeral("/e/x", b"1")
    store.put("/e", b"2")
    store.close()
    assert place.open().get("/e") is None


def test_session_end_removes_ephemerals_only(place: Place) -> None:
    store = place.open()
    old = store.create_ephemeral("/e/leader", b"1")
    kept = store.put("/kept", b"1")
    states: list[SessionState] = []
    store.on_session(states.append)
    store = place.end_session(store)
    wait_until(lambda: SessionState.LOST in states)
    wait_until(lambda: store.session is SessionState.CONNECTED)
    assert store.get("/e/leader") is None
    assert node(store, "/kept").version == kept
    new = store.create_ephemeral("/e/leader", b"1")
    assert old
    assert new
    assert new > old


def test_closed_store_reports_lost_session(store: MetadataStore) -> None:
    states: list[SessionState] = []
    store.on_session(states.append)
    store.close()
    store.close()
    assert store.session is SessionState.LOST
    assert states == [SessionState.LOST]
    for act in (lambda: store.get("/a"), lambda: store.put("/a", b""), lambda: store.watch("/a", Seen())):
        with pytest.raises(SessionLost):
            act()


def test_watch_reports_changes_below_only(store: MetadataStore) -> None:
    store.put("/w/old", b"1")
    store.put("/wide", b"1")
    seen = Seen()
    store.watch("/w", seen)
    store.put("/w/new/deep", b"1")
    seen.wait_for(("/w/new", ChangeKind.CREATED), ("/w/new/deep", ChangeKind.CREATED), ("/w", ChangeKind.CHILDREN))
    store.put("/w/new/deep", b"2")
    store.put("/w", b"2")
    seen.wait_for(("/w/new/deep", ChangeKind.CHANGED), ("/w", ChangeKind.CHANGED))
    store.put("/wide", b"2")
    store.delete("/w/new/deep")
    store.delete("/w/old")
    seen.wait_for(("/w/new/deep", ChangeKind.DELETED), ("/w/new", ChangeKind.CHILDREN), ("/w/old", ChangeKind.DELETED))
    assert all(path == "/w" or path.startswith("/w/") for path, _ in seen.calls)


def test_watch_of_missing_node_reports_lifecycle(store: MetadataStore) -> None:
    seen = Seen()
    store.watch("/later/node", seen)
    for _ in range(2):
        seen.calls.clear()
        store.create_ephemeral("/later/node", b"1")
        seen.wait_for(("/later/node", ChangeKind.CREATED))
        store.delete("/later/node")
        seen.wait_for(("/later/node", ChangeKind.DELETED))


def test_a_watch_of_the_root_sees_everything(store: MetadataStore) -> None:
    seen = Seen()
    store.watch("/", seen)
    store.put("/a/b", b"1")
    seen.wait_for(("/a", ChangeKind.CREATED), ("/a/b", ChangeKind.CREATED), ("/", ChangeKind.CHILDREN))


def test_cancelled_or_failing_watch_harms_no_other(store: MetadataStore) -> None:
    def fail(path: str, kind: ChangeKind) -> None:
        raise RuntimeError(f"{path} {kind}")

    quiet, seen = Seen(), Seen()
    store.watch("/a", quiet).cancel()
    store.watch("/a", fail)
    store.watch("/a", seen)
    store.put("/a", b"1")
    seen.wait_for(("/a", ChangeKind.CREATED))
    store.put("/a", b"2")
    seen.wait_for(("/a", ChangeKind.CHANGED))
    assert quiet.calls == []


def test_rereading_observer_ends_with_the_truth(store: MetadataStore) -> None:
    mirror: dict[str, bytes] = {}

    def look_again(path: str, kind: ChangeKind) -> None:
        found = store.get(path) if path != "/" else None
        if found:
            mirror[path] = found.value
        else:
            mirror.pop(path, None)

    seen = Seen()
    store.watch("/", look_again)
    store.watch("/", seen)
    truth = _write_at_random(store, random.Random(7), 60)
    wait_until(lambda: mirror == truth)
    store.put("/end", b"")
    seen.wait_for(("/end", ChangeKind.CREATED))
    shuffled = seen.calls * 2
    random.Random(8).shuffle(shuffled)
    for path, kind in shuffled:
        look_again(path, kind)
    assert mirror == {**truth, "/end": b""}


def _write_at_random(store: MetadataStore, choice: random.Random, writes: int) -> dict[str, bytes]:
    truth: dict[str, bytes] = {}
    for number in range(writes):
        path = f"/{choice.choice('abcd')}"
        if path in truth and choice.random() < 0.4:
            store.delete(path)
            del truth[path]
        else:
            truth[path] = b"%d" % number
            store.put(path, truth[path])
    return truth


def test_callbacks_may_use_the_store(store: MetadataStore) -> None:
    def answer(path: str, kind: ChangeKind) -> None:
        if kind is ChangeKind.CREATED and path.startswith("/ask/"):
            store.put(path.replace("/ask/", "/answer/"), b"!")

    store.watch("/ask", answer)
    store.put("/ask/1", b"?")
    wait_until(lambda: store.get("/answer/1"))


def test_appended_names_follow_commit_order(place: Place) -> None:
    """An append commits with the rest or not at all."""
    store = place.open()
    for number in range(12):
        store.commit(Append("/queue/deep", b"%d" % number), Put(f"/with/{number}", b""))
    with pytest.raises(VersionConflict):
        store.commit(Append("/queue/deep", b"never"), Check("/with/0", ABSENT))
    store.delete(f"/queue/deep/{store.children('/queue/deep')[0]}")
    store.commit(Append("/queue/deep", b"12"))
    found = store.values("/queue/deep")
    assert [node.value for _, node in found] == [b"%d" % number for number in range(1, 13)]
    assert [node.version for _, node in found] == sorted(node.version for _, node in found)
    with pytest.raises(ValueError, match="twice"):
        store.commit(Append("/queue", b""), Append("/queue", b""))


def test_bulk_read_has_gaps_for_missing_nodes(place: Place) -> None:
    store = place.open()
    store.commit(*(Put(f"/many/{number}", b"%d" % number) for number in range(0, 1200, 2)))
    found = store.get_all([f"/many/{number}" for number in range(1200)])
    assert [node.value if node else None for node in found] == [
        b"%d" % number if number % 2 == 0 else None for number in range(1200)
    ]
    assert store.values("/nothing") == []


def test_node_watch_ignores_children(place: Place) -> None:
    store = place.open()
    store.put("/top", b"")
    seen: list[tuple[str, ChangeKind]] = []
    store.watch("/top", lambda path, kind: seen.append((path, kind)), below=False)
    store.put("/top/below/deep", b"1")
    store.put("/top/below", b"2")
    store.put("/top", b"3")
    wait_until(lambda: ("/top", ChangeKind.CHANGED) in seen)
    assert {path for path, _ in seen} == {"/top"}
    store.delete("/top/below/deep")
    store.delete("/top/below")
    store.delete("/top")
    wait_until(lambda: ("/top", ChangeKind.DELETED) in seen)
    store.put("/top", b"4")
    wait_until(lambda: ("/top", ChangeKind.CREATED) in seen)
