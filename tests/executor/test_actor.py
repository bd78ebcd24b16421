"""What the answers of the admin client tell the executor; the client's own contract is in `tests/admin`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from anabranch.admin import answers as client
from anabranch.admin.answers import Answered
from anabranch.executor.autoscale.actor import AutoscaleActor, TopicGone, live_layout
from anabranch.executor.kernel.family import CallAccepted, CallRefused, NoAnswer
from anabranch.executor.replies import answer_to_call
from decisions.topic.layout import SegmentLayout
from tests.executor import orders
from tests.executor.conftest import House, topics_at
from tests.executor.gate import DRIBBLES, HANGS, HANGS_AFTER, ILLEGAL_ARGUMENT, LOST_AFTER, LOST_BEFORE, answers

TOPIC = "topic://acme/shop/orders"
NO_ANSWERS = [
    client.ServerFault(500, "Internal Server Error"),
    client.ServerFault(503, "not now"),
    client.ServerFault(429, "slowly"),
    client.ServerFault(302, "elsewhere"),
    client.Nonsense("no JSON"),
    client.Misdirected("http://x redirects to 'ftp://x', which is not followed"),
    client.NotConnected("GET http://x", "connection refused"),
    client.Lost("GET http://x", "ReadTimeout: ", may_be_done=True),
]


def call(actor, decision, live=None, may_send=lambda: True):
    """The call of a decision on the layout that it was decided on, or another one."""
    return actor.call(decision, live or TopicGone("not looked at"), may_send)


LOOK = orders.decision(SegmentLayout.create(2, 0), 0, topic=TOPIC)


@pytest.fixture
def actor(house: House) -> Iterator[AutoscaleActor]:
    """An actor that goes through the gate."""
    topics = topics_at(house.gate.url + "/", 30)
    yield AutoscaleActor(topics)
    topics.close()


@pytest.fixture
def hurried(house: House) -> Iterator[AutoscaleActor]:
    """One that waits half a second for an answer."""
    topics = topics_at(house.gate.url + "/", 0.5)
    yield AutoscaleActor(topics)
    topics.close()


def test_success_is_a_layout_or_accepted():
    layout = SegmentLayout.create(2, 0)
    assert live_layout(TOPIC, Answered(layout)) is layout
    assert answer_to_call(Answered(None)) == CallAccepted()


@pytest.mark.parametrize("fault", NO_ANSWERS, ids=str)
def test_server_or_network_fault_is_inconclusive(fault):
    for told in (live_layout(TOPIC, fault), answer_to_call(fault)):
        assert isinstance(told, NoAnswer)
        assert not told.denied
        assert told.reason


@pytest.mark.parametrize("status", [401, 403])
def test_credentials_that_do_not_do_are_denied(status):
    for told in (
        live_layout(TOPIC, client.Denied(status, "not you")),
        answer_to_call(client.Denied(status, "not you")),
    ):
        assert isinstance(told, NoAnswer)
        assert told.denied
        assert f"{status} not you" in told.reason


@pytest.mark.parametrize("from_interface", [True, False])
@pytest.mark.parametrize("status", [400, 404, 405, 409, 412, 500])
def test_only_interface_404_means_topic_missing(status, from_interface):
    refused = client.Refused(status, "not so", from_interface)
    assert answer_to_call(refused) == CallRefused(
        f"{status} not so", is_absence=status == 404, is_conflict=status == 409
    )
    told = live_layout(TOPIC, refused)
    assert isinstance(told, TopicGone if status == 404 and from_interface else NoAnswer)


def test_reasons_are_short():
    long = client.Refused(409, "a" * 1000, from_interface=True)
    assert len(answer_to_call(long).reason) == len(live_layout(TOPIC, long).reason) == 500
    assert len(live_layout(TOPIC, client.Nonsense("a" * 10_000)).reason) == 500


def test_decision_applied_by_call_with_its_id(house: House, actor: AutoscaleActor):
    topic = house.create("orders", 2)
    split = house.decide(topic, 0)
    assert call(actor, split) == CallAccepted()
    merge = house.decide(topic, 2, 3)
    assert call(actor, merge) == CallAccepted()
    calls = [(one.path.rpartition("orders/")[2], one.headers["x-anabranch-decision"]) for one in house.gate.requests]
    assert calls == [("split/0", split.decision_id), ("merge/2/3", merge.decision_id)]
    seen = actor.look(split)
    assert isinstance(seen, SegmentLayout)
    assert seen.epoch == 2


def test_controller_refusal_recorded_with_reason(house: House, actor: AutoscaleActor):
    split = house.decide(house.create("orders"), 0)
    assert call(actor, split) == CallAccepted()
    assert call(actor, split) == CallRefused("412 cannot split non-active segment: 0")


def test_a_topic_that_was_deleted_is_gone(house: House, actor: AutoscaleActor):
    topic = house.create("orders")
    split = house.decide(topic, 0)
    house.delete(topic)
    assert isinstance(actor.look(split), TopicGone)
    assert isinstance(call(actor, split), CallRefused)


def test_pulsar_500_for_wrong_argument_is_refusal(house: House, actor: AutoscaleActor):
    """Another 500 is no answer."""
    split = house.decide(house.create("orders"), 0)
    other = ILLEGAL_ARGUMENT.replace("java.lang.IllegalState", "java.lang.Runtime")
    house.gate.on("POST", answers(500, ILLEGAL_ARGUMENT), answers(500, other))
    assert call(actor, split) == CallRefused("500 Cannot split range of size 1")
    assert isinstance(call(actor, split), NoAnswer)


@pytest.mark.parametrize(
    "fault", [LOST_BEFORE, LOST_AFTER, HANGS, HANGS_AFTER, DRIBBLES, answers(502, "<html>"), answers(429)]
)
def test_unclear_answer_counts_as_none(house: House, hurried: AutoscaleActor, fault):
    topic = house.create("orders")
    split = house.decide(topic, 0)
    house.gate.on("GET", fault)
    house.gate.on("POST", fault)
    for told in (hurried.look(split), call(hurried, split)):
        if fault is DRIBBLES and isinstance(told, CallAccepted):
            continue
        assert isinstance(told, NoAnswer)
        assert not told.denied
        assert told.reason


def test_foreign_404_says_nothing_about_topic(house: House, actor: AutoscaleActor):
    house.gate.on("GET", answers(404, '{"message":"Not Found","url":"…","status":"404"}'), answers(404, "<html>"))
    assert isinstance(actor.look(LOOK), NoAnswer)
    assert isinstance(actor.look(LOOK), NoAnswer)


def test_unreachable_or_closed_client_has_no_answer():
    topics = topics_at("http://127.0.0.1:1", 0.5)
    actor = AutoscaleActor(topics)
    assert isinstance(actor.look(LOOK), NoAnswer)
    topics.close()
    assert isinstance(actor.look(LOOK), NoAnswer)


def test_call_for_changed_layout_has_no_effect(house: House, actor: AutoscaleActor):
    topic = house.create("orders", 2)
    first, second = house.decide(topic, 0), house.decide(topic, 1)
    seen = actor.look(first)
    assert call(actor, first, seen) == CallAccepted()
    told = call(actor, second, seen)
    assert isinstance(told, CallRefused)
    assert told.is_conflict
    assert "409" in told.reason
    assert "meant for the layout" in told.reason
    assert call(actor, second, actor.look(second)) == CallAccepted()


def test_call_for_other_incarnation_does_nothing(house: House, actor: AutoscaleActor):
    split = house.decide(house.create("orders", 2), 0)
    seen = actor.look(split)
    house.delete(split.subject)
    house.create("orders", 2)
    assert isinstance(call(actor, split, seen), CallRefused)
    assert actor.look(split).epoch == 0


def test_call_not_sent_after_lease_expiry(house: House, actor: AutoscaleActor):
    """The lease ran out while the connection was opened."""
    split = house.decide(house.create("orders", 2), 0)
    seen, before = actor.look(split), len(house.gate.requests)
    told = call(actor, split, seen, may_send=lambda: False)
    assert isinstance(told, NoAnswer)
    assert "nothing was sent" in told.reason
    assert len(house.gate.requests) == before
    assert actor.look(split).epoch == 0
