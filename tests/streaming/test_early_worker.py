"""The Python that Spark starts first connects before it imports anything that takes time."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys

import pytest

from streaming.job.early_worker import SPARKS_WORKER, write_launcher
from tests.streaming.jobs import HOME

pytestmark = pytest.mark.process

BLOCKED = (
    "import os, sys\nprint('importing', flush=True)\nsys.stdin.read(1)\nprint('imported', flush=True)\nos._exit(7)\n"
)
"""A `pyspark` whose import waits for a byte."""


def start(launcher, module, tmp_path, **environment):
    return subprocess.Popen(
        [launcher, "-m", module],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}/fake:{HOME}", **environment},
    )


@pytest.fixture
def launcher(tmp_path):
    package = tmp_path / "fake" / "pyspark"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(BLOCKED)
    return write_launcher(str(tmp_path), sys.executable)


def test_worker_connects_before_it_imports(launcher, tmp_path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.settimeout(60)
        listener.bind(path := f"{tmp_path}/x.sock")
        listener.listen()
        process = start(launcher, SPARKS_WORKER, tmp_path, PYTHON_WORKER_FACTORY_SOCK_PATH=path)
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as file:
            assert struct.unpack(">i", file.read(4)) == (process.pid,)
            # The import has not ended, and cannot before this.
            assert process.poll() is None
            output, _ = process.communicate("x", 60)
        assert output.split() == ["importing", "imported"]
        assert process.returncode == 7


@pytest.mark.parametrize(
    ("module", "environment"),
    [(SPARKS_WORKER, {}), ("pyspark.daemon", {"PYTHON_WORKER_FACTORY_SOCK_PATH": "/nowhere"})],
    ids=["without-unix-sockets", "another-module"],
)
def test_launcher_starts_what_spark_asks_for(launcher, tmp_path, module, environment):
    process = start(launcher, module, tmp_path, **environment)
    output, _ = process.communicate("x", 60)
    assert output.split() == ["importing", "imported"]


def test_launcher_is_plain_python_without_exec(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert write_launcher(str(tmp_path), "/usr/bin/python9") == "/usr/bin/python9"
