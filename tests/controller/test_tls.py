"""The controller behind TLS, as a process: who gets in, and that a renewed certificate needs no restart."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from websockets.asyncio.client import connect

from anabranch.cli.main import cli
from schemas.tls import TlsFiles, client_context
from tests import tls
from tests.controller.processes import ROOT, ControllerProcess
from tests.waiting import wait_until

pytestmark = pytest.mark.process

PATH = "/admin/v2/scalable/acme/tls/t"
OWN = TlsFiles(tls.certificate("client"), tls.key("client"), tls.CA)


def put(name: str, folder: Path) -> None:
    shutil.copy(tls.certificate(name), folder / "own.pem")
    shutil.copy(tls.key(name), folder / "own.key")


def shown(url: str) -> str:
    """The name of the certificate that a new connection is shown."""
    address = httpx.URL(url)
    with (
        socket.create_connection((address.host, address.port), 10) as plain,
        client_context(OWN).wrap_socket(plain, server_hostname="localhost") as secured,
    ):
        return dict(part[0] for part in secured.getpeercert()["subject"])["commonName"]


async def answer_to_registration(url: str) -> str:
    """What a consumer hears first. websockets' threads share a TLS object, and lose the request in 1 of 300 there."""
    async with connect(url.replace("https", "wss", 1), ssl=client_context(OWN), open_timeout=30) as consumer:
        await consumer.send(
            '{"command":"register","consumerId":1,"consumerName":"a","subscription":"s","type":"STREAM"}'
        )
        return str(await asyncio.wait_for(consumer.recv(), 30))


def test_controller_serves_tls_and_renews_at_once(tmp_path):
    put("server", tmp_path)
    more = f'certificate = "{tmp_path}/own.pem"\nkey = "{tmp_path}/own.key"\nclient_ca = "{tls.CA}"\n'
    service = ControllerProcess(tmp_path, more=more, tls=client_context(OWN))
    with service.life() as (client, _):
        assert client.put(PATH).status_code == 204
        # Pushed layouts and consumers.
        with client.stream("GET", f"{PATH}/watch") as pushed:
            assert next(pushed.iter_lines()).startswith(("event: layout", "id:", ":", "data:"))
        assert "assignment" in asyncio.run(answer_to_registration(f"{service.url}{PATH}/consumers"))

        for refused in (
            lambda: httpx.get(service.url.replace("https", "http"), timeout=10),
            lambda: httpx.get(service.url, verify=client_context(TlsFiles(ca=tls.CA)), timeout=10),
            lambda: httpx.get(
                service.url,
                verify=client_context(TlsFiles(tls.certificate("stranger"), tls.key("stranger"), tls.CA)),
                timeout=10,
            ),
        ):
            with pytest.raises((httpx.TransportError, ssl.SSLError)):
                refused()

        assert the_command_line(tmp_path, service.url, "topics", "list", "acme/tls") == "topic://acme/tls/t\n"

        assert shown(service.url) == "server"
        put("renewed", tmp_path)
        assert shown(service.url) == "renewed"
        (tmp_path / "own.key").write_text("broken")
        assert shown(service.url) == "renewed"
        wait_until(lambda: "the certificate is not renewed" in (tmp_path / "controller.log").read_text())
        # What was opened before goes on.
        assert client.get(PATH).status_code == 200


def the_command_line(folder: Path, url: str, *arguments: str) -> str:
    """What a command prints whose settings have the client's certificate."""
    settings = folder / "client.toml"
    settings.write_text(
        f'[controller]\nurl = "{url}"\nurl_ca = "{tls.CA}"\n'
        f'url_certificate = "{tls.certificate("client")}"\nurl_key = "{tls.key("client")}"\n'
    )
    done = CliRunner().invoke(cli, ["--home", str(ROOT), "--config", str(settings), *arguments])
    assert done.exit_code == 0, done.output
    return done.output
