"""Any request to the running controller gets an answer below 500, in JSON, and leaves the store consistent."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from http.client import HTTPResponse
from urllib.parse import quote

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from decisions.topic.layout import SegmentLayout
from schemas.metadata import AutoScalePolicyOverride, ScalableTopicMetadata
from tests.controller.conftest import RunningController, run_controller
from tests.examples import examples

pytestmark = pytest.mark.process

MAX_BODY = 1_048_576
BASE = "/admin/v2/scalable/acme/shop"

PLACES = {
    "tenant": "acme",
    "namespace": "shop",
    "topic": "t",
    "segment": "0",
    "first": "0",
    "second": "1",
    "subscription": "s",
    "consumer": "c",
    "descriptor": "0000-ffff-0",
}

any_text = st.text(st.characters(codec="utf-8"), max_size=20)
odd_text = st.sampled_from(
    [
        "",
        ".",
        "..",
        "%",
        "%00",
        "%2F",
        "%2e%2e",
        "%ff",
        "%C3",
        "%25%32%46",
        "%0d%0aX:1",
        "\\",
        "'",
        '"',
        "topic:",
        "~",
        "0",
        "1",
        "-1",
        "00",
        "1e3",
        "9" * 18,
        "9" * 19,
        "9" * 400,
        "-" + "9" * 18,
        "0x1",
        "1.0",
        "NaN",
        "null",
        "None",
        "x" * 1023,
        "x" * 1025,
        "%F0%9F%A6%A6" * 300,
        "%25" * 2000,
        "{topic}",
        "stats",
        "split",
        "*",
        "a=b",
        "=",
        "a=",
    ]
)
printable = st.text(st.characters(min_codepoint=33, max_codepoint=126))
odd = st.one_of(odd_text, any_text.map(lambda text: quote(text, safe="")), printable)
wild_paths = st.lists(odd, max_size=6).map(lambda parts: "/" + "/".join(parts))
wild_verbs = st.sampled_from(["GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS", "TRACE", "get", "BREW"])


@st.composite
def requests(draw: st.DrawFn, operations: list[tuple[str, str]]) -> tuple[str, str]:
    """Verb and path: mostly of an operation, with anything at all in one of its places or in none."""
    if draw(st.integers(0, 9)) == 0:
        return draw(wild_verbs), draw(wild_paths)
    verb, template = draw(st.sampled_from(operations))
    odd_place = draw(st.sampled_from([None, None, *re.findall(r"{(\w+)}", template)]))
    path = re.sub(r"{(\w+)}", lambda place: draw(odd) if place[1] == odd_place else PLACES[place[1]], template)
    return verb, path


queries = st.lists(
    st.tuples(st.sampled_from(["numInitialSegments", "property", "type", "force", "timestamp", "x", "", "%ff"]), odd),
    max_size=2,
).map(lambda pairs: "&".join(f"{name}={value}" for name, value in pairs))

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(10**400), 10**400),
    st.floats(),
    any_text,
    st.sampled_from([2**31, 2**63, 2**63 - 1, -1, 0, 1e308, 5e-324]),
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3), max_leaves=5
)
fields = st.sampled_from([str(field.alias) for field in AutoScalePolicyOverride.model_fields.values()])
bodies = st.one_of(
    st.just(b""),
    st.binary(max_size=200),
    values.map(lambda value: json.dumps(value).encode()),
    st.dictionaries(fields, scalars, max_size=4).map(lambda value: json.dumps(value).encode()),
    st.dictionaries(any_text, any_text, max_size=4).map(lambda value: json.dumps(value).encode()),
    st.sampled_from(
        [
            b"[" * 100_000,
            b'{"a":' * 50_000,
            b'{"k":"\\ud800"}',
            b'{"k":1,"k":"2"}',
            b"1e999",
            b"\xef\xbb\xbf{}",
            b" " * MAX_BODY,
            b" " * (MAX_BODY + 1),
        ]
    ),
)
header_names = st.sampled_from(
    ["Content-Type", "X-Anabranch-Decision", "Accept", "Accept-Encoding", "Authorization", "Last-Event-ID"]
)
header_values = st.sampled_from(
    ["application/json", "multipart/form-data", "text/plain; charset=nonsense", "d" * 200, ""]
)
latin = st.text(st.characters(min_codepoint=33, max_codepoint=255))
headers = st.dictionaries(header_names, header_values | latin, max_size=2)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningController]:
    with run_controller(tmp_path_factory.mktemp("fuzzed") / "layouts.db") as running:
        yield running


def ask(
    controller: RunningController, verb: str, path: str, body: bytes = b"", more: dict[str, str] | None = None
) -> tuple[HTTPResponse, bytes]:
    """The answer to a request whose path goes out byte by byte as it stands; of pushed layouts only the head."""
    host, port = controller.url.removeprefix("http://").split(":")
    sent = {"Host": "localhost", "Content-Length": str(len(body)), "Connection": "close", **(more or {})}
    head = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(f"{verb} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body)
        answer = HTTPResponse(connection, method=verb)
        answer.begin()
        endless = answer.getheader("Content-Type", "").startswith("text/event-stream")
        return answer, b"" if endless else answer.read()


@pytest.fixture(scope="module")
def operations(target: RunningController) -> list[tuple[str, str]]:
    """Every verb and path that the controller says it has."""
    described = target.client.get("/openapi.json").json()["paths"]
    return [(verb.upper(), path) for path, verbs in described.items() for verb in verbs if path != "/healthz"]


@examples(60)
@given(data=st.data(), query=queries, body=bodies, more=headers)
def test_random_requests_answered_below_500_in_json(
    target: RunningController,
    operations: list[tuple[str, str]],
    data: st.DataObject,
    query: str,
    body: bytes,
    more: dict[str, str],
) -> None:
    verb, path = data.draw(requests(operations))
    ask(target, "PUT", f"{BASE}/t?numInitialSegments=2")
    answer, content = ask(target, verb, f"{path}?{query}", body, more)
    event(str((verb, answer.status)))
    assert answer.status < 500, content
    assert b"Traceback" not in content
    if answer.status >= 400:
        read = json.loads(content)
        assert list(read) == ["reason"]
        assert read["reason"]
    elif answer.status == 204:
        assert content == b""
    else:
        assert answer.status == 200
        assert content == b"" or answer.headers["Content-Type"] == "application/json"
    layout, content = ask(target, "GET", f"{BASE}/t")
    if layout.status == 200:
        SegmentLayout.from_metadata(ScalableTopicMetadata.model_validate_json(content))
    assert ask(target, "GET", BASE)[0].status == 200


@pytest.mark.parametrize("path", [f"{BASE}/t", f"{BASE}/t/split/0", "/healthz", "/nowhere", f"{BASE}/t/watch/more"])
def test_websocket_elsewhere_is_404_with_reason(target: RunningController, path: str) -> None:
    handshake = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    answer, content = ask(target, "GET", path, more=handshake)
    assert (answer.status, json.loads(content)) == (404, {"reason": f"Not Found: WebSocket {path}"})
