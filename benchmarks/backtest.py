"""Backtest of policies on a large history: topics that split and merge again and again (`benchmarks.history`).

`python -m benchmarks.backtest --topics 1000 --days 30 --policies 5 --processes 2` is the large size; the default is
small. With `--budget 48` also the search of `anabranch whatif suggest`. Prints loads read, topic-hours simulated by CPU
second (of all processes), and the peak of memory.
"""

import resource
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from anabranch.simulation.backtest.policies import with_settings
from anabranch.simulation.backtest.reading import History, open_history
from anabranch.simulation.backtest.running import backtest
from anabranch.simulation.backtest.suggesting import split_in_time, suggest
from anabranch.simulation.backtest.trying import open_trials
from benchmarks.history import TopicDay, write_history
from benchmarks.record import machine_now, print_row
from engine.autoscale.topics import ConfiguredPolicy
from schemas.tables.rows import SEGMENT_LOAD

_DEFAULT = ConfiguredPolicy("default", None)


@click.command()
@click.option("--topics", default=50, show_default=True)
@click.option("--days", default=2, show_default=True)
@click.option("--policies", default=5, show_default=True, help="The one that ran among them.")
@click.option("--processes", default=1, show_default=True)
@click.option("--budget", default=0, show_default=True, help="Policies that `suggest` tries; 0: it is not measured.")
@click.option("--scratch", help="Folder for the lake and for temporary files.")
@click.option("--quick", is_flag=True, help="Ten topics, a day.")
def main(topics: int, days: int, policies: int, processes: int, budget: int, scratch: str | None, quick: bool) -> None:
    """Measures and prints."""
    topics, days = (10, 1) if quick else (topics, days)
    print_row(machine_now())
    with TemporaryDirectory(dir=scratch) as folder:
        loads = write_history(f"{folder}/lake", TopicDay(24.0 * days, 1).run(), topics)[SEGMENT_LOAD.name]
        wall, cpu = time.perf_counter(), _cpu()
        history = open_history(f"{folder}/lake", Path(folder) / "loads", None, None, None, _DEFAULT)
        print_row({"loads": loads, "read, s": time.perf_counter() - wall, "read, CPU s": _cpu() - cpu})
        result = backtest(history, {f"p{number}": _policy(number) for number in range(1, policies)}, processes)
        wall, cpu = time.perf_counter() - wall, _cpu() - cpu
        if budget:
            _measure_suggest(history, budget, processes)
    hours = result.topic_hours * policies
    own, children = (
        resource.getrusage(who).ru_maxrss // 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    print_row({"topic-hours": hours, "all, s": wall, "all, CPU s": cpu, "topic-hours a CPU s": hours / cpu})
    print_row({"splits": ", ".join(f"{result.totals(name)['splits']:.0f}" for name in result.topics[0].assumed)})
    print_row({"MB": own, "MB of the largest other process": children})


def _measure_suggest(history: History, budget: int, processes: int) -> None:
    """Search as `anabranch whatif suggest` does; print its time, and the policies that were tried on all topics."""
    wall, cpu = time.perf_counter(), _cpu()
    searched, unseen = split_in_time(history) or (history, None)
    with open_trials(searched, unseen, processes) as trials:
        suggestion = suggest(trials, budget, None, 1, validate=unseen is not None)
    row = {"suggest, policies": suggestion.policies, "on all topics": len(suggestion.tried)}
    print_row(row | {"suggest, s": time.perf_counter() - wall, "suggest, CPU s": _cpu() - cpu})


def _policy(number: int) -> ConfiguredPolicy:
    settings = {
        "splitMsgRateInThreshold": 10_000.0 - 1_000 * number,
        "mergeMsgRateInThreshold": 1_000.0 - 100 * number,
        "mergeWindowSeconds": 300 * number,
        "mergeCooldownSeconds": 120 * number,
    }
    return with_settings(_DEFAULT, settings)


def _cpu() -> float:
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


if __name__ == "__main__":
    main()
