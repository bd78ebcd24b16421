"""Tokens of an identity provider: asked for when needed, renewed when refused, and what is said when there is none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch.admin import credentials as module
from anabranch.admin.answers import Answered, Denied, NotConnected, Response
from anabranch.admin.credentials import ClientCredentials, NoToken, Provider, credentials_of
from anabranch.admin.topics import ScalableTopics
from schemas.settings.root import SettingsError, load_settings
from schemas.tls import TlsFiles, client_context
from tests.admin import provider as fakes
from tests.admin.conftest import transport
from tests.admin.provider import CLIENT, providing
from tests.admin.server import CERTIFICATE, dribble, http, serving
from tests.controller.conftest import RunningController, run_controller

pytestmark = pytest.mark.process


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def provider() -> Iterator[fakes.Provider]:
    with providing() as one:
        yield one


@pytest.fixture
def key_file(provider: fakes.Provider, tmp_path: Path) -> Path:
    file = tmp_path / "key.json"
    file.write_text(provider.key())
    return file


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningController]:
    """A controller that takes `token-1` alone."""
    with run_controller(tmp_path_factory.mktemp("guarded") / "layouts.db", token="token-1") as running:
        yield running


def test_token_renewed_shortly_before_expiry(provider, key_file, clock):
    tokens = ClientCredentials(Provider(key_file, audience="urn:pulsar", scope="admin"), now=clock)
    assert [tokens.token() for _ in range(3)] == ["token-0"] * 3
    clock.now += 3600 * 0.9 - 1
    assert tokens.token() == "token-0"
    clock.now += 2
    assert tokens.token() == "token-1"
    assert provider.asked[0] == {
        "grant_type": "client_credentials",
        "client_id": CLIENT["client_id"],
        "client_secret": CLIENT["client_secret"],
        "audience": "urn:pulsar",
        "scope": "admin",
    }
    assert len(provider.asked) == 2


@pytest.mark.parametrize("said", [None, "soon", [], {}])
def test_malformed_lifetime_means_five_minutes(said, provider, key_file, clock):
    provider.seconds, tokens = said, ClientCredentials(Provider(key_file), now=clock)
    assert tokens.token() == "token-0"
    clock.now += 250
    assert tokens.token() == "token-0"
    clock.now += 50
    assert tokens.token() == "token-1"


def test_refused_call_retried_once_with_new_token(provider, key_file, guarded):
    topics = ScalableTopics(transport(guarded.url, ClientCredentials(Provider(key_file)), timeout_seconds=10))
    namespace = guarded.new_namespace()
    assert isinstance(topics.create_topic(f"topic://{namespace}/t", 1, {}), Answered)
    assert len(provider.asked) == 2
    assert isinstance(topics.layout(f"topic://{namespace}/t"), Answered)
    assert len(provider.asked) == 2


def test_call_denied_after_two_tokens(provider, key_file, guarded):
    provider.tokens = ["wrong", "wrong too", "never asked for"]
    provider.tokens[1] = "wrong-too"
    topics = ScalableTopics(transport(guarded.url, ClientCredentials(Provider(key_file)), timeout_seconds=10))
    assert isinstance(topics.layout("topic://a/b/c"), Denied)
    assert len(provider.asked) == 2


def test_missing_right_does_not_renew_token(provider, key_file, clock):
    """A role without the right does not ask the provider again within a minute."""
    tokens = ClientCredentials(Provider(key_file), now=clock)
    assert tokens.renew(tokens.token())
    assert not tokens.renew(tokens.token())
    clock.now += 59.9
    assert not tokens.renew(tokens.token())
    clock.now += 0.2
    assert tokens.renew(tokens.token())
    assert tokens.token() == "token-2"


def test_tls_provider_trusted_by_certificate_only(tmp_path):
    with providing(tls=True) as provider:
        file = tmp_path / "key.json"
        file.write_text(provider.key())
        believed = ClientCredentials(Provider(file), client_context(TlsFiles(ca=CERTIFICATE)))
        assert believed.token() == "token-0"
        with pytest.raises(NoToken, match=r"gives no answer: .*certificate"):
            ClientCredentials(Provider(file)).token()


def test_no_call_without_token_and_secret_hidden(provider, key_file, clock):
    key_file.write_text(provider.key(client_secret="not-the-secret"))
    with serving(http(200, b"[]")) as server:
        client = transport(server.url, ClientCredentials(Provider(key_file), now=clock), timeout_seconds=10)
        for _ in range(3):
            answer = client.exchange("GET", "/admin/v2/scalable/a/b")
            assert isinstance(answer, NotConnected)
            assert "has answered 401: invalid_client, nobody of that name and secret" in answer.why
            assert "not-the-secret" not in str(answer)
        assert (server.asked, len(provider.asked)) == ([], 1)
        key_file.write_text(provider.key())
        clock.now += 1.5
        assert isinstance(client.exchange("GET", "/admin/v2/scalable/a/b"), Response)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file"),
        ("{", "is no JSON"),
        ("[]", "has no client_id and client_secret"),
        ('{"client_id": "a", "client_secret": ""}', "has no client_id and client_secret"),
        ('{"client_id": "a", "client_secret": "b", "type": "sn_service_account"}', "is of type 'sn_service_account'"),
        ('{"client_id": "a", "client_secret": "b"}', r"set \[controller\] oauth2_issuer"),
        ('{"client_id": "a", "client_secret": "b", "issuer_url": "http://idp.example"}', "is not https"),
        ('{"client_id": "a", "client_secret": "b", "issuer_url": "file:///etc"}', "is not https"),
        (r'{"client_id": "a", "client_secret": "b", "issuer_url": "https://\u0000"}', "is no URL"),
    ],
)
def test_unusable_key_file_named_with_reason(text, said, tmp_path):
    file = tmp_path / "key.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(NoToken, match=said):
        ClientCredentials(Provider(file)).token()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (http(200, b"{}"), "has no token_endpoint"),
        (http(200, json.dumps({"token_endpoint": "http://idp.example/token"}).encode()), "is not https"),
        (http(200, b"[" * 100_000), "has answered 200"),
        (http(200, b'"' + b"x" * 1_100_000 + b'"'), "more than 1048576 bytes"),
        (http(302, Location="http://127.0.0.1:1/"), "has answered 302"),
        (http(503, b"busy"), "has answered 503"),
        (b"nonsense\r\n\r\n", "gives no answer"),
        (dribble(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"), "gives no answer: .*Time"),
    ],
)
def test_bad_or_endless_provider_answer_named(script, said, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ANSWER_SECONDS", 2.0)
    with serving(script) as server:
        file = tmp_path / "key.json"
        file.write_text(json.dumps({**CLIENT, "issuer_url": server.url}))
        with pytest.raises(NoToken, match=said):
            ClientCredentials(Provider(file)).token()


def test_a_token_that_no_header_can_hold_is_not_sent(provider, key_file):
    provider.tokens = ["two words"]
    with pytest.raises(NoToken, match="without an access_token that can be sent"):
        ClientCredentials(Provider(key_file)).token()


def test_settings_take_key_file_or_token(provider, key_file, tmp_path):
    settings = tmp_path / "oauth2.toml"
    settings.write_text(f'[controller]\noauth2_key = "{key_file}"\noauth2_issuer = "{provider.url}"\n')
    found = credentials_of(load_settings([settings], environment={}))
    assert found is not None
    assert found.token() == "token-0"
    with pytest.raises(SettingsError, match="exclude one another"):
        load_settings([settings], environment={"ANABRANCH_CONTROLLER_TOKEN": "abc"})
    settings.write_text('[controller]\noauth2_scope = "admin"\n')
    with pytest.raises(SettingsError, match="need oauth2_key"):
        load_settings([settings], environment={})
