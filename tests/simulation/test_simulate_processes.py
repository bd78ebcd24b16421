"""Simulations on several processes, and what Ctrl-C leaves of them."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys

import pytest

from anabranch.local.sliced import LabDemand
from anabranch.simulation.topics.run import simulate
from engine.autoscale.topics import ConfiguredPolicy
from schemas.settings.root import load_settings

pytestmark = pytest.mark.process
CLI = [sys.executable, "-c", "from anabranch.cli.main import cli; cli()"]


def test_processes_share_the_topics_and_answer_as_one():
    source = LabDemand(load_settings([], None).traffic, 0.2, 1_767_225_600_000)
    policies = {"default": ConfiguredPolicy("default", None)}
    one, two = (simulate(source, policies, processes=processes)["default"] for processes in (1, 2))
    assert one.segment_ms.sum() > 0
    assert (one.of_topics(), one.series) == (two.of_topics(), two.series)
    assert [column.tolist() for column in one.actions] == [column.tolist() for column in two.actions]


def test_ctrl_c_ends_with_the_topics_that_are_done():
    # Chunks are told in their order, several at once when the first is late: many of them, so that some are left.
    ours, theirs = pty.openpty()
    command = [
        *CLI,
        "simulate",
        "--demand",
        "burst",
        "--policy",
        "default",
        "--topics",
        "30000",
        "--hours",
        "1",
        "--processes",
        "2",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, start_new_session=True, text=True)
    os.close(theirs)
    told = b""
    while not re.search(rb"[1-9][0-9,]* of [0-9,]+ topic-hours", told):
        told += os.read(ours, 1024)
    os.killpg(process.pid, signal.SIGINT)
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 130, told
    assert re.match(r"burst: interrupted, [0-9,]+ of 30,000 topics", text)
    assert "default" in text
