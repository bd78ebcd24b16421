"""Registering and forgetting clusters: collisions, exactly one ACTIVE, nothing that is still named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decisions.bookkeeper.uris import BadUri, read_uri, share_metadata
from schemas.bookies import BookieSnapshot, ClusterEntry, DataLedger, Generators, TopicRecord
from tests.decisions.bookkeeper.world import (
    BEYOND,
    NEW,
    NOW,
    OLD,
    asked,
    before_switch,
    changed,
    in_switch,
    to_the_end,
    written,
)


def empty() -> BookieSnapshot:
    return BookieSnapshot(now=NOW)


def test_first_cluster_active_and_others_standby() -> None:
    first = asked(empty(), "register", name="old", metadata_service_uri=OLD.metadata_service_uri)
    assert [(one.name, one.status) for one in first.registry or ()] == [("old", "ACTIVE")]
    one = written(empty(), first)
    second = asked(one, "register", name="new", metadata_service_uri=NEW.metadata_service_uri)
    assert {one.name: one.status for one in second.registry or ()} == {"old": "ACTIVE", "new": "STANDBY"}
    again = asked(written(one, second), "register", name="new", metadata_service_uri=NEW.metadata_service_uri)
    assert (again.action, again.steps, again.code) == ("done", [], 200)


@pytest.mark.parametrize(
    ("request_", "gate", "code"),
    [
        ({"name": "x"}, "request", 400),
        ({"name": "x", "metadata_service_uri": "http://a/ledgers"}, "metadata-service-uri", 400),
        ({"name": "x", "metadata_service_uri": "zk://a:0/ledgers"}, "metadata-service-uri", 400),
        ({"name": "x", "metadata_service_uri": "zk://a:2181/ledgers"}, "uri-free", 400),
        ({"name": "x", "metadata_service_uri": "zk://A;c/ledgers/below"}, "uri-free", 400),
        ({"name": "switch-target", "metadata_service_uri": "zk://c/ledgers"}, "request", 400),
        ({"name": "bootstrap", "metadata_service_uri": "zk://c/ledgers"}, "request", 400),
        ({"name": "orchestrator", "metadata_service_uri": "zk://c/ledgers"}, "request", 400),
        ({"name": "new", "metadata_service_uri": "zk://c/ledgers"}, "uri-fixed", 409),
        ({"name": "old", "status": "STANDBY"}, "one-active", 409),
        ({"name": "new", "status": "ACTIVE"}, "one-active", 409),
    ],
)
def test_what_may_not_be_registered_is_refused(request_: dict[str, str], gate: str, code: int) -> None:
    answer = asked(before_switch(), "register", **request_)
    assert (answer.action, answer.gate, answer.code) == ("hold", gate, code)
    assert answer.reason
    assert answer.registry is None


@pytest.mark.parametrize(
    ("new", "gate"),
    [
        (Generators(instance="i-old"), "instance-id"),
        (Generators(instance="i-new"), None),
        (Generators(reachable=False, error="no ZooKeeper answers"), "instance-id"),
    ],
)
@pytest.mark.parametrize("recorded", [False, True])
def test_aliases_of_a_registered_cluster_are_refused(new: Generators, gate: str | None, recorded: bool) -> None:
    """By the instance id, as addresses do not tell: zk1 and zk2 may be members of one ensemble."""
    old = OLD.model_copy(update={"instance": "i-old" if recorded else None})
    generators = {"alias": new, "old": Generators(reachable=False) if recorded else Generators(instance="i-old")}
    world = changed(before_switch(clusters=[old]), generators=generators)
    answer = asked(world, "register", name="alias", metadata_service_uri="zk://zk2:2181/ledgers")
    assert (answer.gate, answer.registry is None) == (gate, gate is not None)
    if answer.registry:
        assert {one.name: one.instance for one in answer.registry}["alias"] == "i-new"


@pytest.mark.parametrize("operation", ["register", "switch", "cleanup"])
def test_loopback_names_are_one_address(operation: str) -> None:
    uris = {"old": "zk://127.0.0.1:2181/ledgers", "new": "zk+hierarchical://localhost:2181/ledgers"}
    done = to_the_end(in_switch())
    world = done if operation == "cleanup" else before_switch()
    entries = [one.model_copy(update={"metadata_service_uri": uris[one.name]}) for one in world.clusters]
    kept = entries[:1] if operation == "register" else entries
    request = {"name": "new", "metadata_service_uri": uris["new"], "target": "new", "dry_run": False, "force": True}
    answer = asked(changed(world, clusters=kept), operation, **request)
    assert (answer.action, answer.gate in ("instance-id", "uri-free")) == ("hold", True)


def test_unknown_identity_of_cluster_holds() -> None:
    generators = {"alias": Generators(instance="i-new"), "old": Generators(reachable=False, error="away")}
    world = changed(before_switch(clusters=[OLD]), generators=generators)
    answer = asked(world, "register", name="alias", metadata_service_uri="zk://zk2:2181/ledgers")
    assert (answer.gate, "instance id of old cannot be read" in (answer.reason or "")) == ("instance-id", True)


def test_other_root_of_ensemble_is_another_cluster() -> None:
    answer = asked(before_switch(), "register", name="colo", metadata_service_uri="zk://a:2181/second/ledgers")
    assert (answer.action, answer.code) == ("register", 200)


def test_registry_reconciled_by_switch_target() -> None:
    broken = changed(in_switch(), clusters=[OLD, NEW])
    answer = asked(broken, "register", name="new", status="ACTIVE")
    assert {one.name: one.status for one in answer.registry or ()} == {"old": "DEPRECATED", "new": "ACTIVE"}


@pytest.mark.parametrize(
    ("name", "gate", "code"), [("new", None, 200), ("old", "not-active", 409), ("gone", "registered", 404)]
)
def test_only_unneeded_cluster_forgotten(name: str, gate: str | None, code: int) -> None:
    answer = asked(before_switch(), "unregister", name=name)
    assert (answer.gate, answer.code) == (gate, code)


def test_deprecated_cluster_with_ledgers_kept() -> None:
    done = to_the_end(in_switch())
    assert asked(done, "unregister", name="old").code == 200
    topics = [TopicRecord(path="/managed-ledgers/t/n/persistent/t", ledgers=[DataLedger(id=7, stamp="old")])]
    answer = asked(changed(done, topics=topics), "unregister", name="old")
    assert (answer.gate, answer.code) == ("nothing-names-it", 409)


@pytest.mark.parametrize("listed", [True, False])
def test_emptied_cluster_removable_before_next_switch(listed: bool) -> None:
    world = to_the_end(in_switch())
    ledgers = {**world.ledgers, "old": []} if listed else {"new": world.ledgers["new"]}
    world = changed(world, ledgers=ledgers)
    assert asked(world, "status").phase == "DONE"
    world = written(world, asked(world, "unregister", name="old"))
    assert [one.name for one in world.clusters] == ["new"]
    assert (asked(world, "status").phase, asked(world, "status").action) == ("DONE", "done")
    assert asked(world, "check").violations == []
    third = asked(world, "register", name="third", metadata_service_uri="zk://c/ledgers")
    world = written(world, third)
    generators = {"new": Generators(long=BEYOND + 1), "third": Generators(long=2 * BEYOND)}
    answer = asked(changed(world, generators=generators), "switch", target="third")
    assert answer.directive is not None
    assert (answer.directive.source, answer.directive.epoch) == ("new", 2)


def test_cluster_of_running_switch_kept() -> None:
    assert asked(in_switch(), "unregister", name="old").gate == "no-switch-open"


HOSTS = st.lists(st.sampled_from(["a", "b", "c:2181", "C", "d:1"]), min_size=1, max_size=3, unique=True)
ROOTS = st.sampled_from(["", "/ledgers", "/ledgers/", "/x/ledgers", "/x", "/ledgersx"])


@given(HOSTS, ROOTS, HOSTS, ROOTS)
def test_collisions_symmetric_and_cover_nesting(one: list[str], root: str, other: list[str], second: str) -> None:
    """Clusters with shared members or nested roots collide."""
    first, then = read_uri(f"zk://{';'.join(one)}{root}"), read_uri(f"zk+hierarchical://{','.join(other)}{second}")
    assert share_metadata(first, then) == share_metadata(then, first)
    assert share_metadata(first, first)
    if not first.members & then.members:
        assert not share_metadata(first, then)
    if first.members & then.members and first.root == then.root:
        assert share_metadata(first, then)


@pytest.mark.parametrize(
    ("uri", "other", "shared"),
    [
        ("zk://h:2181/ledgers", "zk://h", True),
        ("zk://h/", "zk://h/ledgers", True),
        ("zk://h/a", "zk://h/b", False),
        ("zk://h:2181/a", "zk://h:2182/a", False),
        ("zk://[::1]/a", "zk://localhost/a", True),
        ("metadata-store:zk:h:2181/pulsar", "zk://h/pulsar/ledgers", True),
        ("metadata-store:zk://h/pulsar", "zk://h/pulsar/ledgers", True),
        ("metadata-store:ZK:h/pulsar", "zk://h/pulsar/ledgers", True),
        ("metadata-store:zk:h/pulsar", "zk://h/ledgers", False),
        ("metadata-store:zk:h", "zk://h/ledgers", True),
        ("metadata-store:rocksdb:///x", "metadata-store:rocksdb:///x", True),
        ("metadata-store:rocksdb:///x", "metadata-store:rocksdb:///y", False),
    ],
)
def test_shared_metadata_of_uri_forms(uri: str, other: str, shared: bool) -> None:
    assert share_metadata(read_uri(uri), read_uri(other)) is shared


@pytest.mark.parametrize("port", [1, 65_535])
def test_extreme_ports_are_read(port: int) -> None:
    assert read_uri(f"zk://h:{port}/ledgers").members == {f"h:{port}"}


@pytest.mark.parametrize("port", [0, 65_536])
def test_ports_out_of_range_are_refused(port: int) -> None:
    with pytest.raises(BadUri, match="no host and port"):
        read_uri(f"zk://h:{port}/ledgers")


@given(st.text(max_size=40) | st.from_regex(r"zk(\+hierarchical)?://[a-c:0-9,;]{0,12}/?[a-z/]{0,8}", fullmatch=True))
def test_any_text_is_a_uri_or_refused_with_words(text: str) -> None:
    found = fault = None
    try:
        found = read_uri(text)
    except BadUri as error:
        fault = str(error)
    assert (found is None) == (fault is not None)
    assert found is None or found.members
    assert fault is None or "zk+hierarchical://host:2181/ledgers" in fault


@given(st.lists(st.sampled_from(["ACTIVE", "STANDBY", "DEPRECATED", None]), min_size=1, max_size=6))
def test_any_registration_order_has_one_active(statuses: list[str | None]) -> None:
    world = empty()
    for number, status in enumerate(statuses):
        answer = asked(
            world, "register", name=f"c{number % 4}", metadata_service_uri=f"zk://h{number % 4}/ledgers", status=status
        )
        world = written(world, answer)
        entries: list[ClusterEntry] = world.clusters
        assert sum(one.status == "ACTIVE" for one in entries) == (1 if entries else 0)
