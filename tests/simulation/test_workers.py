"""Worker processes of simulations: their order, and what comes of one that is killed."""

from __future__ import annotations

import os
import signal
from multiprocessing import parent_process

import pytest
from click.testing import CliRunner

from anabranch.cli.main import cli
from anabranch.simulation.backtest.reading import History
from anabranch.simulation.backtest.running import backtest
from anabranch.simulation.topics.shapes import ShapedDemand
from anabranch.simulation.workers import Worker, WorkerLost, in_processes
from engine.autoscale.topics import ConfiguredPolicy

pytestmark = pytest.mark.process


def die():
    assert parent_process() is not None
    os.kill(os.getpid(), signal.SIGKILL)


class DeadlyDemand(ShapedDemand):
    """Ends the worker that begins with the second half of the topics."""

    def layouts(self, indices):
        if indices[0]:
            die()
        return super().layouts(indices)


class DeadlyHistory(History):
    """Ends the worker that reads a part."""

    def part(self, number):
        die()


class Mortal:
    """Subject of a worker that is killed while it works."""

    def name(self):
        return "mortal"

    def fail(self):
        raise LookupError("of the worker")

    def fail_unpicklably(self):
        class Unpicklable(Exception):
            pass

        raise Unpicklable("stays in the worker")

    def die(self):
        die()


def test_worker_killed_at_work_is_an_error():
    with Worker(Mortal) as worker:
        worker.ask("name")
        assert worker.answer() == "mortal"
        worker.ask("fail")
        with pytest.raises(LookupError, match="of the worker"):
            worker.answer()
        worker.ask("fail_unpicklably")
        with pytest.raises(RuntimeError, match="stays in the worker"):
            worker.answer()
        worker.ask("die")
        with pytest.raises(WorkerLost, match=f"process {worker.pid} was killed by signal 9 before its answer"):
            worker.answer()
        with pytest.raises(WorkerLost, match="signal 9"):
            worker.ask("name")


def number_and_process(number):
    if number == 5:
        die()
    return number, os.getpid()


def test_items_are_shared_and_answered_in_order():
    numbers, processes = zip(*in_processes(number_and_process, range(5), 2), strict=True)
    assert numbers == (0, 1, 2, 3, 4)
    assert os.getpid() not in processes


def test_one_item_is_no_work_for_processes():
    assert list(in_processes(number_and_process, [3], 2)) == [(3, os.getpid())]


def test_worker_killed_among_items_ends_them():
    results = in_processes(number_and_process, range(50), 2)
    with pytest.raises(WorkerLost, match="signal 9"):
        list(results)


def test_simulate_ends_when_a_worker_is_killed(monkeypatch):
    monkeypatch.setattr("anabranch.simulation.topics.shapes.ShapedDemand", DeadlyDemand)
    options = ["--demand", "flat", "--topics", "2", "--hours", "1", "--policy", "default", "--processes", "2"]
    result = CliRunner().invoke(cli, ["whatif", "simulate", *options])
    assert result.exit_code == 1
    assert "was killed by signal 9 before its answer" in result.output
    assert "--processes" in result.output


def test_backtest_ends_when_a_worker_is_killed():
    history = DeadlyHistory("", [["a"], ["b"]], 0, 0, 60_000, [], ConfiguredPolicy("default", None))
    with pytest.raises(WorkerLost, match="signal 9"):
        backtest(history, {}, processes=2)
