"""The walks of README and guides that need servers, word for word: Pulsar, Kafka, job and executor at work.

What stands for something of the reader's own is put in: ports, and times that a test does not wait for.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
from deltalake import DeltaTable

from tests.docs.guides import HOME, Block, blocks
from tests.docs.walking import Reader, reader
from tests.local.running import Run, end
from tests.local.test_install import NO_SOURCES
from tests.waiting import wait_until

pytestmark = [pytest.mark.local_run, pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(900)]

HERE = "tests/local/test_guides.py"


def block_of(page: str, beginning: str) -> Block:
    """Return the block of a page that this test runs and that begins so."""
    return next(one for one in blocks(page) if one.run_by == HERE and one.commands[0].startswith(beginning))


MAKES = block_of("README.md", "make run ").commands
RUNS = block_of("README.md", "make run ARGS").commands


def check_run(walk: Reader, line: str, folder: Path) -> None:
    """Start a local run, open its page, and end it if it does not end by itself."""
    log = walk.home / "out.log"
    with open(log, "wb") as output:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {line}"],
            cwd=folder,
            env=walk.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        wait_until(lambda: "running; logs in" in log.read_text() or process.poll() is not None, 400, 0.2)
        assert process.poll() is None, log.read_text()[-3000:]
        address = re.search(r"to look at: (\S+)", log.read_text())
        assert address
        with urlopen(address[1], timeout=30) as page:
            assert page.status == 200
        if "--for" not in line:
            os.killpg(process.pid, signal.SIGINT)
        # Make ends with the signal that interrupts it, or with 2 where it was told to ignore that.
        is_interrupted = "--for" not in line and line.startswith("make")
        assert process.wait(300) in ({0, 2, -signal.SIGINT} if is_interrupted else {0}), log.read_text()
        assert "Traceback" not in log.read_text()
    finally:
        if process.poll() is None:
            process.kill()


@pytest.mark.soak
@pytest.mark.parametrize("line", [RUNS[0], *(pytest.param(line, marks=pytest.mark.soak) for line in RUNS[1:])])
def test_readme_run_starts_and_ends_as_written(line: str, tmp_path: Path, jars, request):
    if "--pulsar" in line:
        request.getfixturevalue("pulsar_jars")
    report = tmp_path / "report.json"
    line = line.partition("  #")[0].replace("--for 120s", "--for 5s").replace(report.name, str(report))
    check_run(Reader(tmp_path, {}), line, HOME)
    assert "--report" not in line or json.loads(report.read_text())["integrity"]["ok"]


@pytest.mark.soak
@pytest.mark.parametrize("line", MAKES)
def test_readme_make_runs_as_written(line: str, tmp_path: Path, jars):
    walk = Reader(tmp_path, {})
    if line.startswith("make run"):
        check_run(walk, line.partition("  #")[0], HOME)
        return
    # Of all tests one file: this test is one of them.
    walk.environment["ARGS"] = "-k test_glossary"
    walk.home = HOME
    assert "passed" in walk.follow(line)


@pytest.mark.soak
def test_installed_wheel_runs_as_written(tmp_path: Path, jars):
    clone = tmp_path / "clone"
    shutil.copytree(HOME, clone, ignore=NO_SOURCES)
    (clone / ".venv").symlink_to(HOME / ".venv")
    walk = Reader(tmp_path, {})
    binaries = tmp_path / "bin"
    binaries.mkdir()
    pipx = f'#!/bin/sh\nexec {sys.executable} -m uv tool run "pipx[uv]" "$@"\n'
    (binaries / "pipx").write_text(pipx)
    (binaries / "pipx").chmod(0o755)
    walk.environment |= {
        "PATH": f"{binaries}:/usr/local/bin:/usr/bin:/bin",
        "PIPX_HOME": str(tmp_path / "pipx"),
        "PIPX_BIN_DIR": str(binaries),
        "PIPX_DEFAULT_PYTHON": sys.executable,
    }
    del walk.environment["PYTHONPATH"], walk.environment["ANABRANCH_HOME"]
    walk.home = clone
    build, install, run = block_of("README.md", ".venv/bin/uv build").commands
    walk.follow(build)
    walk.follow(install)
    walk.home = tmp_path / "here"
    walk.home.mkdir()
    check_run(walk, run.partition("  #")[0], walk.home)
    assert (walk.home / "var").is_dir()


@pytest.mark.soak
def test_checkpoint_is_rebuilt_as_written(tmp_path: Path, jars):
    (tmp_path / "elsewhere").mkdir()
    run = Run(tmp_path, "--demand", "generated", "--without", "page")
    try:
        wait_until(lambda: run.count("batches") > 3, 300, 0.5)
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(120) == 0, run.output[-3000:]
    finally:
        end(run)
    settings = (HOME / "conf/demonstration.toml").read_text()
    (tmp_path / "anabranch.toml").write_text(settings + '[lake]\npath = "lake"\n')
    with reader(tmp_path, {"/elsewhere": f"{tmp_path}/elsewhere", "TOPIC": "acme/shop/orders"}) as walk:
        walk.follow(f"python -m anabranch.local.kafka {tmp_path}/kafka --port 0")
        walk.follow("export ANABRANCH_KAFKA_BOOTSTRAP=…")
        before = run.count("batches")
        for line in block_of("docs/operations.md", "mv checkpoints/stream").commands:
            walk.follow(line)
            if "serve stream" in line:
                wait_until(lambda: run.count("batches") > before, 120, 0.5)
        assert len({row["generation"] for row in run.rows("batches", "generation")}) == 2


@pytest.mark.soak
def test_pulsar_is_shadowed_as_written(tmp_path: Path, jars, pulsar_jars):
    events = tmp_path / "var/beside/lake/events"

    def is_on_record() -> bool:
        return DeltaTable.is_deltatable(str(events)) and bool(DeltaTable(events).to_pyarrow_table().num_rows)

    with reader(tmp_path, {"=true     # or": "=true --port 0     # or", "local.kafka": "local.kafka --port 0"}) as walk:
        for line in block_of("docs/pulsar.md", "python -m tests.harness.pulsar").commands:
            if "shadow report" in line:
                wait_until(is_on_record, 240, 0.5)
            walk.follow(line, deadline_s=240 if "shadow report" in line else 0)


@pytest.mark.soak
def test_bundles_are_shadowed_as_written(tmp_path: Path, jars, pulsar_jars, pulsar_lts_jars):
    with reader(tmp_path, {"local.kafka": "local.kafka --port 0"}) as walk:
        for line in block_of("docs/bundles.md", "python -m tests.harness.pulsar.bundled").commands:
            walk.follow(line)
        # A cycle is due each minute.
        walk.follow("anabranch bundles explain test", deadline_s=200)
