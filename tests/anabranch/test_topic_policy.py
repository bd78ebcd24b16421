"""`anabranch topics policy` at a real controller, and at one that stores another policy."""

from __future__ import annotations

import json

import pytest

from decisions.autoscale.policy import POLICY_FIELDS, Policy, policy_override
from tests.anabranch.conftest import run, stranger
from tests.controller.conftest import NOWHERE

CLOSED = f"http://{NOWHERE}"


@pytest.fixture(params=["topic", "namespace"])
def subject(request, topics, controller, namespace):
    """A topic, then a namespace, without a policy."""
    if request.param == "namespace":
        controller.node.namespaces.create(namespace)
        return namespace
    topics("create", f"{namespace}/orders")
    return f"topic://{namespace}/orders"


def policy(topics, subject):
    return json.loads(topics("policy", "get", subject, "--output", "json"))


def test_a_policy_is_set_changed_field_by_field_and_removed(topics, subject):
    assert topics("policy", "get", subject) == f"# {subject}: no policy of its own\n"
    topics("policy", "set", subject, "--max-segments", "9", "--split-cooldown-seconds", "2m")
    assert policy(topics, subject) == {"maxSegments": 9, "splitCooldownSeconds": 120}
    shown = topics("policy", "set", subject, '{"enabled": false, "splitCooldownSeconds": null}')
    assert shown == f"# {subject}\nenabled = false\nmaxSegments = 9\n"
    assert topics("policy", "get", subject) == shown
    topics("policy", "set", subject, "--replace", '{"minSegments": 2}')
    assert policy(topics, subject) == {"minSegments": 2}
    assert topics("policy", "remove", subject) == f"removed the policy of {subject}\n"
    assert policy(topics, subject) is None


def test_unsetting_the_last_field_removes_the_policy(topics, subject):
    topics("policy", "set", subject, "--max-segments", "9")
    topics("policy", "set", subject, '{"maxSegments": null}')
    assert policy(topics, subject) is None


def test_json_comes_from_standard_input_as_well(topics, subject):
    topics("policy", "set", subject, "-", stdin='{"mergeWindowSeconds": 60}\n')
    assert policy(topics, subject) == {"mergeWindowSeconds": 60}


def test_options_take_units_and_go_before_json(topics, subject):
    topics(
        "policy", "set", subject, '{"maxSegments": 5}', "--max-segments", "6", "--skip-unsplittable", "true",
        "--split-bytes-rate-in-threshold", "80MB", "--split-msg-rate-in-threshold", "20k",
    )  # fmt: skip
    assert policy(topics, subject) == {
        "maxSegments": 6, "splitMsgRateInThreshold": 20000.0, "splitBytesRateInThreshold": 80_000_000,
        "skipUnsplittable": True,
    }  # fmt: skip


def test_every_field_has_an_option(topics, namespace, controller):
    controller.node.namespaces.create(namespace)
    for wire, value in policy_override(Policy()).model_dump(by_alias=True).items():
        option = f"--{POLICY_FIELDS[wire].attribute.replace('_', '-')}"
        topics("policy", "set", namespace, option, str(value).lower())
        assert policy(topics, namespace)[wire] == value


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ((), "nothing to set"),
        (("{}",), "nothing to set"),
        (("{",), "no JSON"),
        (("[1]",), "must be a JSON object"),
        (('{"maxSegments": NaN}',), "no JSON"),
        (("[" * 100_000,), "no JSON"),
        (('{"maxSegmnts": 8}',), "unknown policy field: maxSegmnts"),
        (('{"\\u001b[2J": 8}',), "unknown policy field: \\x1b[2J"),
        (('{"maxSegments": "8"}',), "maxSegments: Input should be a valid integer"),
        (('{"maxSegments": 8.5}',), "maxSegments: Input should be a valid integer"),
        (('{"maxSegments": 99999999999}',), "maxSegments is larger than Pulsar can hold"),
        (("--min-segments", "0"), "minSegments must be at least 1"),
        (("--min-segments", "9", "--max-segments", "8"), "maxSegments (8) must not be less than minSegments (9)"),
        (("--split-cooldown-seconds", "soon"), "splitCooldownSeconds"),
        (("--split-cooldown-seconds", "-5"), "splitCooldownSeconds must not be negative"),
        (("--enabled", "perhaps"), "enabled: Input should be a valid boolean"),
        (("--max-segments", "8\nenabled = true"), "maxSegments"),
        (
            ("--split-msg-rate-in-threshold", "10", "--merge-msg-rate-in-threshold", "10"),
            "splitMsgRateInThreshold (10) must be greater than mergeMsgRateInThreshold (10)",
        ),
    ],
)
def test_a_policy_that_is_wrong_by_itself_exits_with_2_before_any_server_is_asked(wrong, said):
    done = run(CLOSED, "policy", "set", "acme/shop", *wrong)
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    assert said in done.stderr


def test_a_policy_that_only_the_wider_scopes_can_judge_is_sent_to_them(topics, namespace):
    topics("create", f"{namespace}/orders")
    assert "(412)" in topics.refused("policy", "set", f"{namespace}/orders", "--min-segments", "100")
    topics("policy", "set", namespace, "--max-segments", "200")
    topics("policy", "set", f"{namespace}/orders", "--min-segments", "100")
    assert policy(topics, f"{namespace}/orders") == {"minSegments": 100}


@pytest.mark.process
def test_a_server_that_keeps_another_policy_than_it_was_sent_is_told_on():
    with stranger((204, {}, b""), (204, {}, b""), (200, {}, b"{}")) as forgetful:
        done = run(forgetful.url, "policy", "set", "acme/shop", "--skip-unsplittable", "true")
    assert done.exit_code == 1
    assert "the server has kept another policy of acme/shop: {}" in done.stderr
    assert [method for method, _, _ in forgetful.asked] == ["GET", "POST", "GET"]
