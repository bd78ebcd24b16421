"""What stands in the conftest of all tests: the mark `unit` tells the truth, and what a group shares ends with it."""

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


SHARING = """
import pytest

ended = []

@pytest.fixture(scope="session")
def broker():
    yield
    ended.append(True)

def test_of_group(broker):
    assert not ended

def test_of_next_group():
    assert ended
"""


def test_shared_server_ends_with_its_group(pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(HOME))
    pytester.makeconftest("from tests.conftest import *")
    pytester.makepyfile(SHARING)
    done = pytester.runpytest_subprocess("--numprocesses", "1", "--dist", "loadgroup")
    assert done.parseoutcomes()["passed"] == 2
