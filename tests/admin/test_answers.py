"""What a status and a body mean, and whose fault it is."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.admin.answers import MAX_REASON, Answered, Denied, Refused, Response, ServerFault, judge_response
from tests.executor.gate import ILLEGAL_ARGUMENT


def judge(status: int, body: bytes = b"", phrase: str = "", encoding: str = "utf-8"):
    return judge_response(Response(status, phrase, body, "http://x", encoding))


@pytest.mark.parametrize("status", [200, 201, 204, 299])
def test_a_success_is_its_body(status):
    assert judge(status, b"body") == Answered(b"body")


@pytest.mark.parametrize("status", [400, 404, 405, 409, 412, 413, 418, 499])
def test_a_4xx_is_the_callers_fault(status):
    assert judge(status, b'{"reason": "not so"}') == Refused(status, "not so", from_interface=True)


@pytest.mark.parametrize("status", [401, 403])
def test_a_401_and_a_403_are_the_credentials_fault(status):
    assert judge(status, b'{"reason": "not you"}') == Denied(status, "not you")


@pytest.mark.parametrize("status", [300, 301, 304, 307, 408, 425, 429, 500, 502, 503, 599, 999])
def test_anything_else_is_the_servers_fault(status):
    assert judge(status, b'{"reason": "not now"}') == ServerFault(status, "not now")


def test_pulsar_500_for_wrong_argument_is_refusal():
    """Pulsar answers 500 for a wrong argument: the caller's fault. Any other 500 is not."""
    for kind in ("IllegalState", "IllegalArgument"):
        body = ILLEGAL_ARGUMENT.replace("IllegalState", kind).encode()
        assert judge(500, body) == Refused(500, "Cannot split range of size 1", from_interface=True)
        assert isinstance(judge(503, body), ServerFault)
    other = ILLEGAL_ARGUMENT.replace("java.lang.IllegalState", "java.lang.Runtime").encode()
    assert judge(500, other) == ServerFault(500, "Cannot split range of size 1")
    # A page that quotes the stack trace is not the interface.
    trace = json.loads(ILLEGAL_ARGUMENT)["reason"]
    assert isinstance(judge(500, trace.encode()), ServerFault)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", ""),
        (b" \n", ""),
        (b"<html>\nnot here</html>", "<html> not here</html>"),
        (b'{"message":"Authentication required","url":"http://a/","status":"401"}', "Authentication required"),
        (b'["reason"]', '["reason"]'),
        (b'{"message": "no"}', '{"message": "no"}'),
        (b'{"reason": 7}', "7"),
        (b"\xff", "\ufffd"),
        (b"[" * 100_000, "[" * MAX_REASON),
        (b'{"reason": "' + b"a" * 5000 + b'"}', "a" * MAX_REASON),
    ],
)
def test_foreign_body_shown_in_one_line(body, reason):
    found = judge(404, body)
    assert found == Refused(404, reason, from_interface=body.endswith(b'a"}'))
    assert str(found) == f"404 {reason}".rstrip()


def test_server_status_name_separate_from_reason():
    for status in (404, 401, 503):
        found = judge(status, phrase="Gone Fishing")
        assert not isinstance(found, Answered)
        assert (found.reason, found.phrase, str(found)) == ("", "Gone Fishing", str(status))


def test_text_decoded_in_server_charset():
    """Falls back to UTF-8 when the server names no charset."""
    assert judge(404, "für".encode("latin-1"), encoding="latin-1").reason == "für"
    for codec in ("hex", "rot13", "no-such", "idna", "punycode"):
        assert isinstance(judge(404, "für".encode(), encoding=codec).reason, str)


@given(st.integers(100, 999), st.binary(), st.text())
def test_every_answer_has_one_line_reason(status, body, phrase):
    found = judge(status, body, phrase)
    if not isinstance(found, Answered):
        assert len(found.reason) <= MAX_REASON
        assert not set(found.reason) & set("\r\n\t\v\f")
        assert str(status) in str(found)
