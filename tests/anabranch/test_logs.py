"""Logs of the long-running parts: one JSON object a line, or text."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

import pytest

from anabranch.logs import JsonLines

ROOT = Path(__file__).parents[2]
AT = 1_763_660_000.25


def line_of(message: str, *arguments: object, error: BaseException | None = None, **extra: object) -> dict:
    record = logging.LogRecord(
        "streaming.sink", logging.WARNING, "sink.py", 1, message, arguments,
        (type(error), error, error.__traceback__) if error else None,
    )  # fmt: skip
    record.created = AT
    record.__dict__.update(extra)
    text = JsonLines("stream").format(record)
    assert "\n" not in text
    return json.loads(text)


def test_a_line_is_one_json_object_with_these_fields():
    line = line_of('a "quoted" message\nof two lines, %d %s', 7, "ü")
    ts = datetime.fromtimestamp(AT, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.250Z")
    assert line == {
        "ts": ts, "level": "WARNING", "part": "stream", "logger": "streaming.sink",
        "message": 'a "quoted" message\nof two lines, 7 ü',
    }  # fmt: skip


def test_a_line_about_a_batch_has_its_number_and_one_about_an_error_its_traceback():
    assert line_of("written", batch_id=12)["batch_id"] == 12
    try:
        raise ValueError("broken")
    except ValueError as error:
        line = line_of("not written", error=error)
    assert line["error"].startswith("Traceback")
    assert line["error"].endswith("ValueError: broken")


def logged(*log_format: str) -> str:
    """What a part writes to stderr when it logs a line of its own, and its HTTP client the address that it called."""
    program = (
        "import logging, sys; from anabranch.context import Context\n"
        "Context(log_format=(*sys.argv[1:], None)[0]).start_logging('executor')\n"
        "logging.getLogger('one').info('hello')\n"
        "logging.getLogger('httpx').info('GET https://host/?token=s3cret')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *log_format], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    return done.stderr


@pytest.mark.process
def test_the_option_wins_over_the_settings_and_no_address_that_was_called_is_in_a_line():
    (line,) = logged("json").splitlines()
    assert {**json.loads(line), "ts": ""} == {
        "ts": "", "level": "INFO", "part": "executor", "logger": "one", "message": "hello",
    }  # fmt: skip


@pytest.mark.process
@pytest.mark.parametrize("options", [(), ("text",)])
def test_without_it_lines_are_text(options):
    (line,) = logged(*options).splitlines()
    assert line.endswith(" INFO executor one: hello")
