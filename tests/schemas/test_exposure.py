"""What is warned of at the start: whatever leaves this machine in clear text, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from schemas.settings.exposure import PARTS, exposures
from schemas.settings.root import load_settings

HOME = Path(__file__).parents[2]
CALLERS = ["executor", "traffic", "collect", "web"]
OPENS_CLIENT = re.compile(
    r"\b(?:Transport|controller_transport|KazooClient|AdminInterface)\(|\.kafka_connection\(|\bcopy_metadata\("
)
WARNS = re.compile(r"\.start_logging\(|\.warn\(|\burl_exposures\(")
ENCRYPTED = (
    '[kafka]\nbootstrap = "k1:9093,k2:9093"\nsecurity_protocol = "SSL"\n[controller]\nhost = "0.0.0.0"\n'
    'certificate = "own.pem"\nkey = "own.key"\nurl = "https://c:8443"\nmetadata = "zks://z1:2281,z2:2281"\n'
)


def said(folder: Path, text: str, part: str, **environment: str) -> list[str]:
    file = folder / "over.toml"
    file.write_text(text)
    return exposures(load_settings([file], HOME, environment), part)


def test_on_loopback_nothing_is_warned_of(tmp_path):
    here = (
        '[kafka]\nbootstrap = "127.0.0.1:9092,[::1]:9092,localhost:9092"\n[controller]\nmetadata = "zk://[::1]:2181"\n'
    )
    assert [said(tmp_path, text, part) for part in PARTS for text in ("", here)] == [[]] * 2 * len(PARTS)


def test_what_is_encrypted_is_not_warned_of(tmp_path):
    given = {"ANABRANCH_CONTROLLER_METADATA_AUTH": "me:s3cret"}
    assert [said(tmp_path, ENCRYPTED, part, **given) for part in PARTS] == [[]] * len(PARTS)


@pytest.mark.parametrize(
    ("text", "parts", "words"),
    [
        (
            '[kafka]\nbootstrap = "localhost:9092,k2:9092"\n',
            ["controller", "stream", "executor", "traffic", "collect"],
            "security_protocol",
        ),
        ('[web]\nhost = "0.0.0.0"\n', ["web"], "certificate and key"),
        ('[controller]\nhost = "0.0.0.0"\n', ["controller"], "certificate and key"),
        ('[controller]\nmetadata = "zk://z1:2181"\n', ["controller", "controller copy"], "zks://"),
        ('[bookies]\nmetadata = "zk://z1:2181"\n', ["bookies"], "zks://"),
        ('[controller]\nurl = "http://c:8080"\n', CALLERS, "https address"),
        ('[controller]\nnodes = ["http://c:8080"]\n', CALLERS, "nodes to its https address"),
    ],
)
def test_each_clear_text_listener_named_with_setting(tmp_path, text, parts, words):
    given = {"ANABRANCH_CONTROLLER_METADATA_AUTH": "me:s3cret", "ANABRANCH_BOOKIES_METADATA_AUTH": "me:s3cret"}
    for part in PARTS:
        lines = said(tmp_path, text, part, **given)
        assert len(lines) == (part in parts), (part, lines)
        assert all(words in line and "without TLS" in line and "s3cret" not in line for line in lines)


def test_zookeeper_without_login_is_warned_of(tmp_path):
    (line,) = said(tmp_path, ENCRYPTED, "controller")
    assert "ANABRANCH_CONTROLLER_METADATA_AUTH" in line


def test_every_command_that_opens_a_client_warns():
    quiet = {
        str(file.relative_to(HOME))
        for file in (HOME / "anabranch" / "cli").rglob("*.py")
        if OPENS_CLIENT.search(text := file.read_text()) and not WARNS.search(text)
    }
    # Opened for commands that warn: `connection`, those of the store, and `collect` (the test below).
    assert quiet == {f"anabranch/cli/{name}.py" for name in ("admin_client", "metadata_client", "published_loads")}


@pytest.mark.parametrize(("way", "lines"), [("rest", 0), ("published", 1)])
def test_clear_text_load_store_is_warned_of(tmp_path, way, lines):
    text = ENCRYPTED + f'[bookies]\nmetadata = "zk://z1:2181"\n[bundles]\nload_reports = "{way}"\n'
    warned = said(tmp_path, text, "collect")
    assert len(warned) == lines
    assert all("ZooKeeper at z1:2181 is spoken to without TLS" in line for line in warned)


def test_secret_that_others_may_read_is_warned_of(tmp_path):
    for mode, count in ((0o644, 1), (0o660, 1), (0o640, 0), (0o600, 0)):
        key = tmp_path / "own.key"
        key.touch()
        key.chmod(mode)
        for section in (
            '[web]\ncertificate = "c.pem"\nkey',
            "[controller]\noauth2_key",
            "[bookies]\nclient_properties",
        ):
            lines = said(tmp_path, f'{section} = "{key}"\n', "web")
            assert len(lines) == count, (section, lines)
            assert all(f"chmod 600 {key}" in line for line in lines)


def test_short_token_for_others_is_warned_of(tmp_path):
    text = '[controller]\nhost = "0.0.0.0"\ncertificate = "c.pem"\nkey = "c.key"\n'
    assert said(tmp_path, text, "controller", ANABRANCH_CONTROLLER_TOKEN="0123456789abcdef") == []
    [line] = said(tmp_path, text, "controller", ANABRANCH_CONTROLLER_TOKEN="s3cret")
    assert "6 characters" in line
    assert "s3cret" not in line


@pytest.mark.parametrize(("part", "section"), [("controller", "controller"), ("web", "web")])
def test_short_token_behind_a_proxy_is_warned_of(tmp_path, part, section):
    text = f'[{section}]\nnames = ["ops.example.org"]\n'
    [line] = said(tmp_path, text, part, ANABRANCH_CONTROLLER_TOKEN="s3cret")
    assert "6 characters" in line
    assert said(tmp_path, f'{text}tokens_file = "tokens"\n', part, ANABRANCH_CONTROLLER_TOKEN="s3cret") == []
    assert said(tmp_path, "", part, ANABRANCH_CONTROLLER_TOKEN="s3cret") == []
