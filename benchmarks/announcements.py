"""Cost of layouts and consumer counts for a job: the first of each topic, then the same as snapshots.

Run as `python -m benchmarks.announcements [--quick]`. A broker, and the job as a process of its own (`anabranch
stream`), which has done before whatever a JVM does only once. Of each kind as many messages as there are topics, each
topic made at another instant; then the processor time of the driver's Python, of the JVM and of the Python workers
until all are committed, for each message, or for each layout where one message repeats many by their digests. Prints
a table and writes benchmarks/announcements.json.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.feeds import consumers_message
from benchmarks.fleet import BenchmarkFleet, MessageSender
from benchmarks.jobs import IngestionCounter, JobProcess, batches_of, on_a_broker, warm
from benchmarks.record import machine_now, publish, quick_command
from schemas.codecs.known_layouts import LayoutEntry, known_messages
from schemas.codecs.plain_events import digest_of, layout_in
from schemas.ids import SEVERAL_TOPICS
from schemas.kafka.topics import CONSUMER_EVENTS, CONTROL_EVENTS
from schemas.settings.root import Settings

SEGMENTS = 10
TOPICS, QUICK_TOPICS = 100_000, 10_000
WARM = 20_000
"""Layouts that come first: less leaves the JVM's compiler much to do."""
BUCKETS = 16
SNAPSHOTS = 2
"""How often all is said again; the best counts."""

Messages = list[tuple[str, bytes]]


@quick_command
def main(quick: bool) -> None:
    """Measures, prints, writes."""
    topics = QUICK_TOPICS if quick else TOPICS
    with tempfile.TemporaryDirectory() as work, on_a_broker(Path(work), BUCKETS, TOPICS) as settings:
        result = _measure(settings, Path(work), topics)
    publish("announcements", {"machine": machine_now(), "topics": topics, **result}, quick)


def _measure(settings: Settings, work: Path, topics: int) -> dict[str, Any]:
    sender, job, ingested = (
        MessageSender(settings.kafka.bootstrap),
        JobProcess(settings, work),
        IngestionCounter(settings),
    )
    job.start()
    try:
        with warm(job, sender, ingested, WARM):
            fleet, now = BenchmarkFleet(topics, SEGMENTS, 0.1), time.time_ns() // 1_000_000
            layouts = list(fleet.layouts())
            consumers = [consumers_message(name, "snapshot", 1, now) for name in fleet.names]
        again = [(name, value.replace(b'"cause":"created"', b'"cause":"snapshot"')) for name, value in layouts]

        entries = (LayoutEntry(name, 0, digest_of(layout_in(value))) for name, value in layouts)
        digests = [(SEVERAL_TOPICS, value) for value in known_messages(entries, now)]

        def cost(source: str, messages: Messages, number: int = topics) -> dict[str, float]:
            before = job.seconds()
            sender.send(source, iter(messages))
            sender.flush()
            ingested.expect(len(messages))
            job.wait(ingested.all)
            after = job.seconds()
            each = {name: round((after[name] - before[name]) / number * 1e6, 1) for name in before}
            return {**each, "sum": round(sum(each.values()), 1)}

        costs = {
            "first layouts": cost(CONTROL_EVENTS.name, layouts),
            "first consumers": cost(CONSUMER_EVENTS.name, consumers),
        }
        for name, source, messages in (
            ("equal layouts", CONTROL_EVENTS.name, again),
            ("equal layouts, by digest", CONTROL_EVENTS.name, digests),
            ("equal consumers", CONSUMER_EVENTS.name, consumers),
        ):
            costs[name] = min((cost(source, messages) for _ in range(SNAPSHOTS)), key=lambda each: each["sum"])
        if unknown := sum(row["layouts_unknown"] or 0 for row in batches_of(settings)):
            raise SystemExit(f"{unknown} layouts that were repeated by their digests are not those that the job knows")
        return {"cpu_us_each": costs, "resident_mb": job.resident()}
    finally:
        job.kill()


if __name__ == "__main__":
    main()
