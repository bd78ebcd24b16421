"""`anabranch topics` at a real controller: what it does, prints and refuses."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from anabranch.cli.main import cli
from anabranch.local.supervisor import lock_folder
from decisions.topic.layout import SegmentLayout
from schemas.settings.root import SettingsError
from tests.cli.conftest import run
from tests.controller.conftest import NOWHERE, run_controller
from tests.engine.records import layout, tick
from tests.engine.test_replay import RecordedBucket
from tests.history.test_explain import written

OPERATIONS = Path(__file__).resolve().parents[2] / "docs/operations.md"
CLOSED = f"http://{NOWHERE}"
HOSTILE = [
    "..",
    ".",
    "../../../healthz",
    "a/b",
    "a?force=true",
    "a#b",
    "a b",
    "a%2Fb",
    "100%",
    "a%zz",
    "a\\b",
    "a\nb",
    "\x1b[2Jcleared",
    "[bold]markup[/]",
    "ñandú-日本-🦤",
    "a&b=c;d",
    "{a}",
    "'\"`$(id)",
    "\u202egnp",
    "x" * 900,
]


@pytest.fixture
def topic(namespace, topics):
    """A topic with two segments."""
    name = f"topic://{namespace}/orders"
    topics("create", name, "--segments", "2")
    return name


def segments(topics, topic):
    """The active segments of a topic: id to `start-end`."""
    record = json.loads(topics("show", topic, "--output", "json"))
    return {
        segment["segmentId"]: (segment["hashRange"]["start"], segment["hashRange"]["end"])
        for segment in record["segments"].values()
        if segment["state"] == "ACTIVE"
    }


def test_a_topic_is_created_split_merged_and_deleted(topics, namespace):
    name = f"topic://{namespace}/orders"
    assert topics("create", name, "--segments", "2", "--property", "team=blue") == f"created {name} with 2 segments\n"
    assert topics("split", name, "0") == f"split segment 0 of {name}\n"
    assert topics("merge", name, "3", "1") == f"merged segments 3 and 1 of {name}\n"
    assert segments(topics, name) == {2: (0, 0x3FFF), 4: (0x4000, 0xFFFF)}
    assert topics("delete", name, "--yes", "--force") == f"deleted {name}\n"
    assert topics.refused("show", name) == f"Error: Scalable topic not found: {name} (404)"


@pytest.mark.process
def test_topic_on_record_is_known_by_its_end(topics, namespace, controller, tmp_path):
    now, name, other = 1_795_000_000_000, f"topic://{namespace}/orders", f"topic://{namespace}/prices"
    bucket = RecordedBucket()
    bucket.batch(now, *(layout(SegmentLayout.create(1, now), topic=each) for each in (name, other)), tick(now))
    settings, empty = tmp_path / "known.toml", tmp_path / "empty.toml"
    settings.write_text(f'[lake]\npath = "{written(bucket, tmp_path / "lake")}"\n')
    empty.write_text(f'[lake]\npath = "{tmp_path / "nothing"}"\n')
    topics("create", name, "--segments", "2")

    def ask(file, *arguments):
        return CliRunner().invoke(cli, ["--config", str(file), *arguments, "--url", controller.url])

    for command in ("show", "stats", "sealed"):
        as_json = ("--output", "json")
        assert ask(settings, "topics", command, "orders", *as_json).stdout == topics(command, name, *as_json)
    assert ask(settings, "topics", "split", "orders", "0").stdout == f"split segment 0 of {name}\n"
    assert ask(settings, "policy", "show", "orders").exit_code == 0
    nearest = ask(settings, "topics", "show", "ordrs")
    assert (nearest.exit_code, f"the nearest names are {name}" in nearest.stderr) == (2, True), nearest.stderr
    for arguments in (("delete", "orders", "--yes"), ("create", "orders"), ("clear-backlog", "orders", "s", "--yes")):
        assert ask(settings, "topics", *arguments).exit_code == 2
    without = ask(empty, "topics", "show", "orders")
    assert (without.exit_code, "orders is not a whole name" in without.stderr) == (2, True), without.stderr


def test_results_as_json_are_one_object(topics, namespace):
    name = f"topic://{namespace}/orders"
    as_json = ("--output", "json")
    assert json.loads(topics("create", name, *as_json)) == {"created": name, "segments": 1}
    assert json.loads(topics("split", name, "0", *as_json)) == {"topic": name, "split": 0}
    assert json.loads(topics("merge", name, "1", "2", *as_json)) == {"topic": name, "merged": [1, 2]}
    assert json.loads(topics("stats", name, *as_json))["activeSegments"] == 1
    assert json.loads(topics("delete", name, "--yes", *as_json)) == {"deleted": name}


def test_a_topic_may_be_named_without_its_domain(topics, namespace, topic):
    assert topics("show", f"{namespace}/orders") == topics("show", topic)


def test_list_requires_all_properties(topics, namespace):
    topics("create", f"{namespace}/a", "-p", "team=blue", "-p", "tier=1")
    topics("create", f"{namespace}/b", "-p", "team=blue", "-p", "note=a=b&c d")
    both = f"topic://{namespace}/a\ntopic://{namespace}/b\n"
    assert topics("list", namespace, "--property", "team=blue") == both
    assert topics("list", namespace, "-p", "team=blue", "-p", "tier=1") == f"topic://{namespace}/a\n"
    assert topics("list", namespace, "-p", "note=a=b&c d") == f"topic://{namespace}/b\n"
    assert topics("list", namespace, "-p", "team=red") == ""
    assert json.loads(topics("list", namespace, "-p", "team=red", "--output", "json")) == []


def test_stats_show_segments_and_consumers(topics, controller, topic, namespace):
    controller.client.put(f"/admin/v2/scalable/{namespace}/orders/subscriptions/billing/consumers/b-1")
    shown = topics("stats", topic)
    assert "activeSegments: 2\n" in shown
    assert f"  1: name segment://{namespace}/orders/8000-ffff-1, state ACTIVE\n" in shown
    assert "  billing: consumerCount 1\n" in shown


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_name_round_trips_through_list(topics, controller, namespace, hostile):
    name = f"topic://{namespace}/{hostile}"
    topics("create", name, "--segments", "3")
    (listed,) = json.loads(topics("list", namespace, "--output", "json"))
    for spelling in (name, listed):
        topics("show", spelling)
        assert list(segments(topics, spelling)) == [0, 1, 2]
    assert topics("list", namespace).count("\n") == 1
    for printed in (topics("show", name), topics("list", namespace), topics("stats", name)):
        assert printed.replace("\n", "").isprintable()
    topics("split", listed, "0")
    topics("delete", name, "--yes")
    assert json.loads(topics("list", namespace, "--output", "json")) == []
    assert controller.client.get("/healthz").status_code in (200, 503)


def test_escape_sequences_kept_from_terminal(topics, namespace):
    topics("create", f"{namespace}/a", "-p", "note=\x1b]0;owned\x07\n[red]x[/]")
    shown = topics("show", f"{namespace}/a")
    assert "properties: note=\\x1b]0;owned\\x07\\n[red]x[/]\n" in shown


def test_missing_object_exits_1_with_server_message(topics, namespace, topic):
    missing = f"topic://{namespace}/missing"
    for arguments in (
        ("show",),
        ("stats",),
        ("split", "0"),
        ("delete", "--yes"),
        ("policy", "get"),
        ("watch",),
        ("seek", "s", "--timestamp", "0"),
        ("clear-backlog", "s", "--yes"),
    ):
        first = 2 if arguments[0] == "policy" else 1
        said = topics.refused(*arguments[:first], missing, *arguments[first:])
        assert said == f"Error: Scalable topic not found: {missing} (404)"
    assert topics.refused("split", topic, "77") == f"Error: Segment not found: 77 of {topic} (404)"


@pytest.mark.parametrize("name", ["s", "a/b", "50%", "a%2Fb", "..", ".", "ñ ü?#", "x;y"])
def test_any_subscription_name_is_moved(topics, controller, topic, name):
    controller.node.registry.create_subscription(topic, name, "STREAM")
    for arguments in (("seek", topic, name, "--ago", "2h"), ("clear-backlog", topic, name, "--yes")):
        # Found, and not said to be moved: the controller of these tests keeps no messages.
        said = topics.refused(*arguments)
        assert "this controller keeps no messages" in said
        assert said.endswith("(409)")
        missing = topics.refused(*arguments[:2], f"{name}!", *arguments[3:])
        assert missing == f"Error: Subscription not found: {name}! on {topic} (404)"
    assert topics.refused("seek", topic, name, "--timestamp", "9" * 20).endswith("(412)")


def test_conflict_exits_1_with_server_message(topics, topic):
    assert topics.refused("create", topic) == f"Error: Scalable topic already exists: {topic} (409)"
    topics("split", topic, "0")
    assert topics.refused("split", topic, "0") == "Error: cannot split non-active segment: 0 (412)"
    assert topics.refused("merge", topic, "2", "1").startswith("Error: segments are not adjacent: [0000, 3fff] and")


def test_forbidden_call_exits_1_with_server_message(topics, topic, namespace):
    assert topics.refused("create", f"{namespace}/wide", "--segments", "70000").endswith("(412)")
    said = topics.refused("policy", "set", topic, "--min-segments", "100")
    assert "maxSegments (64) must not be less than minSegments (100) (412)" in said


@pytest.mark.parametrize(
    "wrong",
    [
        ("show",),
        ("show", "no-such-topic"),
        ("show", "acme/shop"),
        ("show", "persistent://acme/shop/orders"),
        ("show", ""),
        ("show", "acme/shop/\udcff"),
        ("list", "acme"),
        ("list", "acme/shop/orders"),
        ("list", "acme/shop", "-p", "x"),
        ("list", "acme/shop", "-p", "x=\udcff"),
        ("create", "acme/shop/a", "--segments", "0"),
        ("create", "acme/shop/a", "-p", "=x"),
        ("split", "acme/shop/a", "first"),
        ("split", "acme/shop/a"),
        ("merge", "acme/shop/a", "1"),
        ("policy", "set", "acme/shop/a/b"),
        ("policy", "get", "acme"),
        ("no-such",),
        ("list", "acme/shop", "--url", "127.0.0.1:8080"),
        ("list", "acme/shop", "--url", "ftp://host"),
        ("list", "acme/shop", "--url", "http://"),
        ("list", "acme/shop", "--output", "xml"),
        ("seek", "acme/shop/a", "s"),
        ("seek", "acme/shop/a", "s", "--timestamp", "-1"),
        ("seek", "acme/shop/a", "s", "--timestamp", "1", "--ago", "2h"),
        ("seek", "acme/shop/a", "s", "--ago", "soon"),
        ("seek", "acme/shop/a", "", "--ago", "1h"),
        ("clear-backlog", "acme/shop/a", "\udcff", "--yes"),
        ("clear-backlog", "acme/shop/a", "s"),
        ("watch", "acme/shop/a", "--every", "0"),
        ("list", "acme/shop", "--token", "s3cret"),
    ],
)
def test_wrong_usage_exits_with_2_and_asks_no_server(wrong):
    done = run(CLOSED, *wrong)
    assert (done.exit_code, done.stdout) == (2, ""), done.output


def test_unreachable_url_exits_3_with_advice():
    for arguments in (("list", "acme/shop"), ("create", "acme/shop/a"), ("watch", "acme/shop/a")):
        done = run(CLOSED, *arguments)
        assert (done.exit_code, done.stdout) == (3, "")
        assert CLOSED in done.stderr
        assert "anabranch serve controller" in done.stderr
        assert "--url" in done.stderr


def test_url_option_overrides_settings(topics, topic):
    assert run(CLOSED, "show", topic, "--url", topics.url + "/").stdout == topics("show", topic)


@pytest.mark.process
def test_environment_token_never_shown(tmp_path):
    with run_controller(tmp_path / "layouts.db", token="s3cret") as guarded:
        missing = run(guarded.url, "list", "acme/shop")
        assert (missing.exit_code, missing.stdout) == (1, "")
        assert "(401)" in missing.stderr
        assert "ANABRANCH_CONTROLLER_TOKEN" in missing.stderr
        wrong = run(guarded.url, "list", "acme/shop", environment={"ANABRANCH_CONTROLLER_TOKEN": "guess-1"})
        assert wrong.exit_code == 1
        assert "guess-1" not in wrong.output
        right = run(guarded.url, "create", "acme/shop/a", environment={"ANABRANCH_CONTROLLER_TOKEN": "s3cret"})
        assert right.exit_code == 0
        refused = run(guarded.url, "create", "acme/shop/a", environment={"ANABRANCH_CONTROLLER_TOKEN": "s3cret"})
        assert refused.exit_code == 1
        assert "s3cret" not in right.output + refused.output


@pytest.mark.parametrize("token", ["two\nlines", "schlüssel"])
def test_unsendable_token_refused_unshown(token):
    done = run(CLOSED, "list", "acme/shop", environment={"ANABRANCH_CONTROLLER_TOKEN": token})
    assert isinstance(done.exception, SettingsError)
    assert "controller.token: it holds characters that no token has" in str(done.exception)
    assert token not in done.output + str(done.exception)


def test_url_with_password_refused_unshown():
    done = run(CLOSED, "list", "acme/shop", "--url", "http://me:s3cret@127.0.0.1:1")
    assert done.exit_code == 2
    assert "s3cret" not in done.output


def test_delete_where_nobody_can_be_asked_needs_yes(topics, topic):
    assert "--yes" in topics.misused("delete", topic)
    assert list(segments(topics, topic)) == [0, 1]


@pytest.mark.parametrize(("typed", "exit_code", "left"), [("n\n", 130, 1), ("\n", 130, 1), ("y\n", 0, 0)])
def test_delete_asks_and_no_answer_means_no(topics, topic, namespace, typed, exit_code, left):
    ours, theirs = pty.openpty()
    try:
        os.write(ours, typed.encode())
        done = subprocess.run(
            [sys.executable, "-m", "anabranch", "topics", "delete", topic, "--url", topics.url],
            stdin=theirs,
            capture_output=True,
            text=True,
            timeout=60,
        )
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == exit_code
    assert f"Delete {topic} with all its messages?" in done.stderr
    assert len(json.loads(topics("list", namespace, "--output", "json"))) == left


def test_real_refusal_is_one_line(topics, topic):
    done = subprocess.run(
        [sys.executable, "-m", "anabranch", "topics", "split", topic, "9", "--url", topics.url],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"Error: Segment not found: 9 of {topic} (404)\n"


def test_local_run_at_work_is_asked(topics, topic, namespace, tmp_path, monkeypatch):
    monkeypatch.delenv("ANABRANCH_CONTROLLER_URL", raising=False)
    folder, own = tmp_path / "var", tmp_path / "own.toml"
    folder.mkdir()
    (folder / "run.toml").write_text(f'[controller]\nurl = "{topics.url}"\n')
    own.write_text(f'[controller]\nurl = "{CLOSED}"\n')

    def listed(*options):
        done = CliRunner().invoke(cli, ["--home", str(tmp_path), *options, "topics", "list", namespace])
        return done.stdout, "the local run's controller" in done.stderr

    assert listed()[1] is False
    with lock_folder(folder):
        assert listed() == (f"{topic}\n", True)
        assert listed("--config", str(own)) == ("", False)


def test_documented_session_is_what_one_sees(topics):
    (session,) = re.findall(r"```text\n(\$ \S+anabranch topics.*?)```", OPERATIONS.read_text(), re.DOTALL)
    for command, shown in re.findall(r"^\$ \S+anabranch topics (.*)\n((?:(?!\$ ).*\n)*)", session, re.MULTILINE):
        seen = [line.rstrip() for line in topics(*shlex.split(command)).rstrip("\n").splitlines()]
        assert seen == shown.rstrip("\n").splitlines()
