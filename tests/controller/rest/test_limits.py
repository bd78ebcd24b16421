"""Who may ask, and how much: tokens, bodies, and addresses that are refused at the start."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from pydantic import SecretStr

from anabranch.cli.main import cli
from anabranch.controller.errors import StartError
from anabranch.controller.metadata.sqlite import SqliteStore
from anabranch.controller.server import serve
from schemas.settings.root import Settings, load_settings
from tests.controller.conftest import NOWHERE, RunningController, run_controller

MAX_BODY = 1_048_576


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningController]:
    with run_controller(tmp_path_factory.mktemp("guarded") / "layouts.db", token="s3cret") as running:
        yield running


@pytest.mark.process
@pytest.mark.parametrize("header", [None, "Bearer wrong", "Bearer", "Basic s3cret", "s3cret", "Bearer s3cret2"])
def test_missing_token_is_401_except_health(guarded: RunningController, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header}
    for path in ("/admin/v2/scalable/a/b", "/openapi.json", "/nowhere"):
        answer = guarded.client.get(path, headers=headers)
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert "Bearer" in answer.json()["reason"]
    assert guarded.client.get("/healthz", headers=headers).status_code == 503


def test_with_the_token_requests_are_answered(guarded: RunningController) -> None:
    headers = {"Authorization": "Bearer s3cret", "X-Pulsar-Auth-Method-Name": "token"}
    assert guarded.client.put("/admin/v2/scalable/a/b/t", headers=headers).status_code == 204
    assert guarded.client.get("/admin/v2/scalable/a/b", headers=headers).json() == ["topic://a/b/t"]


@pytest.mark.parametrize(
    ("path", "size"),
    [
        *((path, size) for path in ("t/autoScalePolicy", "t/split/0") for size in (MAX_BODY, MAX_BODY + 1)),
        ("nowhere/to/be/found", MAX_BODY + 1),
        ("nowhere/to/be/found", 10_000_000),
    ],
)
def test_oversized_body_is_413_everywhere(controller: RunningController, namespace: str, path: str, size: int) -> None:
    answer = controller.client.post(f"/admin/v2/scalable/{namespace}/{path}", content=b"x" * size)
    assert (answer.status_code == 413) == (size > MAX_BODY)
    assert controller.client.get(f"/admin/v2/scalable/{namespace}").json() == []


@pytest.mark.parametrize("size", [2, MAX_BODY + 1])
def test_body_without_length_is_411(controller: RunningController, namespace: str, size: int) -> None:
    answer = controller.client.post(f"/admin/v2/scalable/{namespace}/t/split/0", content=iter([b"x" * size]))
    assert answer.status_code == 411
    assert controller.client.get(f"/admin/v2/scalable/{namespace}").json() == []


def test_malformed_request_refused_and_next_served(controller: RunningController) -> None:
    host, port = controller.client.base_url.host, controller.client.base_url.port
    for noise in (b"\x00\xff\x17\x03" * 100 + b"\r\n\r\n", b"GET /\xc3\xbc HTTP/1.1\r\nHost: localhost\r\n\r\n"):
        with socket.create_connection((host, port), timeout=10) as connection:
            connection.sendall(noise)
            assert connection.recv(4096).startswith(b"HTTP/1.1 400")
    assert controller.client.get("/admin/v2/scalable/a/b").status_code == 200


def test_a_body_that_breaks_off_changes_nothing(controller: RunningController, namespace: str) -> None:
    host, port = controller.client.base_url.host, controller.client.base_url.port
    path = f"/admin/v2/scalable/{namespace}/t"
    with socket.create_connection((host, port), timeout=10) as connection:
        connection.sendall(f"PUT {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n".encode())
    assert controller.client.get(path).status_code == 404


def settings(home: Path, **controller: object) -> Settings:
    lines = "\n".join(f"{key} = {value!r}" for key, value in {"port": 0, **controller}.items())
    (home / "more.toml").write_text(f'[kafka]\nbootstrap = "{NOWHERE}"\n[controller]\n{lines}\n'.replace("'", '"'))
    read = load_settings([home / "more.toml"], environment={})
    return read.model_copy(update={"home": home})


def test_unusable_token_file_stops_start(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"tokens_file: cannot read the tokens in .*/absent: No such file"):
        serve(settings(tmp_path, tokens_file="absent"), print)


@pytest.mark.parametrize(
    "reached",
    [
        {"host": "0.0.0.0"},
        {"names": ["ops.example.org"]},
        {"node_url": "http://10.0.0.1:8080"},
        {"url": "https://scaling.example.org"},
    ],
)
def test_an_address_for_others_needs_a_token(tmp_path: Path, reached: dict[str, object]) -> None:
    with pytest.raises(StartError, match=r"is not a loopback address and needs tokens.*ANABRANCH_CONTROLLER_TOKEN"):
        serve(settings(tmp_path, **reached), print)


@pytest.mark.process
def test_a_port_that_is_taken_is_said_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            serve(settings(tmp_path, port=port), print)


def test_failed_start_explained_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "wide.toml").write_text('[controller]\nhost = "0.0.0.0"\n')
    result = CliRunner().invoke(cli, ["-c", str(tmp_path / "wide.toml"), "controller"])
    assert result.exit_code == 1
    assert result.output.count("\n") == 1
    assert "is not a loopback address" in result.output


@pytest.mark.process
def test_unwritable_database_is_503_with_reason(tmp_path: Path) -> None:
    with run_controller(tmp_path / "layouts.db") as running:
        assert isinstance(running.nodes, SqliteStore)
        running.nodes._db.execute("PRAGMA query_only = 1")
        answer = running.client.put("/admin/v2/scalable/a/b/t")
        assert (answer.status_code, list(answer.json())) == (503, ["reason"])
        assert "readonly database" in answer.json()["reason"]
        assert running.client.get("/admin/v2/scalable/a/b").json() == []


@pytest.mark.process
def test_several_controllers_need_reachable_address(tmp_path: Path) -> None:
    everywhere = settings(tmp_path, host="0.0.0.0", metadata="zk://127.0.0.1:1/x").controller
    guarded = everywhere.model_copy(update={"token": SecretStr("s3cret")})
    chosen = settings(tmp_path).model_copy(update={"controller": guarded})
    with pytest.raises(StartError, match=r"controller\.node_url"):
        serve(chosen, print)
