"""What is warned of at the start: whatever leaves this machine in clear text, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.exposure import PARTS, exposures
from schemas.settings import load_settings

HOME = Path(__file__).parents[2]
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
            [part for part in PARTS if part != "web"],
            "security_protocol",
        ),
        ('[web]\nhost = "0.0.0.0"\n', ["web"], "certificate and key"),
        ('[controller]\nhost = "0.0.0.0"\n', ["controller"], "certificate and key"),
        ('[controller]\nmetadata = "zk://z1:2181"\n', ["controller"], "zks://"),
        ('[controller]\nurl = "http://c:8080"\n', ["executor", "traffic", "collect"], "https address"),
        ('[controller]\nnodes = ["http://c:8080"]\n', ["executor", "traffic", "collect"], "nodes to its https address"),
    ],
)
def test_each_way_out_in_clear_text_is_one_line_that_says_what_to_set(tmp_path, text, parts, words):
    given = {"ANABRANCH_CONTROLLER_METADATA_AUTH": "me:s3cret"}
    for part in PARTS:
        lines = said(tmp_path, text, part, **given)
        assert len(lines) == (part in parts), (part, lines)
        assert all(words in line and "without TLS" in line and "s3cret" not in line for line in lines)


def test_a_zookeeper_that_nobody_logs_in_to_is_warned_of(tmp_path):
    (line,) = said(tmp_path, ENCRYPTED, "controller")
    assert "ANABRANCH_CONTROLLER_METADATA_AUTH" in line
