"""Logs of the long-running parts: one JSON object a line, or text."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from anabranch.cli.logs import JsonLines, TextLines, start_logging

ROOT = Path(__file__).parents[2]
AT = 1_763_660_000.25


def line_of(message: str, *arguments: object, error: BaseException | None = None, **extra: object) -> dict:
    record = logging.LogRecord(
        "streaming.sink.sink",
        logging.WARNING,
        "sink.py",
        1,
        message,
        arguments,
        (type(error), error, error.__traceback__) if error else None,
    )
    record.created = AT
    record.__dict__.update(extra)
    text = JsonLines("stream").format(record)
    assert "\n" not in text
    return json.loads(text)


def test_a_line_is_one_json_object_with_these_fields():
    line = line_of('a "quoted" message\nof two lines, %d %s', 7, "ü")
    ts = datetime.fromtimestamp(AT, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.250Z")
    assert line == {
        "ts": ts,
        "level": "WARNING",
        "part": "stream",
        "logger": "streaming.sink.sink",
        "message": 'a "quoted" message\nof two lines, 7 ü',
    }


def test_log_lines_carry_batch_and_traceback():
    assert line_of("written", batch_id=12)["batch_id"] == 12
    try:
        raise ValueError("broken")
    except ValueError as error:
        line = line_of("not written", error=error)
    assert line["error"].startswith("Traceback")
    assert line["error"].endswith("ValueError: broken")


NASTY = "a\nb\r\x1b[31mred\x9b2J\u202egnol\u2066\u2028\x00\x7f\ud800\ufeffü"
"""A line of its own, colours, a cleared screen, text that runs to the left, separators, and half a character."""


@pytest.mark.parametrize("formatter", [TextLines("executor"), JsonLines("executor")], ids=["text", "json"])
def test_hostile_text_cannot_control_terminal(formatter):
    def written(message: str, *arguments: object, **more: Any) -> str:
        line = formatter.format(
            logging.LogRecord("one", logging.INFO, "one.py", 1, message, arguments, more.get("error"))
        )
        assert all(char.isprintable() or char == "\n" for char in line)
        line.encode()
        return line

    for line in (written("topic %s", NASTY), written(NASTY)):
        assert "\n" not in line
        assert line.endswith(("ü", 'ü"}'))
    assert r"a\nb\r" in line
    try:
        raise ValueError(f"{NASTY}\n2026-01-01T00:00:00+0000 INFO executor one: forged")
    except ValueError:
        lines = written("failed", error=sys.exc_info()).split("\n")
    assert all(line.startswith("  | ") for line in lines[1:])
    assert (len(lines) > 1) == isinstance(formatter, TextLines)


def logged(*log_format: str, **variables: str) -> str:
    """What a part writes to stderr when it logs a line of its own, and its HTTP client the address that it called."""
    program = (
        "import logging, sys; from anabranch.cli.context import Context\n"
        "Context(log_format=(*sys.argv[1:], None)[0]).start_logging('executor')\n"
        "logging.getLogger('one').info('hello')\n"
        "logging.getLogger('httpx').info('GET https://host/?token=s3cret')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *log_format],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    return done.stderr


@pytest.mark.process
def test_option_overrides_settings_and_hides_urls():
    """No address that was called is in a log line."""
    (line,) = logged("json").splitlines()
    assert {**json.loads(line), "ts": ""} == {
        "ts": "",
        "level": "INFO",
        "part": "executor",
        "logger": "one",
        "message": "hello",
    }


@pytest.mark.process
@pytest.mark.parametrize("options", [(), ("text",)])
def test_without_it_lines_are_text(options):
    (line,) = logged(*options).splitlines()
    assert line.endswith(" INFO executor one: hello")


@pytest.mark.process
def test_former_settings_are_warned_of_once():
    warning, _ = logged(ANABRANCH_EXECUTOR__RETRY_DELAY_SECONDS="9").splitlines()
    assert warning.endswith("no longer read, remove from the settings: ANABRANCH_EXECUTOR__RETRY_DELAY_SECONDS")


def test_kazoo_requests_not_logged_in_debug(monkeypatch):
    # One of them is the log-in, with its password.
    monkeypatch.setattr(logging.getLogger(), "level", logging.DEBUG)
    monkeypatch.setattr(logging.getLogger("kazoo"), "level", logging.NOTSET)
    start_logging("controller", "debug", "text")
    assert logging.getLogger("kazoo.client").getEffectiveLevel() == logging.INFO
