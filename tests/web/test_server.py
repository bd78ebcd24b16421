"""The page as a process: what it says at its start, and that it ends when told."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from itertools import islice

import httpx
import pytest
from click.testing import CliRunner

from anabranch.auth.tokens import remove_token
from anabranch.cli.main import cli
from tests.local.lake import layout_event, layout_json, write
from tests.runtime.listener.edges import running
from tests.waiting import wait_until

pytestmark = pytest.mark.process


def started(tmp_path, settings=""):
    file = tmp_path / "settings.toml"
    file.write_text(f'[lake]\npath = "{tmp_path / "lake"}"\n{settings}')
    command = [sys.executable, "-m", "anabranch", "--home", str(tmp_path), "-c", str(file), "web", "--port", "0"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_server_tells_address_and_changes_and_ends(tmp_path):
    """The server ends with pages open."""
    with started(tmp_path) as process:
        try:
            address = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline()).group()
            text = httpx.get(address, timeout=180).text
            assert "No topic" in text or "being read" in text
            with httpx.stream("GET", f"{address}/live", timeout=180) as live:
                lines = live.iter_lines()
                assert next(lines) == ": here"
                write(str(tmp_path / "lake"), layout_event(layout_json((0, 0, 0xFFFF)), 0))
                while next(lines) != "event: changed":
                    pass
                wait_until(lambda: "orders" in httpx.get(address, timeout=180).text, 30)
                process.send_signal(signal.SIGTERM)
                assert process.wait(20) == 0
        finally:
            process.kill()


def test_live_stream_ends_with_its_token(tmp_path):
    with running("page", tmp_path) as edge:
        headers = {"authorization": f"Bearer {edge.token}"}
        with httpx.stream("GET", f"http://127.0.0.1:{edge.port}/live", headers=headers, timeout=180) as live:
            lines = live.iter_lines()
            assert next(lines) == ": here"
            remove_token(tmp_path / "tokens", "ann")
            write(str(tmp_path / "lake"), layout_event(layout_json((0, 0, 0xFFFF)), 0))
            # At most the one event that was waited for before; an open stream has a line every 15 seconds.
            assert len(list(islice(lines, 6))) < 6


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ('[web]\nhost = "0.0.0.0"\n', "is not a loopback address and needs tokens"),
        ('[web]\nnames = ["ops.example.org"]\n', "is not a loopback address and needs tokens"),
        ('[web]\nopen = true\nhost = "0.0.0.0"\n', "and leave out open"),
        ('[controller]\ntokens_file = "none"\n', "cannot read the tokens in"),
        ('[web]\ntokens_file = "none"\n', "cannot read the tokens in"),
        ('[web]\nhost = "203.0.113.1"\n[controller]\ntokens_file = "none"\n', "cannot read the tokens in"),
    ],
)
def test_a_wrong_set_up_is_one_line_with_what_to_do(tmp_path, settings, words):
    file = tmp_path / "settings.toml"
    file.write_text(f'[lake]\npath = "{tmp_path / "lake"}"\n{settings}')
    run = CliRunner().invoke(cli, ["--home", str(tmp_path), "-c", str(file), "web", "--port", "0"])
    assert run.exit_code in (1, 2)
    assert words in run.output.splitlines()[-1]


def test_process_without_its_certificate_ends_with_one_line(tmp_path):
    with started(tmp_path, '[web]\ncertificate = "none.pem"\nkey = "none.pem"\n') as process:
        output, _ = process.communicate(timeout=180)
    assert process.returncode in (1, 2)
    assert "[web] TLS: " in output.splitlines()[-1]
