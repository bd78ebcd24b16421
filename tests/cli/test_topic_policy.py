"""`anabranch topics policy` at a real controller, and at one that stores another policy."""

from __future__ import annotations

import json
import shlex

import pytest

from decisions.autoscale.policy import POLICY_FIELDS, Policy, policy_override
from tests.cli.conftest import run, run_any, stranger
from tests.controller.conftest import NOWHERE
from tests.docs.guides import blocks

CLOSED = f"http://{NOWHERE}"


@pytest.fixture
def subject(request, topics, controller, namespace):
    """A topic without a policy, or a namespace where a test asks for one."""
    if getattr(request, "param", "topic") == "namespace":
        controller.node.namespaces.create(namespace)
        return namespace
    topics("create", f"{namespace}/orders")
    return f"topic://{namespace}/orders"


def policy(topics, subject):
    return json.loads(topics("policy", "get", subject, "--output", "json"))


@pytest.mark.parametrize("subject", ["topic", "namespace"], indirect=True)
def test_policy_set_changed_and_removed(topics, subject):
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


@pytest.mark.parametrize("subject", ["topic", "namespace"], indirect=True)
def test_unsetting_the_last_field_removes_the_policy(topics, subject):
    topics("policy", "set", subject, "--max-segments", "9")
    topics("policy", "set", subject, '{"maxSegments": null}')
    assert policy(topics, subject) is None


def test_json_comes_from_standard_input_as_well(topics, subject):
    topics("policy", "set", subject, "-", stdin='{"mergeWindowSeconds": 60}\n')
    assert policy(topics, subject) == {"mergeWindowSeconds": 60}


def test_options_take_units_and_go_before_json(topics, subject):
    topics(
        "policy",
        "set",
        subject,
        '{"maxSegments": 5}',
        "--max-segments",
        "6",
        "--skip-unsplittable",
        "true",
        "--split-bytes-rate-in-threshold",
        "80MB",
        "--split-msg-rate-in-threshold",
        "20k",
    )
    assert policy(topics, subject) == {
        "maxSegments": 6,
        "splitMsgRateInThreshold": 20000.0,
        "splitBytesRateInThreshold": 80_000_000,
        "skipUnsplittable": True,
    }


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
def test_invalid_policy_exits_2_before_any_call(wrong, said):
    done = run(CLOSED, "policy", "set", "acme/shop", *wrong)
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    assert said in done.stderr


def test_policy_needing_wider_scopes_is_sent(topics, namespace):
    topics("create", f"{namespace}/orders")
    assert "(412)" in topics.refused("policy", "set", f"{namespace}/orders", "--min-segments", "100")
    topics("policy", "set", namespace, "--max-segments", "200")
    topics("policy", "set", f"{namespace}/orders", "--min-segments", "100")
    assert policy(topics, f"{namespace}/orders") == {"minSegments": 100}


@pytest.mark.process
def test_altered_stored_policy_is_reported():
    with stranger((204, {}, b""), (204, {}, b""), (200, {}, b"{}")) as forgetful:
        done = run(forgetful.url, "policy", "set", "acme/shop", "--skip-unsplittable", "true")
    assert done.exit_code == 1
    assert "the server has kept another policy of acme/shop: {}" in done.stderr
    assert [method for method, _, _ in forgetful.asked] == ["GET", "POST", "GET"]


def shown_policy(url, *arguments):
    done = run_any(url, "policy", "show", *arguments)
    assert done.exit_code == 0, done.output
    rows = (row.split(" = ") for row in done.stdout.splitlines() if " = " in row)
    return {wire: tuple(rest.split(None, 1)) for wire, rest in rows}, done


def test_policy_show_names_policy_and_origin(topics, controller, namespace):
    topic = f"topic://{namespace}/orders"
    topics("create", topic)
    topics("policy", "set", namespace, "--merge-window-seconds", "30", "--max-segments", "5")
    topics("policy", "set", topic, "--max-segments", "7")
    rows, done = shown_policy(controller.url, topic, "--explain")
    assert len(rows) == len(POLICY_FIELDS)
    assert rows["maxSegments"] == ("7", "# topic")
    assert rows["mergeWindowSeconds"] == ("30", "# namespace")
    assert rows["enabled"] == ("true", "# profile default")
    stats = controller.client.get(f"/admin/v2/scalable/{namespace}/orders/stats").json()["effectivePolicy"]
    assert (stats["policy"]["maxSegments"], stats["origins"]["maxSegments"], stats["broken"]) == (7, "topic", None)
    assert f"digest {stats['digest']}" in done.stdout
    as_json = json.loads(run_any(controller.url, "policy", "show", topic, "--output", "json").stdout)
    assert as_json == stats
    assert shown_policy(CLOSED, topic, "--offline")[0]["maxSegments"] == ("64",)
    for refused, code in (
        (run_any(controller.url, "policy", "show", f"{topic}2"), 1),
        (run_any(CLOSED, "policy", "show", topic), 3),
    ):
        assert (refused.exit_code, refused.stdout) == (code, "")


@pytest.mark.process
def test_policy_show_merges_pulsar_overrides():
    def answer(value, status=200):
        return status, {"Content-Type": "application/json"}, json.dumps(value).encode()

    overrides = [
        answer({"reason": "HTTP 404 Not Found"}, 404),
        answer({"maxSegments": 7}),
        answer({"maxSegments": 5, "minSegments": 2}),
    ]
    with stranger(*overrides) as pulsar:
        rows, done = shown_policy(pulsar.url, "topic://a/b/c", "--explain")
    assert (rows["maxSegments"], rows["minSegments"]) == (("7", "# topic"), ("2", "# namespace"))
    assert "does not resolve policies" in done.stderr


(PROFILES_GUIDE,) = (one for one in blocks("docs/profiles.md") if one.run_by == "tests/cli/test_topic_policy.py")


@pytest.mark.parametrize(
    "command",
    [
        # All shapes take 11 s of CPU; tests/simulation has each of them.
        pytest.param(one, marks=[pytest.mark.soak] * ("simulate" in one))
        for one in PROFILES_GUIDE.commands
    ],
)
def test_profiles_guide_runs_as_written(topics, controller, namespace, tmp_path, command):
    topics("create", f"{namespace}/orders")
    written = {"TOPIC": f"{namespace}/orders", "FILE": str(tmp_path / "mine.toml"), "--seeds 20": "--seeds 1"}
    (tmp_path / "mine.toml").write_text("maxSegments = 9\n")
    for example, value in written.items():
        command = command.replace(example, value)
    done = run_any(controller.url, *shlex.split(command, comments=True)[1:])
    assert (done.exit_code, bool(done.output)) == (0, True), done.output
