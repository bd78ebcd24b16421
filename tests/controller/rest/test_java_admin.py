"""Pulsar's own Java admin client against the controller: every call of `scalableTopics()`, its results and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import py4j.java_gateway
import py4j.protocol
import pytest

from anabranch.local.setup import ensure_jar_folder
from schemas.settings.root import load_settings
from tests.controller.conftest import RunningController, run_controller
from tests.controller.rest.java_admin import JavaAdmin, JavaAdminClient, JavaRefusal
from tests.examples import only_first

TOKEN = "s3cret"


@pytest.fixture(autouse=True)
def no_spark_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a Spark session was before in this process, py4j asks Spark's JVM about the exceptions of any other."""
    monkeypatch.setattr(py4j.java_gateway, "get_return_value", py4j.protocol.get_return_value)


@pytest.fixture(scope="module")
def java() -> Iterator[JavaAdmin]:
    """One JVM with the client for all tests."""
    one = JavaAdmin(ensure_jar_folder(load_settings(environment={}), "pulsar-admin", print))
    yield one
    one.stop()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningController]:
    with run_controller(tmp_path_factory.mktemp("guarded") / "layouts.db", token=TOKEN) as running:
        yield running


@pytest.fixture(scope="module", params=["open", "with a token"])
def place(request: pytest.FixtureRequest, java: JavaAdmin) -> Iterator[tuple[JavaAdminClient, RunningController]]:
    """A client and its controller: one that asks for nothing, and one that asks for a token."""
    controller: RunningController
    if request.param == "open":
        controller = request.getfixturevalue("controller")
        client = java.client(controller.url)
    else:
        controller = request.getfixturevalue("guarded")
        client = java.client(controller.url, TOKEN)
    yield client, controller
    client.close()


@pytest.fixture
def admin(place: tuple[JavaAdminClient, RunningController]) -> JavaAdminClient:
    return place[0]


@pytest.fixture
def space(place: tuple[JavaAdminClient, RunningController]) -> str:
    """A fresh `tenant/namespace` of the controller."""
    return place[1].new_namespace()


def conflict(reason: str) -> JavaRefusal:
    return JavaRefusal(409, "ConflictException", reason)


def missing(reason: str) -> JavaRefusal:
    return JavaRefusal(404, "NotFoundException", reason)


def precondition(reason: str) -> JavaRefusal:
    return JavaRefusal(412, "PreconditionFailedException", reason)


def active(layout: dict[str, Any]) -> dict[int, tuple[int, int]]:
    return {
        int(id): (segment["hashRange"]["start"], segment["hashRange"]["end"])
        for id, segment in layout["segments"].items()
        if segment["state"] == "ACTIVE"
    }


def test_topics_created_listed_and_found_by_property(admin: JavaAdminClient, space: str) -> None:
    one, two = f"topic://{space}/one", f"topic://{space}/two"
    odd = {"team": "a b&c=d/é", "owner": "me"}
    assert admin.topics("listScalableTopics", space) == []
    assert admin.topics("createScalableTopic", one, 2, odd) is None
    assert admin.topics("createScalableTopic", two, 1, {"owner": "me"}) is None
    assert admin.topics("createScalableTopic", f"topic://{space}/none", 1) is None
    assert admin.topics("createScalableTopic", f"topic://{space}/empty", 1, {}) is None
    assert admin.topics("createScalableTopic", one, 2) == conflict(f"Scalable topic already exists: {one}")
    for number in (0, -1):
        refused = admin.topics("createScalableTopic", f"topic://{space}/few", number)
        assert refused == precondition("numInitialSegments must be >= 1")
    names = [f"topic://{space}/{name}" for name in ("empty", "none", "one", "two")]
    assert admin.topics("listScalableTopics", space) == names
    by_properties = "listScalableTopicsByProperties"
    assert admin.topics(by_properties, space, {"owner": "me"}) == [one, two]
    assert admin.topics(by_properties, space, odd) == [one]
    assert admin.topics(by_properties, space, {"owner": "you"}) == []
    assert admin.topics(by_properties, space, {}) == names
    assert admin.topics(by_properties, space, {"owner": ""}) == precondition(
        "property filter must be in the form key=value, got: owner="
    )


def test_layout_and_counts_follow_splits_and_merges(admin: JavaAdminClient, space: str) -> None:
    topic = f"topic://{space}/t"
    admin.topics("createScalableTopic", topic, 2, {"owner": "me"})
    assert admin.topics("splitSegment", topic, 0) is None
    assert admin.topics("mergeSegments", topic, 3, 2) is None
    layout = admin.topics("getMetadata", topic)
    assert (layout["epoch"], layout["nextSegmentId"], layout["properties"]) == (2, 5, {"owner": "me"})
    assert active(layout) == {1: (32768, 65535), 4: (0, 32767)}
    assert layout["segments"]["4"]["parentIds"] == [3, 2]
    assert layout["segments"]["0"]["childIds"] == [2, 3]
    assert layout["segments"]["0"]["sealedAtEpoch"] == 1
    assert "autoScalePolicy" not in layout
    stats = admin.topics("getStats", topic)
    counts = {name: stats[name] for name in ("epoch", "totalSegments", "activeSegments", "sealedSegments")}
    assert counts == {"epoch": 2, "totalSegments": 5, "activeSegments": 2, "sealedSegments": 3}
    assert stats["segments"]["4"] == {"name": f"segment://{space}/t/0000-7fff-4", "state": "ACTIVE"}
    assert stats["segments"]["0"] == {"name": f"segment://{space}/t/0000-7fff-0", "state": "SEALED"}


def test_impossible_operations_have_own_exceptions(admin: JavaAdminClient, space: str) -> None:
    topic = f"topic://{space}/t"
    admin.topics("createScalableTopic", topic, 4)
    admin.topics("splitSegment", topic, 0)
    before = admin.topics("getMetadata", topic)
    assert admin.topics("splitSegment", topic, 0).kind == "PreconditionFailedException"
    assert admin.topics("splitSegment", topic, 99) == missing(f"Segment not found: 99 of {topic}")
    assert admin.topics("splitSegment", topic, -1) == missing(f"Segment not found: -1 of {topic}")
    assert admin.topics("splitSegment", topic, 2**63 - 1).kind == "NotFoundException"
    assert admin.topics("mergeSegments", topic, 1, 3).kind == "PreconditionFailedException"
    assert admin.topics("mergeSegments", topic, 1, 1).kind == "PreconditionFailedException"
    assert admin.topics("mergeSegments", topic, 0, 1).kind == "PreconditionFailedException"
    assert admin.topics("mergeSegments", topic, 1, 99) == missing(f"Segment not found: 99 of {topic}")
    assert admin.topics("getMetadata", topic) == before


def test_a_policy_of_a_topic_is_set_read_and_removed(java: JavaAdmin, admin: JavaAdminClient, space: str) -> None:
    topic = f"topic://{space}/t"
    admin.topics("createScalableTopic", topic, 1)
    assert admin.topics("getAutoScalePolicy", topic) is None
    fields = {
        "enabled": True,
        "maxSegments": 8,
        "splitMsgRateInThreshold": 5000.5,
        "splitCooldownSeconds": 30,
        "splitBytesRateInThreshold": 2**40,
    }
    assert admin.topics("setAutoScalePolicy", topic, java.policy(**fields)) is None
    assert admin.topics("getAutoScalePolicy", topic) == fields
    assert admin.topics("getMetadata", topic)["autoScalePolicy"] == fields
    refused = admin.topics("setAutoScalePolicy", topic, java.policy(minSegments=9, maxSegments=8))
    assert (refused.status, refused.kind) == (412, "PreconditionFailedException")
    assert "minSegments" in refused.reason
    assert admin.topics("getAutoScalePolicy", topic) == fields
    assert admin.topics("removeAutoScalePolicy", topic) is None
    assert admin.topics("getAutoScalePolicy", topic) is None
    admin.topics("setAutoScalePolicy", topic, java.policy(maxSegments=8))
    assert admin.topics("setAutoScalePolicy", topic, None) is None
    assert admin.topics("getAutoScalePolicy", topic) is None
    assert admin.topics("setAutoScalePolicy", topic, java.policy()) is None
    assert admin.topics("getAutoScalePolicy", topic) == {}


def test_namespace_policy_set_read_and_applied(java: JavaAdmin, admin: JavaAdminClient, space: str) -> None:
    topic = f"topic://{space}/t"
    unknown = missing(f"Namespace does not exist: {space}; create it, or a topic in it")
    assert admin.namespaces("getScalableTopicAutoScalePolicy", space) == unknown
    assert admin.namespaces("removeScalableTopicAutoScalePolicy", space) == unknown
    assert admin.namespaces("deleteNamespace", space) == unknown
    assert admin.namespaces("createNamespace", space) is None
    assert admin.namespaces("createNamespace", space) == conflict(f"Namespace already exists: {space}")
    assert space in admin.namespaces("getNamespaces", space.partition("/")[0])
    assert admin.namespaces("getScalableTopicAutoScalePolicy", space) is None
    assert admin.namespaces("deleteNamespace", space) is None
    admin.topics("createScalableTopic", topic, 1)
    assert admin.namespaces("getScalableTopicAutoScalePolicy", space) is None
    policy = java.policy(mergeMsgRateInThreshold=5000.0)
    assert admin.namespaces("setScalableTopicAutoScalePolicy", space, policy) is None
    assert admin.namespaces("getScalableTopicAutoScalePolicy", space) == {"mergeMsgRateInThreshold": 5000.0}
    below = java.policy(splitMsgRateInThreshold=2000.0)
    assert admin.topics("setAutoScalePolicy", topic, below).kind == "PreconditionFailedException"
    refused = admin.namespaces("setScalableTopicAutoScalePolicy", space, java.policy(minSegments=1_000_000))
    assert refused.kind == "PreconditionFailedException"
    assert admin.namespaces("removeScalableTopicAutoScalePolicy", space) is None
    assert admin.namespaces("getScalableTopicAutoScalePolicy", space) is None
    assert admin.topics("setAutoScalePolicy", topic, below) is None


def test_subscriptions_are_created_and_deleted(java: JavaAdmin, admin: JavaAdminClient, space: str) -> None:
    topic = f"topic://{space}/t"
    stream, queue = java.subscription_type("STREAM"), java.subscription_type("QUEUE")
    assert admin.topics("createSubscription", topic, "s", stream) == missing(f"Scalable topic not found: {topic}")
    admin.topics("createScalableTopic", topic, 1)
    for name, type in (("s", stream), ("s", stream), ("q", queue), ("odd name+ü&=", stream)):
        assert admin.topics("createSubscription", topic, name, type) is None
    assert admin.topics("createSubscription", topic, "s", queue) == conflict(
        "Subscription s exists with type STREAM, not QUEUE"
    )
    assert set(admin.topics("getStats", topic)["subscriptions"]) == {"s", "q", "odd name+ü&="}
    assert admin.topics("deleteSubscription", topic, "odd name+ü&=") is None
    assert admin.topics("deleteSubscription", topic, "s") is None
    assert admin.topics("deleteSubscription", topic, "s") == missing(f"Subscription not found: s on {topic}")
    assert admin.topics("getStats", topic)["subscriptions"] == {"q": {"consumerCount": 0}}


def test_failed_move_is_not_reported_as_moved(java: JavaAdmin, admin: JavaAdminClient, space: str) -> None:
    topic = f"topic://{space}/t"
    admin.topics("createScalableTopic", topic, 1)
    admin.topics("createSubscription", topic, "s", java.subscription_type("STREAM"))
    for call, *more in [("seekSubscription", 0), ("clearBacklog",)]:
        assert admin.topics(call, topic, "t", *more) == missing(f"Subscription not found: t on {topic}")
        assert "this controller keeps no messages" in admin.topics(call, topic, "s", *more).reason
        assert admin.topics(call, topic, "s", *more).kind == "ConflictException"
    assert admin.topics("seekSubscription", topic, "s", -1).kind == "PreconditionFailedException"


@pytest.mark.parametrize("force", [False, True])
def test_migration_never_happens(admin: JavaAdminClient, space: str, force: bool) -> None:
    topic = f"topic://{space}/t"
    refused = admin.topics("migrateToScalable", topic, force)
    assert (refused.status, refused.kind) == (404, "NotFoundException")
    assert refused.reason.startswith(f"no topic to migrate: {topic}; ")
    admin.topics("createScalableTopic", topic, 2)
    assert admin.topics("migrateToScalable", topic, force) == conflict(f"Topic is already scalable: {topic}")
    assert len(active(admin.topics("getMetadata", topic))) == 2


@pytest.mark.parametrize("force", [False, True])
def test_a_deleted_topic_is_gone_and_its_name_free(admin: JavaAdminClient, space: str, force: bool) -> None:
    topic = f"topic://{space}/t"
    admin.topics("createScalableTopic", topic, 1)
    admin.topics("splitSegment", topic, 0)
    assert admin.topics("deleteScalableTopic", topic, force) is None
    assert admin.topics("deleteScalableTopic", topic, force) == missing(f"Scalable topic not found: {topic}")
    assert admin.topics("listScalableTopics", space) == []
    assert admin.topics("createScalableTopic", topic, 1) is None
    assert admin.topics("splitSegment", topic, 0) is None


@pytest.mark.parametrize("place", ["open"], indirect=True)
@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("getMetadata", ()),
        ("getStats", ()),
        ("splitSegment", (0,)),
        ("mergeSegments", (0, 1)),
        ("getAutoScalePolicy", ()),
        ("setAutoScalePolicy", (None,)),
        ("removeAutoScalePolicy", ()),
        ("deleteSubscription", ("s",)),
        ("seekSubscription", ("s", 0)),
        ("clearBacklog", ("s",)),
        ("deleteScalableTopic", (False,)),
        ("deleteScalableTopic", (True,)),
    ],
)
def test_every_call_on_an_unknown_topic_is_not_found(
    admin: JavaAdminClient, space: str, call: str, arguments: tuple[Any, ...]
) -> None:
    topic = f"topic://{space}/nowhere"
    assert admin.topics(call, topic, *arguments) == missing(f"Scalable topic not found: {topic}")


@pytest.mark.parametrize("place", ["open"], indirect=True)
@pytest.mark.parametrize("name", ["odd name+ü&=", "50%", "a%2Fb", "emoji-🦦", "stats"])
def test_odd_name_reaches_topic_in_every_call(admin: JavaAdminClient, space: str, name: str) -> None:
    topic = f"topic://{space}/{name}"
    assert admin.topics("createScalableTopic", topic, 1) is None
    assert admin.topics("splitSegment", topic, 0) is None
    (listed,) = admin.topics("listScalableTopics", space)
    assert admin.topics("getMetadata", listed)["epoch"] == 1
    assert admin.topics("deleteScalableTopic", listed) is None


@pytest.mark.parametrize(
    ("on", "call", "arguments"),
    [
        ("segment://{}/t/0000-ffff-0", "createSegment", (["s"],)),
        ("segment://{}/t/0000-ffff-0", "terminateSegment", ()),
        ("segment://{}/t/0000-ffff-0", "deleteSegment", (True,)),
    ],
)
def test_missing_object_not_found_with_reason(
    admin: JavaAdminClient, space: str, on: str, call: str, arguments: tuple[Any, ...]
) -> None:
    admin.topics("createScalableTopic", f"topic://{space}/t", 1)
    refused = admin.topics(call, on.format(space), *arguments)
    assert (refused.status, refused.kind) == (404, "NotFoundException")
    assert refused.reason.startswith("Not Found: ")
    assert f"{space}/t/" in refused.reason
    assert admin.topics("getMetadata", f"topic://{space}/t")["epoch"] == 0


@pytest.mark.parametrize("place", only_first(1, ["with a token", "open"]), indirect=True)
def test_parallel_calls_are_all_answered(admin: JavaAdminClient, space: str) -> None:
    topics = [f"topic://{space}/t{number:02}" for number in range(40)]
    assert admin.topics_at_once("createScalableTopicAsync", [(topic, 2) for topic in topics]) == [None] * 40
    assert admin.topics_at_once("splitSegmentAsync", [(topic, 1) for topic in topics]) == [None] * 40
    assert admin.topics("listScalableTopics", space) == topics
    assert [layout["epoch"] for layout in admin.topics_at_once("getMetadataAsync", [(topic,) for topic in topics])] == [
        1
    ] * 40


@pytest.mark.parametrize("token", [None, "wrong"])
def test_wrong_token_is_not_authorized(java: JavaAdmin, guarded: RunningController, token: str | None) -> None:
    client = java.client(guarded.url, token)
    topic = f"topic://{guarded.new_namespace()}/t"
    reason = "this needs the header Authorization: Bearer <token>"
    assert client.topics("createScalableTopic", topic, 1) == JavaRefusal(401, "NotAuthorizedException", reason)
    assert client.topics("splitSegment", topic, 0) == JavaRefusal(401, "NotAuthorizedException", reason)
    client.close()
    assert guarded.service.list_topics(topic.removeprefix("topic://").removesuffix("/t")) == []
