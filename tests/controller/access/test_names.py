"""A browser is not an admin: which names a node answers to, and which pages may call it."""

from __future__ import annotations

import socket
from http.client import HTTPResponse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.listener.names import NodeNames, is_form
from tests.controller.conftest import RunningController

LOCAL = NodeNames("127.0.0.1", ["http://127.0.0.1:8080"])
WIDE = NodeNames("0.0.0.0", ["https://controller-1.example:8443", "http://controller:8080"], ["Proxy.example"])


def asked(**headers: str) -> list[tuple[bytes, bytes]]:
    return [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]


@pytest.mark.parametrize(
    ("names", "host", "own"),
    [
        (LOCAL, "127.0.0.1:8080", True),
        (LOCAL, "127.0.0.1", True),
        (LOCAL, "127.9.9.9:1", True),
        (LOCAL, "localhost:8080", True),
        (LOCAL, "LocalHost.:8080", True),
        (LOCAL, "[::1]:8080", True),
        (LOCAL, "[0:0:0:0:0:0:0:1]", True),
        (LOCAL, "evil.example", False),
        (LOCAL, "evil.example:8080", False),
        (LOCAL, "localhost.evil.example", False),
        (LOCAL, "evil.localhost", False),
        (LOCAL, "127.0.0.1.evil.example", False),
        (LOCAL, "10.0.0.5:8080", False),
        (LOCAL, "0.0.0.0:8080", False),
        (LOCAL, "2130706433", False),
        (LOCAL, "0x7f.1", False),
        (LOCAL, "127.1", False),
        (LOCAL, "", False),
        (LOCAL, ".", False),
        (LOCAL, ":8080", False),
        (LOCAL, "localhost:80:80", False),
        (LOCAL, "localhost, evil.example", False),
        (LOCAL, "evil@localhost", False),
        (LOCAL, "localhost/", False),
        (LOCAL, "local\xadhost", False),
        (WIDE, "controller-1.example:8443", True),
        (WIDE, "controller:9", True),
        (WIDE, "proxy.example", True),
        (WIDE, "PROXY.example.", True),
        (WIDE, "10.0.0.5:8080", True),
        (WIDE, "[fd00::5]:8080", True),
        (WIDE, "localhost:8080", True),
        (WIDE, "sub.proxy.example", False),
        (WIDE, "evil.example", False),
        (WIDE, "controller-1", False),
    ],
)
def test_a_node_answers_to_its_own_names_alone(names: NodeNames, host: str, own: bool) -> None:
    assert (names.refusal(asked(host=host)) is None) == own


def test_missing_host_or_two_hosts_refused() -> None:
    assert LOCAL.refusal([]) is None
    assert LOCAL.refusal([(b"host", b"localhost"), (b"host", b"localhost")]) is not None


@pytest.mark.parametrize(
    ("host", "origin", "own"),
    [
        ("localhost:8080", "http://localhost:8080", True),
        ("localhost:8080", "HTTP://LOCALHOST:8080", True),
        ("localhost", "http://localhost", True),
        ("localhost", "http://localhost:80", True),
        ("localhost", "https://localhost:443", True),
        ("[::1]:8080", "http://[::1]:8080", True),
        ("localhost:8080", "http://localhost:3000", False),
        ("localhost:8080", "http://127.0.0.1:8080", False),
        ("localhost:8080", "http://localhost", False),
        ("localhost:8080", "null", False),
        ("localhost:8080", "", False),
        ("localhost:8080", "http://", False),
        ("localhost:8080", "//localhost:8080", False),
        ("localhost:8080", "file://localhost:8080", False),
        ("localhost:8080", "chrome-extension://localhost:8080", False),
        ("localhost:8080", "http://evil@localhost:8080", False),
        ("localhost:8080", "http://localhost:8080/", False),
        ("localhost:8080", "http://localhost:8080.evil.example", False),
        ("localhost:8080", "http://evil.example", False),
        ("localhost:8080", "http://localhost:8080, http://evil.example", False),
    ],
)
def test_a_page_may_call_only_where_it_came_from(host: str, origin: str, own: bool) -> None:
    assert (LOCAL.refusal(asked(host=host, origin=origin)) is None) == own


@pytest.mark.parametrize(
    ("site", "own"), [("same-origin", True), ("none", True), ("same-site", False), ("cross-site", False), ("", False)]
)
def test_browser_identifies_foreign_page(site: str, own: bool) -> None:
    assert (LOCAL.refusal(asked(host="localhost", sec_fetch_site=site)) is None) == own


@given(
    st.text(st.characters(min_codepoint=0, max_codepoint=255)), st.sampled_from(["http://", "https://", "ws://", ""])
)
def test_any_header_answered_and_origin_matches_host(text: str, scheme: str) -> None:
    assert LOCAL.refusal(asked(host=text)) is None or "controller.names" in str(LOCAL.refusal(asked(host=text)))
    if LOCAL.refusal(asked(host="localhost", origin=scheme + text)) is None:
        assert text.lower().partition(":")[0].removesuffix(".") == "localhost"


@given(st.from_regex(r"[a-z0-9-]{1,20}(\.[a-z0-9-]{1,20}){1,3}", fullmatch=True), st.integers(0, 65535))
def test_no_strangers_name_is_a_nodes(name: str, port: int) -> None:
    host = f"{name}:{port}"
    if LOCAL.refusal(asked(host=host)) is None:
        assert name.startswith("127.")
    assert LOCAL.refusal(asked(host="localhost:8080", origin=f"http://{host}")) is not None


@pytest.mark.parametrize(
    ("type", "form"),
    [
        ("text/plain", True),
        ("TEXT/PLAIN; charset=utf-8", True),
        (" multipart/form-data;boundary=x", True),
        ("application/x-www-form-urlencoded", True),
        ("application/json", False),
        ("", False),
    ],
)
def test_the_types_of_forms_are_known(type: str, form: bool) -> None:
    assert is_form(type.encode()) == form


def ask(controller: RunningController, verb: str, path: str, body: bytes = b"", **headers: str) -> int:
    """The status, of a request with these headers alone."""
    host, port = controller.client.base_url.host, controller.client.base_url.port
    lines = {"Host": f"{host}:{port}", "Content-Length": str(len(body)), "Connection": "close"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    with socket.create_connection((host, port), timeout=10) as connection:
        connection.sendall(f"{verb} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
        answer = HTTPResponse(connection, method=verb)
        answer.begin()
        return answer.status


WEBSOCKET = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec_WebSocket_Version": "13",
    "Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


@pytest.mark.parametrize(
    "page",
    [
        {"Host": "rebound.example"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Origin": "http://evil.example", "Content_Type": "text/plain"},
    ],
)
def test_no_page_of_a_stranger_reaches_anything(
    controller: RunningController, namespace: str, page: dict[str, str]
) -> None:
    path = f"/admin/v2/scalable/{namespace}/t"
    controller.client.put(path).raise_for_status()
    before = controller.client.get(path).json()
    policy = b'{"maxSegments": 1}'
    for verb, where, body in [
        ("POST", f"{path}/split/0", b""),
        ("POST", f"{path}/autoScalePolicy", policy),
        ("DELETE", path, b""),
        ("PUT", f"{path}2", b""),
        ("GET", path, b""),
        ("GET", "/healthz", b""),
        ("GET", "/openapi.json", b""),
        ("OPTIONS", path, b""),
        ("POST", f"{path}/subscriptions/s/seek?timestamp=0", b""),
    ]:
        assert ask(controller, verb, where, body, **page) == 403, (verb, where)
    for where in (f"{path}/watch", f"{path}/consumers"):
        assert ask(controller, "GET", where, **WEBSOCKET, **page) == 403
    assert controller.client.get(path).json() == before
    assert ask(controller, "GET", f"{path}/consumers", **WEBSOCKET) == 101


def test_form_body_refused_and_json_accepted(controller: RunningController, namespace: str) -> None:
    path = f"/admin/v2/scalable/{namespace}/t"
    controller.client.put(path).raise_for_status()
    policy = b'{"maxSegments": 5}'
    for type in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        assert ask(controller, "POST", f"{path}/autoScalePolicy", policy, Content_Type=type) == 415
    assert ask(controller, "POST", f"{path}/split/0", b"", Content_Type="application/x-www-form-urlencoded") == 204
    assert ask(controller, "POST", f"{path}/autoScalePolicy", policy, Content_Type="application/json") == 204
    assert ask(controller, "POST", f"{path}/autoScalePolicy", policy) == 204
