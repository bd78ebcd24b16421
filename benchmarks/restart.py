"""A job that is killed and started again: what it takes.

Run as `python -m benchmarks.restart [--quick]`. A broker, and the job as a process of its own (`anabranch serve
stream`). `kill -9` of the job with all that it has started, then the seconds from the start of the new process to the
first committed row of `batches`, whose batch has samples and a tick over every topic, and where they go. Prints a table
and writes benchmarks/restart.json.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.feeds import consumers_message
from benchmarks.fleet import BenchmarkFleet, MessageSender
from benchmarks.jobs import IngestionCounter, JobProcess, batches_of, on_a_broker, warm
from benchmarks.record import machine_now, publish, quick_command
from schemas.ids import EVERY_TOPIC
from schemas.kafka.messages import TickEvent
from schemas.kafka.topics import CONSUMER_EVENTS, CONTROL_EVENTS
from schemas.settings.root import Settings

SEGMENTS = 10
TOPICS = (10_000, 100_000)
QUICK_TOPICS = (1_000,)
RESTARTS = 3
MOST = 100_000


@quick_command
def main(quick: bool) -> None:
    """Measures, prints, writes."""
    machine = machine_now()
    results = {}
    for topics in QUICK_TOPICS if quick else TOPICS:
        with tempfile.TemporaryDirectory() as work, on_a_broker(Path(work), 16, MOST) as settings:
            results[str(topics)] = _measure(settings, Path(work), topics, 1 if quick else RESTARTS)
    publish("restart", {"machine": machine, "topics": results}, quick)


def _measure(settings: Settings, work: Path, topics: int, restarts: int) -> dict[str, Any]:
    fleet, sender, job = (
        BenchmarkFleet(topics, SEGMENTS, 0.1),
        MessageSender(settings.kafka.bootstrap),
        JobProcess(settings, work),
    )
    job.start()
    ingested = IngestionCounter(settings)
    try:
        with warm(job, sender, ingested):
            layouts = list(fleet.layouts())
            consumers = [consumers_message(name, "snapshot", 1, _now()) for name in fleet.names]
        sender.send(CONTROL_EVENTS.name, iter(layouts))
        sender.send(CONSUMER_EVENTS.name, iter(consumers))
        sender.round(fleet, _now())
        sender.flush()
        ingested.expect(3 * topics)
        job.wait(ingested.all)
        return {
            "resident_mb": job.resident(),
            "restarts": [_restart(job, settings, sender, fleet) for _ in range(restarts)],
        }
    finally:
        job.kill()


def _restart(job: JobProcess, settings: Settings, sender: MessageSender, fleet: BenchmarkFleet) -> dict[str, float]:
    earlier = len(batches_of(settings))
    job.kill()
    sender.round(fleet, _now())
    tick = TickEvent(v=1, type="tick", at=_now())
    sender.send(CONTROL_EVENTS.name, iter([(EVERY_TOPIC, tick.to_json().encode())]))
    sender.flush()
    started = job.start()
    job.wait(lambda: any(row["evaluations"] >= len(fleet.names) for row in batches_of(settings)[earlier:]))
    rows = batches_of(settings)[earlier:]
    planned, committed = rows[0]["batch_at"].timestamp(), rows[0]["committed_at"].timestamp()
    ticked = next(row for row in rows if row["evaluations"] >= len(fleet.names))["committed_at"].timestamp()
    query = job.said_at("reading ") or planned
    return {
        "to the query's start": round(query - started, 2),
        "to the first batch": round(planned - started, 2),
        "to its commit": round(committed - started, 2),
        "to the first tick's commit": round(ticked - started, 2),
        "operator": round(rows[0]["operator_ms"] / 1000, 2),
        **{f"cpu {name}": round(seconds, 1) for name, seconds in job.seconds().items()},
    }


def _now() -> int:
    return time.time_ns() // 1_000_000


if __name__ == "__main__":
    main()
