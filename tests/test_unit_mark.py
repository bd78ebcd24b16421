"""The mark `unit` tells the truth: a test that has it and starts something fails."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.process

HOME = Path(__file__).resolve().parents[1]
TESTS = """
import socket
import subprocess
import sys

import pytest

def start():
    subprocess.run([sys.executable, "-c", ""])

def test_pure():
    pass

def test_that_starts_a_process():
    start()

def test_that_serves():
    with socket.create_server(("127.0.0.1", 0)):
        pass

@pytest.mark.process
def test_that_is_marked():
    start()

def test_that_asks_for_a_server(kafka):
    start()

@pytest.fixture
def kafka():
    start()
"""


@pytest.mark.parametrize(
    ("chosen", "outcomes"), [((), {"passed": 3, "failed": 2}), (("-m", "unit"), {"passed": 1, "failed": 2})]
)
def test_test_starting_processes_must_be_marked(pytester, monkeypatch, chosen, outcomes):
    monkeypatch.setenv("PYTHONPATH", str(HOME))
    pytester.makeconftest("from tests.conftest import *")
    pytester.makepyfile(TESTS)
    done = pytester.runpytest_subprocess(*chosen)
    assert {kind: n for kind, n in done.parseoutcomes().items() if kind in ("passed", "failed")} == outcomes
    assert "give it a mark of what it needs" in done.stdout.str()
