"""What destinations are sent, and where nothing is sent to."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json

import pytest

from anabranch.alerts.addresses import is_local
from anabranch.alerts.posting import DeliveryFailed, sender_of
from anabranch.alerts.record import Notice
from anabranch.alerts.rules import RulesError, rules_of
from anabranch.alerts.states import Alert
from tests.admin.server import serving
from tests.alerts.receiver import receiving
from tests.local.lake import at

pytestmark = pytest.mark.process


@pytest.fixture
def receiver():
    with receiving() as one:
        yield one


def notice(status="firing", summary="too <hot> & \x1b[31mred"):
    """A label of the row is also one of the rule, which counts."""
    return Notice(Alert("Hot", (("team", "row's"), ("topic", "t")), status, at(0), at(60), 7.5, summary), "d")


def sender(environment=None, **chosen):
    rules = rules_of(
        {
            "rules": [
                {
                    "name": "Hot",
                    "sql": "SELECT 1",
                    "summary": "s",
                    "severity": "critical",
                    "labels": {"team": "a"},
                    "runbook": "https://example.com/hot",
                }
            ],
            "destinations": {"d": chosen},
        },
        "f",
    )
    return sender_of("d", rules.destinations["d"], rules, environment or {})


def test_webhook_sends_signed_alertmanager_body(receiver):
    key = b"0123456789abcdef01234567"
    secret = "whsec_" + base64.b64encode(key).decode()
    sender({"S": secret}, kind="webhook", url=receiver.url + "/hook?a=1", secret_variable="S", allow_local=True).send(
        [notice()], at(61)
    )
    [(path, headers, body)] = receiver.came
    assert path == "/hook?a=1"
    assert body["status"] == "firing"
    assert body["alerts"][0]["labels"] == {"alertname": "Hot", "severity": "critical", "team": "a", "topic": "t"}
    assert body["alerts"][0]["annotations"]["runbook_url"] == "https://example.com/hot"
    assert body["alerts"][0]["startsAt"] == "2026-11-20T12:00:00Z"
    assert headers["webhook-id"] == notice().notice_id
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + json.dumps(body).encode()
    assert headers["webhook-signature"] == "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


def test_notice_id_stable_until_resolved(receiver):
    one = sender(kind="webhook", url=receiver.url, allow_local=True)
    for status in ("firing", "firing", "resolved"):
        one.send([notice(status)], at(61))
    first, again, resolved = (headers["webhook-id"] for _, headers, _ in receiver.came)
    assert first == again != resolved
    assert "webhook-signature" not in receiver.came[0][1]


def test_slack_is_sent_one_escaped_line(receiver):
    sender({"U": receiver.url + "/services/T/B/x"}, kind="slack", url_variable="U", allow_local=True).send(
        [notice()], at(61)
    )
    [(path, _, body)] = receiver.came
    assert path == "/services/T/B/x"
    assert body["text"] == "*FIRING Hot* too &lt;hot&gt; &amp; \\x1b[31mred <https://example.com/hot|runbook>"


def test_log_warns_of_firing_and_notes_resolved(caplog):
    caplog.set_level("INFO", "anabranch.alerts.posting")
    sender(kind="log").send([notice(), notice("resolved")], at(61))
    text = "Hot (critical): too <hot> & \\x1b[31mred"
    assert [(entry.levelname, entry.getMessage()) for entry in caplog.records] == [
        ("WARNING", f"firing {text}"),
        ("INFO", f"resolved {text}"),
    ]
    assert all(entry.labels == {"team": "a", "topic": "t"} for entry in caplog.records)


def test_alertmanager_told_when_alert_ends(receiver):
    sender({"T": "secret"}, kind="alertmanager", url=receiver.url + "/am/", token_variable="T", allow_local=True).send(
        [notice(), notice("resolved")], at(61)
    )
    [(path, headers, [firing, resolved])] = receiver.came
    assert path == "/am/api/v2/alerts"
    assert headers["authorization"] == "Bearer secret"
    assert (firing["endsAt"], resolved["endsAt"]) == ("2026-11-20T12:05:01Z", "2026-11-20T12:01:00Z")


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(receiver, status):
    receiver.status, receiver.headers = status, {"Location": receiver.url + "/inside"}
    with pytest.raises(DeliveryFailed, match="not followed"):
        sender(kind="webhook", url=receiver.url, allow_local=True).send([notice()], at(61))
    assert len(receiver.came) == 1


def test_a_refusal_is_told_with_its_answer(receiver):
    receiver.status = 403
    with pytest.raises(DeliveryFailed, match="it answers 403: no"):
        sender(kind="webhook", url=receiver.url, allow_local=True).send([notice()], at(61))


def test_endless_answer_is_read_no_further_than_its_message():
    def endless(send):
        send(b"HTTP/1.1 200 OK\r\n\r\n")
        while send(b"a" * 1_000):
            pass

    with serving(endless) as server:
        sender(kind="webhook", url=server.url, allow_local=True).send([notice()], at(61))
    assert len(server.asked) == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "2130706433"])
def test_local_address_blocked_unless_allowed(receiver, host):
    port = receiver.url.rpartition(":")[2]
    with pytest.raises(DeliveryFailed, match=r"not allowed|no address"):
        sender(kind="webhook", url=f"http://{host}:{port}").send([notice()], at(61))
    assert receiver.came == []


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.9.9.9",
        "169.254.169.254",
        "::1",
        "fe80::1",
        "fe80::1%eth0",
        "0.0.0.0",
        "::",
        "224.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "2002:7f00:1::",
        "fd00:ec2::254",
        "100.100.100.200",
        "168.63.129.16",
        "fd00:ec2::23",
        "::ffff:100.100.100.200",
    ],
)
def test_loopback_and_link_addresses_are_local(address):
    assert is_local(address)


@pytest.mark.parametrize("address", ["10.0.0.1", "192.168.1.1", "8.8.8.8", "2001:4860:4860::8888", "::ffff:10.0.0.1"])
def test_other_machines_are_not_local(address):
    assert not is_local(address)


def test_nobody_there_is_told_without_the_address():
    with pytest.raises(DeliveryFailed) as caught:
        sender({"U": "http://127.0.0.1:1/services/secret"}, kind="slack", url_variable="U", allow_local=True).send(
            [notice()], at(61)
        )
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("chosen", "environment", "said"),
    [
        ({"kind": "slack", "url_variable": "U"}, {}, "the environment variable U is not set"),
        ({"kind": "slack", "url_variable": "U"}, {"U": "hooks.slack.com/x"}, "the variable U holds no address"),
        ({"kind": "webhook", "url": "https://x", "secret_variable": "S"}, {"S": "whsec_!"}, "no whsec_ with base64"),
    ],
)
def test_bad_secret_reported_at_start(chosen, environment, said):
    with pytest.raises(RulesError, match=said):
        sender(environment, **chosen)
