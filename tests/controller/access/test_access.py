"""Who may do what: every route names a role, a token opens what its role does, and changes of the token file count."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from starlette.routing import WebSocketRoute
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from anabranch.auth.callers import Access
from anabranch.auth.tokens import ROLES, Role, TokensError, add_token, remove_token
from anabranch.controller.access.roles import include_guarded, role_of
from tests.controller.conftest import RunningController, run_controller

TOPIC = "/admin/v2/scalable/{tenant}/{namespace}/{topic}"
SUBSCRIPTION = f"{TOPIC}/subscriptions/{{subscription}}"
CONSUMER = f"{SUBSCRIPTION}/consumers/{{consumer}}"
SEGMENT = "/admin/v2/segments/{tenant}/{namespace}/{topic}/{descriptor}"
SUBSCRIPTION_OF = f"{SEGMENT}/subscription/{{subscription}}"
POLICY = "/admin/v2/namespaces/{tenant}/{namespace}/scalableTopicAutoScalePolicy"
NAMESPACES = "/admin/v2/namespaces/{tenant}"
OF_ALL = {("GET", "/admin/v2/brokers")}
"""Calls for tokens that are bound to whatever."""
CALLS: dict[Role, set[tuple[str, str]]] = {
    "read": {
        ("GET", "/admin/v2/scalable/{tenant}/{namespace}"),
        ("GET", TOPIC),
        ("GET", f"{TOPIC}/stats"),
        ("GET", f"{TOPIC}/operations"),
        ("GET", f"{TOPIC}/autoScalePolicy"),
        ("GET", POLICY),
        ("GET", CONSUMER),
        ("GET", f"{SUBSCRIPTION}/consumers"),
        ("GET", f"{TOPIC}/sealed"),
        ("GET", f"{TOPIC}/autoScalePolicy/effective"),
        ("GET", f"{TOPIC}/watch"),
        ("WebSocket", f"{TOPIC}/watch"),
        ("GET", f"{SUBSCRIPTION_OF}/backlog"),
        ("GET", "/admin/v2/brokers"),
        ("GET", NAMESPACES),
    },
    "operate": {
        ("POST", f"{TOPIC}/split/{{segment}}"),
        ("POST", f"{TOPIC}/merge/{{first}}/{{second}}"),
        ("POST", f"{TOPIC}/rebucket/{{segment}}"),
        ("POST", f"{SUBSCRIPTION}/seek"),
        ("POST", f"{SUBSCRIPTION}/skip-all"),
        ("PUT", SUBSCRIPTION),
        ("DELETE", SUBSCRIPTION),
        ("PUT", CONSUMER),
        ("DELETE", CONSUMER),
        ("WebSocket", f"{TOPIC}/consumers"),
    },
    "admin": {
        ("PUT", f"{NAMESPACES}/{{namespace}}"),
        ("DELETE", f"{NAMESPACES}/{{namespace}}"),
        ("PUT", TOPIC),
        ("DELETE", TOPIC),
        ("POST", f"{TOPIC}/autoScalePolicy"),
        ("DELETE", f"{TOPIC}/autoScalePolicy"),
        ("POST", POLICY),
        ("DELETE", POLICY),
        ("PUT", SEGMENT),
        ("POST", f"{SEGMENT}/terminate"),
        ("DELETE", SEGMENT),
        ("PUT", SUBSCRIPTION_OF),
        ("DELETE", SUBSCRIPTION_OF),
        ("POST", f"{SUBSCRIPTION_OF}/seek"),
        ("POST", f"{SUBSCRIPTION_OF}/skip-all"),
        ("POST", f"{TOPIC}/migrate"),
    },
}


class Guarded:
    """A controller with a token of each role, named after it."""

    def __init__(self, controller: RunningController, file: Path, tokens: dict[Role, str]) -> None:
        self.controller = controller
        self.file = file
        self.tokens = tokens

    def call(self, token: str, verb: str, path: str) -> httpx.Response:
        with self.controller.client.stream(verb, path, headers={"Authorization": f"Bearer {token}"}) as answer:
            if answer.status_code >= 400:
                answer.read()
            return answer

    def connect(self, token: str, path: str) -> int:
        url = self.controller.url.replace("http", "ws", 1) + path
        try:
            with connect(url, additional_headers={"Authorization": f"Bearer {token}"}):
                return 101
        except InvalidStatus as refused:
            return refused.response.status_code


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    home = tmp_path_factory.mktemp("guarded")
    tokens: dict[Role, str] = {role: add_token(home / "tokens", role, role) for role in ROLES}
    with run_controller(home / "layouts.db", tokens_file=home / "tokens") as controller:
        yield Guarded(controller, home / "tokens", tokens)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tokens"


def routes_of(routes: Iterable[Any]) -> Iterator[Any]:
    for route in routes:
        included = getattr(route, "original_router", None)
        yield from routes_of(included.routes) if included is not None else [route]


@pytest.mark.process
def test_every_route_has_its_role(guarded: Guarded) -> None:
    found: dict[str | None, set[tuple[str, str]]] = {}
    app = guarded.controller.server.config.app
    for route in routes_of(app.routes):  # type: ignore[union-attr]
        verbs = {"WebSocket"} if isinstance(route, WebSocketRoute) else route.methods
        found.setdefault(role_of(route), set()).update((verb, route.path) for verb in verbs)
    # A token of any role, for it is no secret of the topics; and none.
    assert found.pop(None) == {("GET", "/openapi.json"), ("HEAD", "/openapi.json"), ("GET", "/healthz")}
    assert found == CALLS


@pytest.mark.parametrize("add", ["add_api_route", "add_api_websocket_route"])
def test_a_route_without_a_role_is_not_taken_in(add: str) -> None:
    router = APIRouter()
    getattr(router, add)("/open", lambda: None)
    with pytest.raises(TypeError, match="names no role"):
        include_guarded(FastAPI(), router)


@pytest.mark.parametrize("needed", ROLES)
@pytest.mark.parametrize("role", ROLES)
def test_token_allows_its_role_and_lesser_ones(guarded: Guarded, role: Role, needed: Role) -> None:
    allowed = ROLES.index(role) >= ROLES.index(needed)
    for verb, template in sorted(CALLS[needed]):
        # The topic is nowhere to be found, or the path would change what the next one finds.
        path = re.sub(r"{(segment|first|second)}", "0", template).replace("{topic}", "absent")
        path = path.replace("{descriptor}", "0000-ffff-0")
        path = re.sub(r"{(\w+)}", r"\1", path)
        if verb == "WebSocket":
            status = guarded.connect(guarded.tokens[role], path)
        else:
            answer = guarded.call(guarded.tokens[role], verb, path)
            status = answer.status_code
        assert (status != 403) == allowed, (verb, path)
        assert status != 401
        if status == 403 and verb != "WebSocket":
            reason = f"this needs a token of role {needed}; the token {role} has role {role}"
            assert answer.json() == {"reason": reason}
    guarded.call(
        guarded.tokens["admin"], "DELETE", TOPIC.format(tenant="tenant", namespace="namespace", topic="absent")
    )


def test_bound_token_limited_to_its_namespaces(guarded: Guarded) -> None:
    """A bound token opens its tenants and namespaces and no others."""

    def status(token: str, verb: str, template: str) -> int:
        path = re.sub(r"{(segment|first|second)}", "0", template).replace("{descriptor}", "0000-ffff-0")
        path = re.sub(r"{(\w+)}", r"\1", path.replace("{topic}", "absent")).replace("/tenant", "/t%65nant")
        return guarded.connect(token, path) if verb == "WebSocket" else guarded.call(token, verb, path).status_code

    scopes = {
        "in its namespace": ["else", "tenant/namespace"],
        "in its tenant": ["tenant"],
        "elsewhere": ["tenant/else"],
    }
    tokens = {name: add_token(guarded.file, name.replace(" ", "-"), "admin", scope) for name, scope in scopes.items()}
    calls = {call for calls in CALLS.values() for call in calls if call not in OF_ALL | {("GET", NAMESPACES)}}
    allowed = {name: {status(token, *call) != 403 for call in calls} for name, token in tokens.items()}
    assert allowed == {"in its namespace": {True}, "in its tenant": {True}, "elsewhere": {False}}
    assert {status(token, *call) for token in tokens.values() for call in OF_ALL} == {200}
    said = guarded.call(tokens["elsewhere"], "GET", "/admin/v2/scalable/tenant/namespace").json()
    assert said == {"reason": "the token elsewhere is bound to tenant/else; this is of tenant/namespace"}
    for name in tokens:
        remove_token(guarded.file, name.replace(" ", "-"))


def test_refusal_precedes_parsing(guarded: Guarded) -> None:
    answer = guarded.controller.client.put(
        "/admin/v2/scalable/a/b/t?numInitialSegments=many",
        content=b"no JSON",
        headers={"Authorization": f"Bearer {guarded.tokens['operate']}"},
    )
    assert answer.status_code == 403


def test_description_states_role_of_each_call(guarded: Guarded) -> None:
    headers = {"Authorization": f"Bearer {guarded.tokens['read']}"}
    document = guarded.controller.client.get("/openapi.json", headers=headers).json()
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    for role, calls in CALLS.items():
        for verb, path in calls:
            if verb != "WebSocket":
                assert document["paths"][path][verb.lower()]["security"] == [{"token": [role]}]
    assert "security" not in document["paths"]["/healthz"]["get"]


def test_log_names_author_without_token(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "anabranch.controller.access.gate"):
        guarded.call(guarded.tokens["admin"], "PUT", "/admin/v2/scalable/log/n/t")
        guarded.call(guarded.tokens["operate"], "POST", "/admin/v2/scalable/log/n/t/split/7")
        guarded.call(guarded.tokens["read"], "DELETE", "/admin/v2/scalable/log/n/t")
        guarded.call(guarded.tokens["read"], "GET", "/admin/v2/scalable/log/n/t")
        guarded.connect(guarded.tokens["operate"], "/admin/v2/scalable/log/n/t/consumers")
    assert said(caplog) == [
        "PUT /admin/v2/scalable/log/n/t by admin (admin): 204",
        "POST /admin/v2/scalable/log/n/t/split/7 by operate (operate): 404",
        "DELETE /admin/v2/scalable/log/n/t by read (read): 403",
        "WebSocket /admin/v2/scalable/log/n/t/consumers by operate (operate): 101",
    ]


def test_token_valid_from_creation_to_removal(guarded: Guarded) -> None:
    """It counts from the request after its creation on."""
    token = add_token(guarded.file, "short-lived", "read")
    assert guarded.call(token, "GET", "/admin/v2/scalable/a/b").status_code == 200
    assert guarded.connect(token, "/admin/v2/scalable/a/b/t/watch") == 404
    remove_token(guarded.file, "short-lived")
    assert guarded.call(token, "GET", "/admin/v2/scalable/a/b").status_code == 401
    assert guarded.connect(token, "/admin/v2/scalable/a/b/t/watch") == 401
    assert guarded.call(guarded.tokens["read"], "GET", "/admin/v2/scalable/a/b").status_code == 200


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the part under test has logged; controllers of other tests may still look for their brokers."""
    loggers = ("anabranch.controller.access", "anabranch.auth")
    return [record.getMessage() for record in caplog.records if record.name.startswith(loggers)]


@pytest.mark.parametrize("fault", ["a line", "the mode", "no file"])
def test_unreadable_tokens_count_for_a_grace_period(file: Path, fault: str, caplog: pytest.LogCaptureFixture) -> None:
    header = f"Bearer {add_token(file, 'reader', 'read')}".encode()
    now = 0.0
    access = Access(file, clock=lambda: now)
    if fault == "a line":
        file.write_text("reader read what-is-this\n")
    elif fault == "the mode":
        file.chmod(0o644)
    else:
        file.unlink()
    for _ in range(3):
        caller = access.caller(header)
        assert caller is not None
        assert caller[:2] == ("reader", "read")
    [complaint] = said(caplog)
    assert str(file) in complaint
    now = 59.0
    known = access.caller(header)
    assert known is not None
    assert access.failure is None
    now = 60.0
    assert access.caller(header) is None
    assert not access.holds(known)
    assert str(file) in (access.failure or "")
    assert "what-is-this" not in caplog.text
    add_token(file.with_name("good"), "other", "read")
    os.replace(file.with_name("good"), file)
    assert access.caller(header) is None
    assert access.failure is None
    back = f"Bearer {add_token(file, 'back', 'read')}".encode()
    assert access.caller(back) is not None


def test_token_file_disables_single_token(file: Path) -> None:
    reader = add_token(file, "reader", "read")
    access = Access(file, "s3cret")
    assert access.caller(b"Bearer s3cret") is None
    for access, header, found in [
        (Access(file, reader), f"bearer {reader}".encode(), ("reader", "read")),
        (Access(None, "s3cret"), b"Bearer s3cret", ("controller.token", "admin")),
    ]:
        caller = access.caller(header)
        assert caller is not None
        assert caller[:2] == found


def test_an_empty_file_lets_nobody_in(file: Path) -> None:
    add_token(file, "gone", "admin")
    remove_token(file, "gone")
    access = Access(file)
    assert access.is_guarded
    assert access.caller(b"Bearer ") is None
    assert access.caller(b"") is None


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602, 0o620, 0o666])
def test_a_file_that_is_open_to_others_is_refused(file: Path, mode: int) -> None:
    add_token(file, "one", "read")
    file.chmod(mode)
    with pytest.raises(TokensError, match=f"chmod 600 {file}"):
        Access(file)
    with pytest.raises(TokensError, match="chmod 600"):
        add_token(file, "two", "read")
    file.chmod(0o640)
    assert Access(file).is_guarded
