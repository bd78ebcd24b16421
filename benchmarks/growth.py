"""Growth of cost with topics, segments per topic, reporters and the share of significant samples.

Run as `python -m benchmarks.growth [--quick] [--largest SEGMENTS] [--job]`: prints a table for each, and writes
benchmarks/growth.json. Without `--job` it is the processor time of the packer and the engine in one process, as
`benchmarks.engine` measures them, with first layouts and ticks beside: no Spark, no Kafka. Other work on the machine
makes it last longer, and changes these figures little: the load and the seconds by the clock stand beside them. With
`--job` it is the whole job, as `benchmarks.stream` measures it. Each row has a process of its own. Samples come in
columns, a thousand a message. The largest fleet comes last.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click

from benchmarks import stream
from benchmarks.engine import NOW, EngineCase, Run
from benchmarks.processes import apart, resident_kb
from benchmarks.record import machine_now, print_row, recorded_report, write_report
from schemas.ids import EVERY_TOPIC
from schemas.kafka.messages import TickEvent
from schemas.kafka.topics import CONTROL_EVENTS

LARGEST, QUICK = 10_000_000, 10_000
MIDDLE = 200_000
"""Segments of a fleet where something else than their number is looked at."""
TICKS = 3
"""Of which the best counts, after the first two: those find the holds of the fleet."""
LEAST, MOST, NEAR = 2, 5, 1.05
"""Rounds of samples, of which the best counts: no more once the two best are as near, or all have taken `LONG`."""
LONG = 30.0
"""Seconds of processor time."""
LARGE = 1_000_000
"""Segments above which a job has fewer ticks."""
Table = list[dict[str, Any]]


def tables(largest: int) -> dict[str, list[EngineCase]]:
    """The fleets of each table, of at most so many segments."""
    plain = EngineCase(min(MIDDLE, largest), 10, 10, per_message=1_000)
    sizes = [segments for segments in (10_000, 100_000, 1_000_000, 10_000_000) if segments <= largest]
    return {
        "segments a topic": [replace(plain, of_each=of_each) for of_each in (1, 10, 100, 1_000)],
        "reporters": [replace(plain, reporters=reporters) for reporters in (1, 3, 10)],
        "share of significant samples": [replace(plain, significant=share) for share in (0.0, 0.01, 0.1, 0.5, 1.0)],
        "topics, of 10 segments": [replace(plain, segments=segments) for segments in sizes],
    }


def in_process(case: EngineCase) -> dict[str, Any]:
    """Microseconds of processor time: a sample's, a first layout's, and a topic's at a tick."""
    began, clock = time.process_time(), time.monotonic()
    run = Run(case)
    topics = len(run.fleet.names)
    run.round(0)
    rounds_seconds: list[tuple[float, float]] = []
    while not is_enough([sum(seconds) for seconds in rounds_seconds]):
        rounds_seconds.append(run.round(1 + len(rounds_seconds)))
    packing, engine = (min(seconds) / case.segments * 1e6 for seconds in zip(*rounds_seconds, strict=True))
    ticks = [run.take(CONTROL_EVENTS.name, [_tick(number)], NOW + 900_000 + number) for number in range(TICKS + 2)]
    steady = min(sum(seconds) for seconds in ticks[2:])
    return {
        "packer, us a sample": packing,
        "engine, us a sample": engine,
        "first layout, us": run.layouts / topics * 1e6,
        "first tick, us a topic": sum(ticks[0]) / topics * 1e6,
        "tick, us a topic": steady / topics * 1e6,
        "resident MB": resident_kb(os.getpid()) // 1024,
        "rounds": len(rounds_seconds),
        "all of it, s": time.process_time() - began,
        "by the clock, s": time.monotonic() - clock,
        "load": os.getloadavg()[0],
    }


def is_enough(seconds: Sequence[float]) -> bool:
    """Return whether the rounds so far are enough to trust the best one."""
    if len(seconds) < LEAST:
        return False
    best, second, *_ = sorted(seconds)
    return second <= best * NEAR or len(seconds) >= MOST or sum(seconds) >= LONG


def in_a_job(case: EngineCase, samples: int = 20_000_000) -> dict[str, Any]:
    """Measure a job on `samples` samples: samples a second, core-seconds a million, seconds a tick."""
    rounds = max(4, samples // case.segments)
    of_a_job = stream.StreamCase(
        case.segments // case.of_each,
        case.of_each,
        case.significant,
        rounds,
        case.reporters,
        case.per_message,
        tick_seconds=15 if case.segments > LARGE else 5,
        ticks=4,
    )
    figures = stream.measured(of_a_job)
    return {
        "samples a second": figures["job"]["samples_per_second"],
        "core-s a million": sum(figures["core_seconds_per_million"].values()),
        "first tick, s": figures["ticks"]["first"],
        "tick, s": figures["ticks"]["steady"],
        "resident MB": sum(figures["resident_mb"][part] for part in ("driver", "jvm", "all workers")),
        "load": figures["load"],
    }


def _tick(number: int) -> tuple[str, bytes]:
    return EVERY_TOPIC, TickEvent(v=1, type="tick", at=NOW + 900_000 + number).to_json().encode()


@click.command()
@click.option("--quick", is_flag=True, help=f"A short look: at most {QUICK:,} segments.")
@click.option("--largest", type=int, default=LARGEST, show_default=True, help="At most so many segments.")
@click.option("--job", is_flag=True, help="The whole job, with Kafka and Spark: some minutes a row.")
def main(quick: bool, largest: int, job: bool) -> None:
    """Measures, prints, writes each row when it is done."""
    by_name: dict[str, Table] = {}
    print(machine_now())
    for name, cases in tables(QUICK if quick else largest).items():
        print(f"\n{name}")
        rows = by_name[name] = []
        for case in cases:
            figures = in_a_job(case, 2_000_000 if quick else 20_000_000) if job else apart(in_process, case)
            rows.append({**_asked(case), **figures})
            print_row(rows[-1])
            if not quick:
                recorded = recorded_report("growth")
                recorded["the job" if job else "one process"] = {"machine": machine_now(), "tables": by_name}
                write_report("growth", recorded)


def _asked(case: EngineCase) -> dict[str, Any]:
    return {
        "segments": case.segments,
        "of a topic": case.of_each,
        "reporters": case.reporters,
        "significant": case.significant,
    }


if __name__ == "__main__":
    main()
