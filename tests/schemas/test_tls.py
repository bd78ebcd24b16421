"""TLS contexts: who is believed, and that renewed files are those of the next connection. Handshakes in memory."""

from __future__ import annotations

import logging
import shutil
import ssl
from pathlib import Path

import pytest

from schemas.tls import TlsError, TlsFiles, client_context, listener_context
from tests import tls

TRUSTING = TlsFiles(ca=tls.CA)


def files(name: str, ca: Path | None = None) -> TlsFiles:
    return TlsFiles(tls.certificate(name), tls.key(name), ca)


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, host: str = "localhost") -> tuple[str, str | None]:
    """The names of the server's and the client's certificates, as the other end has seen them; raises `SSLError`."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(back, there, server_hostname=host), server.wrap_bio(there, back, server_side=True)]
    for _ in range(5):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return name_of(ends[0].getpeercert()), name_of(ends[1].getpeercert())


def name_of(certificate: dict | None) -> str | None:
    return dict(part[0] for part in certificate["subject"])["commonName"] if certificate else None


def test_server_trusted_by_authority_and_name():
    server, client = listener_context(files("server")), client_context(TRUSTING)
    assert shake_hands(server, client) == ("server", None)
    assert shake_hands(server, client, "127.0.0.1") == ("server", None)
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for 'elsewhere'"):
        shake_hands(server, client, "elsewhere")
    with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"):
        shake_hands(listener_context(files("stranger")), client)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server, client_context(TlsFiles()))


def test_client_authority_requires_certificates():
    server = listener_context(files("server", tls.CA))
    assert shake_hands(server, client_context(files("client", tls.CA))) == ("server", "client")
    with pytest.raises(ssl.SSLError, match="peer did not return a certificate"):
        shake_hands(server, client_context(TRUSTING))
    with pytest.raises(ssl.SSLError, match="certificate verify failed"):
        shake_hands(server, client_context(files("stranger", tls.CA)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_nothing_older_than_tls_1_2_is_spoken():
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.load_verify_locations(tls.CA)
    old.set_ciphers("ALL:@SECLEVEL=0")
    old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError, match=r"unsupported protocol|version"):
        shake_hands(listener_context(files("server")), old)


def lines_of(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What is logged about TLS: servers of other tests may have something to say meanwhile."""
    return [line for line in caplog.records if line.name == "schemas.tls"]


def test_renewed_certificate_used_by_next_connection(tmp_path, caplog):
    own = TlsFiles(tmp_path / "own.pem", tmp_path / "own.key", tls.CA)
    put(own, "server")
    server, client = (
        listener_context(own),
        client_context(TlsFiles(tls.certificate("client"), tls.key("client"), tls.CA)),
    )
    assert shake_hands(server, client)[0] == "server"
    put(own, "renewed")
    assert shake_hands(server, client)[0] == "renewed"
    put(own, "server")
    assert shake_hands(server, client)[0] == "server"
    assert not lines_of(caplog)


@pytest.mark.parametrize("end", ["listener", "client"])
def test_broken_file_keeps_certificate_and_warns_once(tmp_path, caplog, end):
    own = TlsFiles(tmp_path / "own.pem", tmp_path / "own.key", tls.CA)
    put(own, "server")
    ours = (listener_context if end == "listener" else client_context)(own)
    other = (client_context if end == "listener" else listener_context)(files("server", tls.CA))
    ends = (ours, other) if end == "listener" else (other, ours)
    shown = 0 if end == "listener" else 1
    for broken in (
        lambda: own.key.write_text("no key"),
        lambda: shutil.copy(tls.key("client"), own.key),
        own.key.unlink,
    ):
        broken()
        caplog.clear()
        assert [shake_hands(*ends)[shown] for _ in range(3)] == ["server"] * 3
        (line,) = lines_of(caplog)
        assert line.levelname == "WARNING"
        assert str(own.key) in line.getMessage()
    put(own, "renewed")
    assert shake_hands(*ends)[shown] == "renewed"


def put(own: TlsFiles, name: str) -> None:
    """As renewals do: new files in the place of the old ones."""
    for source, target in ((tls.certificate(name), own.certificate), (tls.key(name), own.key)):
        fresh = target.with_suffix(".new")
        shutil.copy(source, fresh)
        fresh.replace(target)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (TlsFiles(Path("/nowhere.pem"), tls.key("server")), "/nowhere.pem .*: No such file"),
        (TlsFiles(tls.certificate("server"), tls.key("client")), "server.pem .*client.key"),
        (TlsFiles(ca=tls.key("server")), "cannot use .*server.key"),
    ],
)
def test_files_that_cannot_be_used_are_named(wrong, said):
    with pytest.raises(TlsError, match=said):
        listener_context(wrong)


def test_key_with_password_refused_unasked():
    with pytest.raises(TlsError, match="has a password"):
        listener_context(TlsFiles(tls.certificate("client"), tls.key("client-locked")))
