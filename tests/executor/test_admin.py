"""The admin client against a real controller, and against what only a gate in front of it can show."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.access.tokens import add_token
from decisions.topic.layout import SegmentLayout
from executor.admin import Accepted, AdminClient, NoAnswer, Refused, TopicGone
from tests.controller.conftest import run_controller
from tests.executor.conftest import House
from tests.executor.gate import DRIBBLES, HANGS, ILLEGAL_ARGUMENT, LOST_AFTER, LOST_BEFORE, answers, open_gate


@pytest.fixture
def client(house: House) -> Iterator[AdminClient]:
    """A client that goes through the gate."""
    one = AdminClient(house.gate.url + "/", None, 0.5)
    yield one
    one.close()


def test_a_layout_a_split_and_a_merge(house: House, client: AdminClient):
    topic = house.create("orders", 2)
    assert client.split_segment(topic, 0, "d1") == Accepted()
    assert client.merge_segments(topic, 3, 1, "d2") == Accepted()
    layout = client.layout(topic)
    assert isinstance(layout, SegmentLayout)
    assert [(segment.segment_id, segment.start) for segment in layout.active] == [(2, 0), (4, 0x4000)]


def test_what_the_controller_refuses_is_refused_with_its_reason(house: House, client: AdminClient):
    topic = house.create("orders", 4)
    assert client.split_segment(topic, 0, "d") == Accepted()
    for refused in (
        client.split_segment(topic, 0, "d"),
        client.split_segment(topic, 99, "d"),
        client.merge_segments(topic, 1, 3, "d"),
        client.merge_segments(topic, 1, 1, "d"),
        client.split_segment(f"topic://{house.namespace}/none", 0, "d"),
    ):
        assert isinstance(refused, Refused)
        assert refused.reason[:3] in ("404", "409", "412")
        assert len(refused.reason) > 10


def test_a_topic_that_does_not_exist_is_gone(house: House, client: AdminClient):
    assert isinstance(client.layout(f"topic://{house.namespace}/none"), TopicGone)


@pytest.mark.parametrize("name", ["plain", "a%20b", "ü+&=:,;", "..%2Fx", "~tilde!$'()*@"])
def test_a_topic_is_reached_by_the_name_that_the_list_shows(house: House, client: AdminClient, name: str):
    path = f"/admin/v2/scalable/{house.namespace}"
    assert house.controller.client.put(f"{path}/{name}").status_code == 204
    [listed] = house.controller.client.get(path).json()
    assert isinstance(client.layout(listed), SegmentLayout)


def test_a_name_of_dots_does_not_climb_in_the_path(house: House, client: AdminClient):
    client.split_segment("topic://acme/shop/..", 0, "d")
    client.split_segment("topic://acme/shop/../../x", 0, "d")
    assert [request.path for request in house.gate.requests] == [
        "/admin/v2/scalable/acme/shop/%2E%2E/split/0",
        "/admin/v2/scalable/acme/shop/%2E%2E/%2E%2E/x/split/0",
    ]


def test_pulsars_500_for_a_wrong_argument_is_a_refusal_in_one_line_and_another_500_is_no_answer(
    house: House, client: AdminClient
):
    topic = house.create("orders")
    other = ILLEGAL_ARGUMENT.replace("java.lang.IllegalState", "java.lang.Runtime")
    house.gate.on("POST", answers(500, ILLEGAL_ARGUMENT), answers(500, other))
    assert client.split_segment(topic, 0, "d") == Refused("500 Cannot split range of size 1")
    assert isinstance(client.split_segment(topic, 0, "d"), NoAnswer)


@pytest.mark.parametrize("fault", [LOST_BEFORE, LOST_AFTER, HANGS, DRIBBLES, answers(502, "<html>"), answers(429)])
def test_what_is_no_clear_answer_is_no_answer_for_a_look_and_for_a_call(house: House, client: AdminClient, fault):
    topic = house.create("orders")
    house.gate.on("GET", fault)
    house.gate.on("POST", fault)
    for answer in (client.layout(topic), client.split_segment(topic, 0, "d")):
        if fault is DRIBBLES and isinstance(answer, Accepted):
            continue
        assert isinstance(answer, NoAnswer)
        assert not answer.denied
        assert answer.reason


BAD_LAYOUTS = {
    "no JSON": "<html>",
    "another object": "{}",
    "a gap": '{"epoch":0,"nextSegmentId":1,"segments":{"0":'
    '{"segmentId":0,"hashRange":{"start":1,"end":65535},"state":"ACTIVE"}}}',
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("body", BAD_LAYOUTS.values(), ids=list(BAD_LAYOUTS))
def test_a_200_that_is_no_layout_is_no_answer(house: House, client: AdminClient, body: str):
    house.gate.on("GET", answers(200, body))
    assert isinstance(client.layout("topic://acme/shop/orders"), NoAnswer)


def test_a_404_that_is_not_the_admin_interfaces_says_nothing_about_the_topic(house: House, client: AdminClient):
    house.gate.on("GET", answers(404, '{"message":"Not Found","url":"…","status":"404"}'), answers(404, "<html>"))
    assert isinstance(client.layout("topic://acme/shop/orders"), NoAnswer)
    assert isinstance(client.layout("topic://acme/shop/orders"), NoAnswer)


def test_nobody_there_is_no_answer():
    client = AdminClient("http://127.0.0.1:1", None, 0.5)
    assert isinstance(client.layout("topic://acme/shop/orders"), NoAnswer)
    client.close()
    assert isinstance(client.layout("topic://acme/shop/orders"), NoAnswer)


def test_a_redirect_to_the_leader_on_another_port_is_followed_with_the_method_and_the_token(tmp_path: Path):
    with run_controller(tmp_path / "layouts.db", token="secret") as leader, open_gate(leader.url) as gate:
        headers = {"Authorization": "Bearer secret"}
        path = "/admin/v2/scalable/acme/shop/orders"
        assert leader.client.put(path, headers=headers).status_code == 204
        gate.on("POST", answers(307, location=f"{leader.url}{path}/split/0"))
        gate.on("GET", answers(307, location=f"{leader.url}{path}"))
        client = AdminClient(gate.url, "secret", 5)
        assert client.split_segment("topic://acme/shop/orders", 0, "d") == Accepted()
        layout = client.layout("topic://acme/shop/orders")
        client.close()
    assert isinstance(layout, SegmentLayout)
    assert layout.epoch == 1
    assert all(request.headers["authorization"] == "Bearer secret" for request in gate.requests)
    assert all(request.headers["x-pulsar-auth-method-name"] == "token" for request in gate.requests)


@pytest.mark.parametrize("target", ["", "ftp://127.0.0.1/x", "javascript:0", "//", "http://[::bad"])
def test_redirects_that_lead_nowhere_are_no_answer(house: House, client: AdminClient, target: str):
    house.gate.always("POST", answers(307, location=target))
    assert isinstance(client.split_segment("topic://acme/shop/orders", 0, "d"), NoAnswer)


def test_a_wrong_token_is_denied(tmp_path: Path):
    with run_controller(tmp_path / "layouts.db", token="secret") as controller:
        client = AdminClient(controller.url, "wrong", 5)
        look = client.layout("topic://acme/shop/orders")
        call = client.split_segment("topic://acme/shop/orders", 0, "d")
        client.close()
    assert isinstance(look, NoAnswer)
    assert isinstance(call, NoAnswer)
    assert look.denied
    assert call.denied


def test_the_role_operate_is_all_that_the_executor_needs(tmp_path: Path):
    token = add_token(tmp_path / "tokens", "executor", "operate")
    with run_controller(tmp_path / "layouts.db", tokens_file=tmp_path / "tokens") as controller:
        controller.service.create_topic("topic://acme/shop/orders", 2, {})
        client = AdminClient(controller.url, token, 5)
        assert client.merge_segments("topic://acme/shop/orders", 0, 1, "d") == Accepted()
        assert client.split_segment("topic://acme/shop/orders", 2, "e") == Accepted()
        layout = client.layout("topic://acme/shop/orders")
        client.close()
    assert isinstance(layout, SegmentLayout)
    assert layout.epoch == 2


def test_a_token_of_a_lesser_role_is_denied_and_the_reason_names_the_role(tmp_path: Path):
    token = add_token(tmp_path / "tokens", "reader", "read")
    with run_controller(tmp_path / "layouts.db", tokens_file=tmp_path / "tokens") as controller:
        client = AdminClient(controller.url, token, 5)
        call = client.split_segment("topic://acme/shop/orders", 0, "d")
        client.close()
    assert isinstance(call, NoAnswer)
    assert call.denied
    assert "this needs a token of role operate; the token reader has role read" in call.reason
