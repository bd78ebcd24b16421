"""Segment topics over REST on a real broker, also by Pulsar's client (PIP-468 "Segment Topic Management")."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from anabranch.controller.segments.kafka import KafkaSegments
from anabranch.controller.segments.kafka_names import kafka_topic
from anabranch.local.setup import ensure_jar_folder
from schemas.settings.root import load_settings
from tests.controller.conftest import LIFE, NOWHERE, RunningController, run_controller
from tests.controller.rest.java_admin import JavaAdmin
from tests.controller.segments.test_segments_kafka import write

pytestmark = pytest.mark.broker
NEW = "/admin/v2/segments/acme/segrest/t/8000-ffff-7"


@pytest.fixture(scope="module")
def segments(kafka_segments: KafkaSegments) -> KafkaSegments:
    return kafka_segments.of_incarnation(LIFE)


@pytest.fixture(scope="module")
def running(segments: KafkaSegments, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningController]:
    with run_controller(tmp_path_factory.mktemp("segrest") / "layouts.db", NOWHERE, segments=segments) as controller:
        assert controller.client.put("/admin/v2/scalable/acme/segrest/t").status_code == 204
        yield controller


def test_segment_created_terminated_and_deleted(
    running: RunningController, segments: KafkaSegments, kafka: str
) -> None:
    client, name = running.client, "segment://acme/segrest/t/8000-ffff-7"
    for _ in range(2):
        assert client.put(NEW, json=["a", "b/ü"]).status_code == 204
    assert segments.subscriptions(name) == ["a", "b/ü"]
    producer = Producer({"bootstrap.servers": kafka})
    for _ in range(3):
        producer.produce(kafka_topic(name, LIFE), b"x")
    producer.flush(20)
    assert client.get(f"{NEW}/subscription/b%2F%C3%BC/backlog").json() == 3
    for move, left in [("seek?timestamp=1", 3), ("skip-all", 0), ("seek?timestamp=0", 3)]:
        assert client.post(f"{NEW}/subscription/b%2F%C3%BC/{move}").status_code == 204
        assert client.get(f"{NEW}/subscription/b%2F%C3%BC/backlog").json() == left
        assert client.get(f"{NEW}/subscription/a/backlog").json() == 3
        assert client.post(f"{NEW}/subscription/none/{move}").status_code == 404
    assert client.put(f"{NEW}/subscription/c").status_code == 204
    assert client.get(f"{NEW}/subscription/c/backlog").text == "3"
    assert client.delete(f"{NEW}/subscription/c").status_code == 204
    assert client.get(f"{NEW}/subscription/c/backlog").status_code == 404
    for _ in range(2):
        assert client.post(f"{NEW}/terminate").status_code == 204
    assert segments.is_terminated(name)
    for _ in range(2):
        assert client.delete(NEW).status_code == 204
    for answer in (client.post(f"{NEW}/terminate"), client.get(f"{NEW}/subscription/a/backlog")):
        assert answer.status_code == 404
        assert name in answer.json()["reason"]


@pytest.mark.parametrize(("properties", "limit"), [({}, "0"), ({"transactions": "true"}, "78")])
def test_terminated_segment_of_transactions_takes_their_ends(
    running: RunningController, segments: KafkaSegments, properties: dict[str, str], limit: str
) -> None:
    topic = f"acme/segrest/t{len(properties)}"
    assert running.client.put(f"/admin/v2/scalable/{topic}", json=properties).status_code == 204
    assert running.client.post(f"/admin/v2/segments/{topic}/0000-ffff-0/terminate").status_code == 204
    settings = segments._kafka.settings(kafka_topic(f"segment://{topic}/0000-ffff-0", LIFE))
    assert settings["max.message.bytes"] == limit


def test_active_segment_deleted_by_force_only(running: RunningController, segments: KafkaSegments) -> None:
    """It comes back empty."""
    path, name = "/admin/v2/segments/acme/segrest/t/0000-ffff-0", "segment://acme/segrest/t/0000-ffff-0"
    refused = running.client.delete(path)
    assert (refused.status_code, "force=true" in refused.json()["reason"]) == (412, True)
    assert segments.subscriptions(name) == []
    assert running.client.delete(f"{path}?force=true").status_code == 204
    assert running.client.put(path).status_code == 204
    assert running.client.post("/admin/v2/scalable/acme/segrest/t/split/0").status_code == 204
    assert segments.is_terminated(name)


@pytest.mark.parametrize(
    ("verb", "path", "body", "status"),
    [
        ("PUT", "/admin/v2/segments/acme/segrest/none/0000-ffff-0", None, 404),
        ("PUT", "/admin/v2/segments/acme/segrest/t/ffff-0000-0", None, 412),
        ("PUT", "/admin/v2/segments/acme/segrest/t/0-ffff-0", None, 412),
        ("PUT", NEW, '{"a": 1}', 400),
        ("PUT", NEW, "[1]", 400),
        ("PUT", NEW, "[", 400),
        ("PUT", NEW, '[""]', 412),
        ("PUT", NEW, str(["s"] * 1001).replace("'", '"'), 412),
        ("POST", f"{NEW}/terminate", None, 404),
        ("PUT", f"{NEW}/subscription/s", None, 404),
        ("GET", f"{NEW}/subscription/s/backlog", None, 404),
        ("POST", f"{NEW}/subscription/s/seek?timestamp=0", None, 404),
        ("POST", f"{NEW}/subscription/s/seek", None, 412),
        ("POST", f"{NEW}/subscription/s/skip-all", None, 404),
    ],
)
def test_impossible_segment_call_is_4xx(
    running: RunningController, segments: KafkaSegments, verb: str, path: str, body: str | None, status: int
) -> None:
    answer = running.client.request(verb, path, content=body)
    assert (answer.status_code, list(answer.json())) == (status, ["reason"])
    assert running.client.post(f"{NEW}/terminate").status_code == 404


@pytest.fixture(scope="module")
def java() -> Iterator[JavaAdmin]:
    one = JavaAdmin(ensure_jar_folder(load_settings(environment={}), "pulsar-admin", print))
    yield one
    one.stop()


def test_pulsar_client_moves_a_subscription(
    running: RunningController, segments: KafkaSegments, java: JavaAdmin, kafka: str
) -> None:
    client, topic = java.client(running.url), "topic://acme/segrest/moved"
    assert client.topics("createScalableTopic", topic, 1) is None
    assert client.topics("createSubscription", topic, "s", java.subscription_type("STREAM")) is None
    parent = "segment://acme/segrest/moved/0000-ffff-0"
    write(kafka, parent, [b"a", b"b", b"c"], [1_000, 2_000, 3_000], LIFE)
    assert client.topics("splitSegment", topic, 0) is None
    assert client.topics("seekSubscription", topic, "s", 2_000) is None
    assert segments.backlog(parent, "s") == 2
    assert client.topics("clearBacklog", topic, "s") is None
    assert segments.backlog(parent, "s") == 0
    assert client.topics("seekSubscription", topic, "s", 0) is None
    assert segments.backlog(parent, "s") == 3
    assert client.topics("seekSubscription", topic, "s", -1).kind == "PreconditionFailedException"
    client.close()


def test_pulsar_client_manages_a_segment(
    running: RunningController, segments: KafkaSegments, java: JavaAdmin, kafka: str
) -> None:
    client, name = java.client(running.url), "segment://acme/segrest/t/0000-7fff-9"
    assert client.topics("createSegment", name, ["s"]) is None
    assert segments.subscriptions(name) == ["s"]
    write(kafka, name, [b"a", b"b"], life=LIFE)
    assert client.topics("terminateSegment", name) is None
    assert segments.is_terminated(name)
    for call, left in [
        (("clearSegmentSubscriptionBacklogAsync", "s"), 0),
        (("seekSegmentSubscriptionAsync", "s", 0), 2),
    ]:
        assert client.topics_at_once(call[0], [(name, *call[1:])]) == [None]
        assert client.topics_at_once("getSegmentSubscriptionBacklogAsync", [(name, "s")]) == [left]
    assert client.topics("deleteSegment", name, True) is None
    assert client.topics("terminateSegment", name).status == 404
    client.close()
