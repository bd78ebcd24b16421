"""Credentials of `anabranch bookies` go to the ensembles of the settings, whatever the registry names."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from unittest.mock import Mock

import pytest
from click import ClickException
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from anabranch.bookkeeper.metadata import MetadataUnreachable, PulsarMetadata
from anabranch.bookkeeper.registry import RegistryStore
from anabranch.cli.bookies.clusters import Bookies, warn_of_open_node
from decisions.bookkeeper.uris import read_uri
from schemas.settings.root import Settings, load_settings
from tests.waiting import wait_until


@contextmanager
def zookeeper_of_a_stranger() -> Iterator[tuple[int, list[bytes]]]:
    """A port that answers the connect request of ZooKeeper, and what is said there."""
    heard: list[bytes] = []

    def read(connection: socket.socket, size: int) -> bytes:
        found = b""
        while len(found) < size:
            chunk = connection.recv(size - len(found))
            if not chunk:
                raise EOFError
            found += chunk
        return found

    def answer() -> None:
        with suppress(EOFError, OSError):
            connection, _ = listening.accept()
            read(connection, struct.unpack(">i", read(connection, 4))[0])
            body = struct.pack(">iiq", 0, 3_000, 1) + struct.pack(">i", 16) + b"\0" * 16 + b"\0"
            connection.sendall(struct.pack(">i", len(body)) + body)
            while True:
                heard.append(read(connection, struct.unpack(">i", read(connection, 4))[0]))

    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        threading.Thread(target=answer, daemon=True).start()
        yield listening.getsockname()[1], heard


def settings(folder: Path, **bookies: object) -> Settings:
    lines = "\n".join(f"{key} = {value!r}".replace("'", '"') for key, value in bookies.items())
    (folder / "s.toml").write_text(f"[bookies]\n{lines}\n")
    secret = {"ANABRANCH_BOOKIES_METADATA_AUTH": "operator:SECRET"}
    return load_settings([folder / "s.toml"], folder, secret)


@pytest.mark.process
@pytest.mark.parametrize("is_listed", [False, True])
def test_log_in_goes_only_to_listed_ensembles(
    tmp_path: Path, is_listed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with zookeeper_of_a_stranger() as (port, heard), ExitStack() as stack:
        listed = [f"zk://127.0.0.1:{port}"] if is_listed else []
        one = Bookies.__new__(Bookies)
        one.settings = settings(tmp_path, metadata="zk://honest.example:2181", clusters=listed)
        one._ensembles, one._stack = {}, stack

        def ask() -> None:
            with suppress(MetadataUnreachable, ClickException):
                one.ids(f"zk+hierarchical://127.0.0.1:{port}/ledgers")

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        if is_listed:
            wait_until(lambda: any(b"operator:SECRET" in message for message in heard))
        else:
            asking.join(20)
            assert not asking.is_alive()
            assert not any(b"SECRET" in message for message in heard)
            assert "is not one of [bookies] clusters" in capsys.readouterr().err


def test_listed_ensembles_are_found_by_their_members(tmp_path: Path) -> None:
    bookies = settings(
        tmp_path, metadata="zk://Meta-1:2181,meta-2/pulsar", clusters=["zks://b1:2281,b2:2281", "zk://c1"]
    ).bookies
    for uri, is_encrypted in (
        ("zk://meta-2:2181/ledgers", False),
        ("zk://meta-1;meta-2/ledgers", False),
        ("zk://B1:2281/x", True),
        ("zk://c1:2181/ledgers", False),
        ("zk://b1:2181/ledgers", None),
        ("zk://b1:2281;evil:2281/l", None),
        ("zk://evil/ledgers", None),
    ):
        found = bookies.ensemble_of(read_uri(uri).members)
        assert (found.is_encrypted if found else None) == is_encrypted, uri
    with pytest.raises(ValueError, match="clusters"):
        settings(tmp_path, clusters=["b1:2181"])


@pytest.mark.parametrize(("open_node", "warnings"), [("", 0), ("/registry", 1), ("/registry/b", 1)])
def test_open_nodes_of_the_registry_are_warned_of(
    open_node: str, warnings: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def acls_of(path: str) -> Mock:
        acls = OPEN_ACL_UNSAFE if path == open_node else [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE]
        return Mock(get=lambda timeout: (acls, None))

    children = Mock(get=lambda timeout: ["a", "b"])
    client = Mock(get_acls_async=acls_of, get_children_async=lambda path: children)
    warn_of_open_node(RegistryStore(PulsarMetadata(client), "/registry"))
    printed = capsys.readouterr().err
    assert printed.count("made without a log-in") == warnings
    assert f"Warning: {open_node}" in printed or not warnings
