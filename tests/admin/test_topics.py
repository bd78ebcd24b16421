"""The typed calls against a real controller, and against what only a gate in front of it can show."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.admin.answers import Answered, Denied, Lost, Misdirected, Nonsense, NotConnected, Refused, ServerFault
from anabranch.admin.topics import ScalableTopics
from anabranch.auth.tokens import add_token
from decisions.topic.layout import SegmentLayout
from schemas.metadata import AutoScalePolicyOverride
from tests.admin.conftest import Front, transport
from tests.controller.conftest import run_controller
from tests.executor.gate import DRIBBLES, HANGS, LOST_AFTER, LOST_BEFORE, answers, open_gate

pytestmark = pytest.mark.process

ORDERS = "topic://acme/shop/orders"


def layout_of(topics: ScalableTopics, topic: str) -> SegmentLayout:
    found = topics.layout(topic)
    assert isinstance(found, Answered)
    return found.value


def test_a_topic_is_created_split_merged_and_deleted(front: Front) -> None:
    topic = f"topic://{front.namespace}/orders"
    assert front.topics.create_topic(topic, 2, {"team": "blue"}) == Answered(None)
    assert front.topics.split_segment(topic, 0, "d1") == Answered(None)
    assert front.topics.merge_segments(topic, 3, 1, "d2") == Answered(None)
    active = [(segment.segment_id, segment.start) for segment in layout_of(front.topics, topic).active]
    assert active == [(2, 0), (4, 0x4000)]
    assert front.topics.list_topics(front.namespace, ["team=blue"]) == Answered([topic])
    assert front.topics.list_topics(front.namespace, ["team=red"]) == Answered([])
    record, stats = front.topics.layout_record(topic), front.topics.stats(topic)
    assert isinstance(record, Answered)
    assert isinstance(stats, Answered)
    assert record.value["epoch"] == stats.value["epoch"] == 2
    assert front.topics.delete_topic(topic) == Answered(None)


def test_a_call_names_its_decision_when_it_has_one(front: Front) -> None:
    topic = front.create("orders", 2)
    front.topics.split_segment(topic, 0, "d1")
    front.topics.split_segment(topic, 1)
    assert [request.headers.get("x-anabranch-decision") for request in front.gate.requests] == ["d1", None]


def test_policies_are_set_read_and_removed(front: Front) -> None:
    topics = front.topics
    for subject in (front.create("orders"), front.namespace):
        assert topics.policy(subject) == Answered(None)
        assert topics.set_policy(subject, AutoScalePolicyOverride(max_segments=9)) == Answered(None)
        assert topics.policy(subject) == Answered({"maxSegments": 9})
        assert topics.remove_policy(subject) == Answered(None)
        assert topics.policy(subject) == Answered(None)


def test_consumers_and_subscriptions_by_name(front: Front) -> None:
    topics, topic = front.topics, front.create("orders")
    assert topics.register_consumer(topic, "a/b 50%", "c%2F1", "STREAM") == Answered(None)
    assert front.controller.service.stats(topic)["subscriptions"]["a/b 50%"]["consumerCount"] == 1
    assert topics.unregister_consumer(topic, "a/b 50%", "c%2F1") == Answered(None)
    for refused in (topics.seek_subscription(topic, "a/b 50%", 0), topics.clear_backlog(topic, "a/b 50%")):
        # Found, and not moved: this controller keeps no messages.
        assert isinstance(refused, Refused)
        assert refused.status == 409


def test_controller_refusal_carries_reason(front: Front) -> None:
    topic = front.create("orders", 4)
    assert front.topics.split_segment(topic, 0, "d") == Answered(None)
    for refused in (
        front.topics.split_segment(topic, 0, "d"),
        front.topics.split_segment(topic, 99, "d"),
        front.topics.merge_segments(topic, 1, 3, "d"),
        front.topics.merge_segments(topic, 1, 1, "d"),
        front.topics.split_segment(f"topic://{front.namespace}/none", 0, "d"),
    ):
        assert isinstance(refused, Refused)
        assert refused.status in (404, 409, 412)
        assert refused.from_interface
        assert len(refused.reason) > 10


def test_missing_topic_refused_by_interface(front: Front) -> None:
    found = front.topics.layout(f"topic://{front.namespace}/none")
    reason = f"Scalable topic not found: topic://{front.namespace}/none"
    assert found == Refused(404, reason, from_interface=True, phrase="Not Found")


@pytest.mark.parametrize("name", ["plain", "a%20b", "ü+&=:,;", "..%2Fx", "~tilde!$'()*@"])
def test_topic_found_by_listed_name(front: Front, name: str) -> None:
    path = f"/admin/v2/scalable/{front.namespace}"
    assert front.controller.client.put(f"{path}/{name}").status_code == 204
    [listed] = front.controller.client.get(path).json()
    layout_of(front.topics, listed)


def test_a_name_of_dots_does_not_climb_in_the_path(front: Front) -> None:
    front.topics.split_segment("topic://acme/shop/..", 0, "d")
    front.topics.split_segment("topic://acme/shop/../../x", 0, "d")
    assert [request.path for request in front.gate.requests] == [
        "/admin/v2/scalable/acme/shop/%2E%2E/split/0",
        "/admin/v2/scalable/acme/shop/..%2F..%2Fx/split/0",
    ]


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (LOST_BEFORE, Lost),
        (LOST_AFTER, Lost),
        (HANGS, Lost),
        (DRIBBLES, Lost),
        (answers(502, "<html>"), ServerFault),
        (answers(429), ServerFault),
        (answers(302, location="/"), ServerFault),
    ],
)
def test_unclear_answer_blames_server_or_network(front: Front, fault, expected) -> None:
    topic, topics = front.create("orders"), ScalableTopics(transport(front.gate.url, timeout_seconds=2))
    front.gate.on("GET", fault)
    front.gate.on("POST", fault)
    looked, called = topics.layout(topic), topics.split_segment(topic, 0, "d")
    topics.close()
    assert isinstance(looked, expected)
    # A success has no body, so there is nothing to be late.
    assert isinstance(called, Answered if fault is DRIBBLES and called == Answered(None) else expected)
    if expected is Lost and isinstance(called, Lost):
        assert (looked.may_be_done, called.may_be_done) == (False, True)


BAD_LAYOUTS = {
    "no JSON": "<html>",
    "another object": "{}",
    "a gap": '{"epoch":0,"nextSegmentId":1,"segments":{"0":'
    '{"segmentId":0,"hashRange":{"start":1,"end":65535},"state":"ACTIVE"}}}',
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("body", BAD_LAYOUTS.values(), ids=list(BAD_LAYOUTS))
def test_a_success_that_is_no_layout_is_nonsense(front: Front, body: str) -> None:
    front.gate.on("GET", answers(200, body))
    assert isinstance(front.topics.layout(ORDERS), Nonsense)


@pytest.mark.parametrize("body", ["<html>", '{"a": 1}', "[1]", "[" * 100_000])
def test_malformed_success_is_an_error(front: Front, body: str) -> None:
    front.gate.on("GET", answers(200, body), answers(200, "[]"))
    assert isinstance(front.topics.list_topics("acme/shop"), Nonsense)
    assert front.topics.policy(ORDERS) == Nonsense("a policy was expected")


def test_foreign_404_is_not_from_the_interface(front: Front) -> None:
    front.gate.on("GET", answers(404, '{"message":"Not Found","url":"…","status":"404"}'), answers(404, "<html>"))
    for _ in range(2):
        found = front.topics.layout(ORDERS)
        assert isinstance(found, Refused)
        assert not found.from_interface


def test_unreachable_or_closed_client_not_connected() -> None:
    topics = ScalableTopics(transport("http://127.0.0.1:1"))
    assert isinstance(topics.layout(ORDERS), NotConnected)
    topics.close()
    assert isinstance(topics.layout(ORDERS), NotConnected)


def test_redirect_to_leader_keeps_method_body_token(tmp_path: Path) -> None:
    with run_controller(tmp_path / "layouts.db", token="secret") as leader, open_gate(leader.url) as gate:
        topics = ScalableTopics(transport(leader.url, "secret", 5))
        assert topics.create_topic(ORDERS, 1, {}) == Answered(None)
        path = "/admin/v2/scalable/acme/shop/orders"
        gate.on("POST", answers(307, location=f"{leader.url}{path}/split/0"))
        gate.on("POST", answers(308, location=f"{leader.url}{path}/autoScalePolicy"))
        gate.on("GET", answers(307, location=f"{leader.url}{path}"))
        moved = ScalableTopics(transport(gate.url, "secret", 5))
        assert moved.split_segment(ORDERS, 0, "d") == Answered(None)
        assert moved.set_policy(ORDERS, AutoScalePolicyOverride(max_segments=9)) == Answered(None)
        assert layout_of(moved, ORDERS).epoch == 1
        assert topics.policy(ORDERS) == Answered({"maxSegments": 9})
    assert all(request.headers["authorization"] == "Bearer secret" for request in gate.requests)
    assert all(request.headers["x-pulsar-auth-method-name"] == "token" for request in gate.requests)


@pytest.mark.parametrize("target", ["", "ftp://127.0.0.1/x", "javascript:0", "//", "http://[::bad"])
def test_redirects_that_lead_nowhere_are_misdirected(front: Front, target: str) -> None:
    front.gate.always("POST", answers(307, location=target))
    assert isinstance(front.topics.split_segment(ORDERS, 0, "d"), Misdirected)


def test_a_wrong_token_is_denied(tmp_path: Path) -> None:
    with run_controller(tmp_path / "layouts.db", token="secret") as controller:
        topics = ScalableTopics(transport(controller.url, "wrong", 5))
        looked, called = topics.layout(ORDERS), topics.split_segment(ORDERS, 0, "d")
    assert isinstance(looked, Denied)
    assert isinstance(called, Denied)
    assert looked.status == called.status == 401


def test_operate_role_suffices_for_executor(tmp_path: Path) -> None:
    token = add_token(tmp_path / "tokens", "executor", "operate")
    with run_controller(tmp_path / "layouts.db", tokens_file=tmp_path / "tokens") as controller:
        controller.service.create_topic(ORDERS, 2, {})
        topics = ScalableTopics(transport(controller.url, token, 5))
        assert topics.merge_segments(ORDERS, 0, 1, "d") == Answered(None)
        assert topics.split_segment(ORDERS, 2, "e") == Answered(None)
        assert layout_of(topics, ORDERS).epoch == 2


def test_lesser_role_denied_by_name(tmp_path: Path) -> None:
    token = add_token(tmp_path / "tokens", "reader", "read")
    with run_controller(tmp_path / "layouts.db", tokens_file=tmp_path / "tokens") as controller:
        called = ScalableTopics(transport(controller.url, token, 5)).split_segment(ORDERS, 0, "d")
    assert called == Denied(403, "this needs a token of role operate; the token reader has role read", "Forbidden")
