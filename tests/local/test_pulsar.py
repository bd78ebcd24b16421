"""A standalone Pulsar of the lab: its data survives kill -9 and other ports, and with tokens it lets nobody else in.

And collector and executor at one that is secured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from anabranch.admin.answers import Answered, Denied
from anabranch.admin.topics import ScalableTopics
from anabranch.admin.transport import Transport
from anabranch.local.pulsar.standalone import StandalonePulsar
from lake.tables import create_lake, read_columns
from runtime.java_home import SetupError
from schemas.tables.rows import OUTCOMES
from schemas.tls import TlsFiles, client_context
from tests.admin.conftest import transport
from tests.admin.provider import providing
from tests.admin.server import CERTIFICATE
from tests.executor import orders
from tests.harness.pulsar.secured import SecuredPulsar
from tests.local.token_keys import KeyPair
from tests.waiting import wait_until

NAMESPACE = "public/secured"
TOPIC = f"topic://{NAMESPACE}/orders"


def topics_of(pulsar, token=None):
    return ScalableTopics(transport(pulsar.admin_url, token, 20))


def epoch_of(topics):
    found = topics.layout(TOPIC)
    assert isinstance(found, Answered), found
    return found.value.epoch


@pytest.fixture(scope="module")
def killed(tmp_path_factory, pulsar_jars):
    """A Pulsar that asks for tokens, killed after a split."""
    first = SecuredPulsar(tmp_path_factory.mktemp("secured"), pulsar_jars)
    try:
        first.start()
        topics = topics_of(first, first.token())
        assert topics.create_namespace(NAMESPACE) == Answered(None)
        assert topics.create_topic(TOPIC, 2, {}) == Answered(None)
        assert topics.split_segment(TOPIC, 0) == Answered(None)
        for stranger in (topics_of(first), topics_of(first, "wrong"), topics_of(first, first.token("nobody"))):
            assert isinstance(stranger.split_segment(TOPIC, 1), Denied)
        listening = [one.laddr for one in psutil.Process(first.process.pid).net_connections() if one.status == "LISTEN"]
        assert {place.ip.removeprefix("::ffff:") for place in listening} == {"127.0.0.1"}
        assert {first.port, first.web_port} <= {place.port for place in listening}
    finally:
        first.kill()
    assert SecuredPulsar(first.folder, pulsar_jars).token() == first.token()
    return first


@pytest.fixture(scope="module")
def secured(killed, pulsar_jars):
    """The same folder at other ports, by TLS alone and with tokens of an identity provider; roles with fewer rights."""
    pem = CERTIFICATE.read_text().partition("-----BEGIN CERTIFICATE")
    tls = TlsFiles(killed.folder / "certificate.pem", killed.folder / "key.pem")
    tls.certificate.write_text("".join(pem[1:]))
    tls.key.write_text(pem[0])
    one = SecuredPulsar(
        killed.folder, pulsar_jars, signer=KeyPair.read(), tls=tls, settings={"scalableTopicMaxSegments": 9}
    )
    try:
        one.start()
        admin = exchange_as(one, "admin")
        for role in ("consume", "produce"):
            admin("POST", f"/namespaces/{NAMESPACE}/permissions/{role}", json.dumps([role]))
        admin("POST", "/tenants/public", '{"adminRoles":["tenant"],"allowedClusters":["standalone"]}')
        yield one
    finally:
        one.stop()
    wait_until(lambda: not psutil.pid_exists(one.process.pid))


def exchange_as(pulsar, role):
    """Calls by the token of a role; the status of the answer."""
    believed = client_context(TlsFiles(ca=pulsar.tls.certificate))
    way = Transport(pulsar.admin_url, pulsar.token(role), user_agent="test", timeout_seconds=20, tls=believed)
    return lambda method, path, body=None: way.exchange(method, f"/admin/v2{path}", body=body).status


@pytest.mark.soak
@pytest.mark.pulsar
def test_layouts_survive_kill_new_ports_and_tokens(secured):
    believed = client_context(TlsFiles(ca=secured.tls.certificate))
    way = Transport(secured.admin_url, secured.token(), user_agent="test", timeout_seconds=20, tls=believed)
    assert epoch_of(ScalableTopics(way)) == 1


RIGHTS = Path(__file__).resolve().parents[2] / "docs" / "pulsar.md"


@pytest.mark.soak
@pytest.mark.pulsar
def test_documented_rights_are_minimal(secured):
    part = RIGHTS.read_text().split("\n### Rights\n")[1].split("\n#")[0]
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in part.splitlines() if line[:3] == "| `"]
    less = {
        "consume or produce": ["nobody"],
        "admin of the tenant": ["nobody", "consume", "produce"],
        "super-user": ["nobody", "consume", "produce", "tenant"],
    }
    enough = {"consume or produce": ["consume", "produce"], "admin of the tenant": ["tenant"], "super-user": ["admin"]}
    tried = 0
    for calls, right, *_ in rows:
        for call in calls.replace("`", "").split(", "):
            method, path = call.split() if " " in call else ("GET", call)
            path = (
                path.replace("/T/N/X", f"/{NAMESPACE}/orders")
                .replace("/T/N", f"/{NAMESPACE}")
                .replace("/TENANT", "/public")
            )
            path = path.replace("/ID1/ID2", "/98/99").replace("/ID", "/99").replace("/CLUSTER", "/standalone")
            said = {role: exchange_as(secured, role)(method, path) for role in less[right] + enough[right]}
            # A split of a segment that is none is refused as such by a 500.
            assert {said[role] for role in less[right]} <= {401, 403}, (call, said)
            assert {said[role] for role in enough[right]} <= {200, 204, 500}, (call, said)
            tried += 1
    assert tried >= 12


@pytest.fixture
def provider(secured):
    """An identity provider whose tokens the broker believes by its public key; `role` is what they are of."""
    with providing() as one:
        one.tokens = [secured.token()] * 20
        yield one


def settings_of(secured, folder, kafka, **controller):
    file = folder / "settings.toml"
    lines = "".join(f'{name} = "{value}"\n' for name, value in controller.items())
    file.write_text(
        f'[kafka]\nbootstrap = "{kafka.connection.bootstrap}"\n[lake]\npath = "{folder}/lake"\n'
        f'[controller]\nurl = "{secured.admin_url}"\nurl_ca = "{secured.tls.certificate}"\n{lines}'
        f'[collect]\nnamespaces = ["{NAMESPACE}"]\nfolder = "{folder}/collect"\n[executor]\nmode = "act"\n'
    )
    return file


def anabranch(file, *words, token=None):
    """A command that is started, with a token in its environment."""
    given = {**os.environ, **({"ANABRANCH_CONTROLLER_TOKEN": token} if token else {})}
    command = [sys.executable, "-m", "anabranch", "--config", str(file), *words]
    return subprocess.Popen(command, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def collected(file, token=None):
    """How `collect pulsar --once` ends: exit code, status, log."""
    out, err = (one := anabranch(file, "collect", "pulsar", "--once", "--output", "json", token=token)).communicate(
        timeout=90
    )
    return one.returncode, json.loads(out), err


@pytest.mark.soak
@pytest.mark.pulsar
@pytest.mark.broker
def test_secured_cluster_collected_by_either_login(secured, provider, tmp_path, broker):
    """Logs in by a token and by client credentials."""
    key = tmp_path / "key.json"
    key.write_text(provider.key())
    for credentials, token in (({}, secured.token()), ({"oauth2_key": key}, None)):
        code, status, log = collected(settings_of(secured, tmp_path, broker, **credentials), token)
        assert (code, status["troubles"], status["topics"]) == (0, [], 1), (status, log)
        assert [one["answers"] for one in status["brokers"]] == [True]
    assert len(provider.asked) == 1


@pytest.mark.soak
@pytest.mark.pulsar
@pytest.mark.broker
def test_unauthorized_collector_names_refused_call(secured, provider, tmp_path, broker):
    key = tmp_path / "key.json"
    key.write_text(provider.key())
    provider.tokens = [secured.token("consume")] * 20
    for token, credentials, why in (
        ("wrong", {}, "401 Failed to authentication token"),
        (secured.token("consume"), {}, "401 Unauthorized to"),
        (None, {"oauth2_key": key}, "401 Unauthorized to"),
    ):
        code, status, _ = collected(settings_of(secured, tmp_path, broker, **credentials), token)
        assert code == 1
        assert any("brokers" in trouble and why in trouble for trouble in status["troubles"]), status["troubles"]
    # A refusal for lack of a right is no reason to ask the provider each time.
    assert len(provider.asked) == 2


@pytest.mark.soak
@pytest.mark.pulsar
@pytest.mark.broker
def test_executor_waits_until_its_role_may_act(secured, provider, tmp_path, broker):
    key, house = tmp_path / "key.json", str(tmp_path / "lake")
    key.write_text(provider.key())
    believed = client_context(TlsFiles(ca=secured.tls.certificate))
    topics = ScalableTopics(
        Transport(secured.admin_url, secured.token(), user_agent="test", timeout_seconds=20, tls=believed)
    )
    create_lake(house)
    before = topics.layout(TOPIC).value
    split = orders.decision(before, before.active[-1].segment_id, topic=TOPIC)
    orders.commit(house, [orders.row(split)])

    def statuses():
        return sorted(read_columns(house, OUTCOMES, ("status",))["status"].to_pylist())

    def log_of(file, until, token=None):
        with anabranch(file, "executor", token=token) as process:
            lines = []
            reader = threading.Thread(target=lambda: lines.extend(iter(process.stderr.readline, "")))
            reader.start()
            try:
                wait_until(lambda: until(lines), 60)
            finally:
                process.terminate()
                reader.join(20)
        return lines

    refused = log_of(
        settings_of(secured, tmp_path, broker),
        lambda lines: any("requires super-user access" in line for line in lines),
        secured.token("consume"),
    )
    assert any("401 This operation requires super-user access" in line for line in refused), refused
    assert set(statuses()) == {"intent"}
    log_of(settings_of(secured, tmp_path, broker, oauth2_key=key), lambda _: "applied" in statuses())
    assert topics.layout(TOPIC).value.epoch == before.epoch + 1


@pytest.mark.pulsar
@pytest.mark.soak
def test_invalid_setting_reported_with_log_end(tmp_path, pulsar_jars):
    wrong = StandalonePulsar(tmp_path, pulsar_jars, settings={"managedLedgerDefaultEnsembleSize": "many"})
    with pytest.raises(SetupError, match=r"Pulsar did not start; the end of .*pulsar\.log"):
        wrong.start()
    assert wrong.process.poll() is not None
