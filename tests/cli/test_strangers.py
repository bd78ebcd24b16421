"""`anabranch topics` at servers that are not our controller, or fail: the message and the exit code."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time

import pytest

from anabranch.cli.admin_client import AdminInterface, ClusterUnreachable
from decisions.topic.layout import SegmentLayout
from tests.cli.conftest import run, stranger
from tests.waiting import wait_until

pytestmark = pytest.mark.process

TOPIC = "topic://acme/shop/orders"
SECRET = {"ANABRANCH_CONTROLLER_TOKEN": "s3cret"}
PULSAR_500 = (
    "\n --- An unexpected error occurred in the server ---\n\nMessage: Cannot split range of size 1\n\n"
    "Stacktrace:\n\njava.lang.IllegalArgumentException: Cannot split range of size 1\n\tat org.apache.pulsar.X.y"
)


def json_answer(value, status=200):
    return status, {"Content-Type": "application/json"}, json.dumps(value).encode()


def layout(splits=0):
    """A layout record after `splits` splits of the lowest segment."""
    found = SegmentLayout.create(1, 0)
    for _ in range(splits):
        found = found.split_segment(found.active[0].segment_id, 0)
    return found.to_metadata().to_json()


def layout_answer(splits=0):
    return 200, {"Content-Type": "application/json"}, layout(splits).encode()


def test_of_a_stack_trace_only_its_message_is_shown():
    with stranger(json_answer({"reason": PULSAR_500}, 500)) as pulsar:
        done = run(pulsar.url, "split", TOPIC, "1")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "Error: Cannot split range of size 1 (500)\n"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"<html>\nnot here\x1b[2J</html>", "Error: <html> not here\\x1b[2J</html> (404)\n"),
        (b"", "Error: Not Found (404)\n"),
        (b'{"reason": 7}', "Error: 7 (404)\n"),
        (b'["reason"]', 'Error: ["reason"] (404)\n'),
        (b"\xff\xfe", "Error: \ufffd\ufffd (404)\n"),
    ],
)
def test_a_refusal_in_any_form_is_one_printable_line(body, said):
    with stranger((404, {}, body)) as other:
        done = run(other.url, "show", TOPIC)
    assert (done.exit_code, done.stderr) == (1, said)


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        (b"<html>welcome</html>", ("list", "acme/shop")),
        (b'{"a": 1}', ("list", "acme/shop")),
        (b"[1]", ("list", "acme/shop")),
        (b"[" * 100_000, ("stats", TOPIC)),
        (b"\xff", ("show", TOPIC, "--output", "json")),
        (b"[]", ("policy", "get", TOPIC)),
    ],
)
def test_foreign_server_exits_3_naming_url(body, arguments):
    with stranger((200, {}, body)) as other:
        done = run(other.url, *arguments)
    assert (done.exit_code, done.stdout) == (3, "")
    assert other.url in done.stderr


@pytest.mark.parametrize("body", [b"{}", b"[]", b"nonsense", layout().replace('"end":65535', '"end":65534').encode()])
def test_a_record_that_is_no_layout_is_not_drawn(body):
    with stranger((200, {}, body)) as other:
        done = run(other.url, "show", TOPIC)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith(f"Error: the layout of {TOPIC} cannot be read: ")


def test_broken_connection_exits_3_without_resend():
    with stranger(None) as other:
        done = run(other.url, "split", TOPIC, "0")
    assert (done.exit_code, done.stdout) == (3, "")
    assert other.url in done.stderr
    assert "may have been done" in done.stderr
    assert len(other.asked) == 1


def test_silent_server_times_out():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        admin = AdminInterface(f"http://127.0.0.1:{silent.getsockname()[1]}", None, timeout_seconds=0.05)
        with pytest.raises(ClusterUnreachable, match="try again"):
            admin.layout(TOPIC)


def test_leader_redirect_keeps_method_and_token():
    with stranger((204, {}, b"")) as leader:
        moved = {"Location": f"{leader.url}/admin/v2/scalable/acme/shop/orders/split/0"}
        with stranger((307, moved, b"")) as follower:
            done = run(follower.url, "split", TOPIC, "0", environment=SECRET)
    assert done.exit_code == 0
    assert leader.asked == [("POST", "/admin/v2/scalable/acme/shop/orders/split/0", "Bearer s3cret")]


def test_subscription_moves_by_pulsar_admin_calls():
    before = int(time.time() * 1000)
    base = "/admin/v2/scalable/acme/shop/orders/subscriptions/a%2Fb"
    with stranger((204, {}, b"")) as pulsar:
        assert run(pulsar.url, "seek", TOPIC, "a/b", "--timestamp", "1763660000000").stdout == (
            f"moved a/b of {TOPIC} to 1763660000000\n"
        )
        ago = json.loads(run(pulsar.url, "seek", TOPIC, "a/b", "--ago", "2h", "--output", "json").stdout)
        assert run(pulsar.url, "clear-backlog", TOPIC, "a/b", "--yes").stdout == f"a/b of {TOPIC} is at the end\n"
        cleared = run(pulsar.url, "clear-backlog", TOPIC, "a/b", "--yes", "--output", "json").stdout
    assert json.loads(cleared) == {"topic": TOPIC, "subscription": "a/b", "cleared": True}
    assert before <= ago["timestamp"] + 7_200_000 <= time.time() * 1000
    assert [(verb, path) for verb, path, _ in pulsar.asked] == [
        ("POST", f"{base}/seek?timestamp=1763660000000"),
        ("POST", f"{base}/seek?timestamp={ago['timestamp']}"),
        ("POST", f"{base}/skip-all"),
        ("POST", f"{base}/skip-all"),
    ]


@pytest.mark.parametrize("target", ["", "file:///etc/passwd", "ftp://127.0.0.1/x"])
def test_a_redirect_that_leads_nowhere_ends(target):
    with stranger((307, {"Location": target}, b"")) as other:
        done = run(other.url, "split", TOPIC, "0")
    assert done.exit_code == 3
    assert "redirect" in done.stderr


def test_watch_prints_each_layout_until_deletion():
    gone = json_answer({"reason": "Scalable topic not found"}, 404)
    with stranger(layout_answer(), layout_answer(), layout_answer(1), layout_answer(1), layout_answer(3), gone) as one:
        done = run(one.url, "watch", TOPIC, "--every", "0.01")
    assert done.exit_code == 1
    assert done.stderr == "Error: Scalable topic not found (404)\n"
    heads = [line for line in done.stdout.splitlines() if line.startswith("topic://")]
    assert heads == [
        f"{TOPIC} at epoch 0, 1 active segment: created 0",
        f"{TOPIC} at epoch 1, 2 active segments, 1 sealed: split 0 -> 1, 2",
        f"{TOPIC} at epoch 3, 4 active segments, 3 sealed: split 3 -> 5, 6",
    ]


def test_watch_shows_recreation_at_same_epoch():
    again = SegmentLayout.create(2, 5).to_metadata().to_json().encode()
    with stranger(layout_answer(), (200, {}, again), json_answer({}, 404)) as one:
        done = run(one.url, "watch", TOPIC, "--every", "0.01", "--output", "json")
    assert [len(json.loads(line)["segments"]) for line in done.stdout.splitlines()] == [1, 2]


def test_watch_survives_silent_server():
    with stranger(layout_answer(), None, None, layout_answer(1), json_answer({}, 404)) as one:
        done = run(one.url, "watch", TOPIC, "--every", "0.01")
    assert [line.split(",")[0] for line in done.stdout.splitlines() if "epoch" in line] == [
        f"{TOPIC} at epoch 0",
        f"{TOPIC} at epoch 1",
    ]
    assert done.stderr.count("looking again every 0.01 s") == 1


def test_watch_prints_into_pipe_at_once(controller, topics, namespace):
    name = f"topic://{namespace}/orders"
    topics("create", name)
    watching = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "anabranch",
            "topics",
            "watch",
            name,
            "--url",
            topics.url,
            "--every",
            "0.02",
            "--output",
            "json",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    seen: list[int] = []
    reader = threading.Thread(target=lambda: seen.extend(json.loads(line)["epoch"] for line in watching.stdout))
    reader.start()
    try:
        wait_until(lambda: seen == [0], 30)
        topics("split", name, "0")
        wait_until(lambda: seen == [0, 1], 30)
        topics("delete", name, "--yes")
        assert watching.wait(30) == 1
        assert watching.stderr.read() == f"Error: Scalable topic not found: {name} (404)\n"
    finally:
        watching.kill()
        watching.wait()
        reader.join()
        watching.stdout.close()
        watching.stderr.close()
