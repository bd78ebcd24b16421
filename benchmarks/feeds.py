"""Background traffic while a job is measured: a steady stream of samples, controller announcements.

Each feed is a process of its own (`feeding`), so that it takes nothing from the driver's interpreter. `announcements`
is what the consumers of a fleet and its controllers say: every topic's layout and consumers once in five minutes (the
controller's snapshots, layouts by their digests and in full in one round of twelve), and in each second one topic of a
thousand gains or loses a consumer.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, cycle, islice
from zlib import crc32

from benchmarks.fleet import BenchmarkFleet, InColumns, MessageSender, first_layouts
from schemas.codecs.known_layouts import FULL_EVERY, LayoutEntry, known_messages
from schemas.codecs.plain_events import digest_of, layout_in
from schemas.ids import SEVERAL_TOPICS
from schemas.kafka.messages import ConsumerEvent, ConsumerEventKind
from schemas.kafka.topics import CONSUMER_EVENTS, CONTROL_EVENTS, SEGMENT_STATS

SNAPSHOT_SECONDS = 300
"""`controller.snapshot_seconds` as it is delivered."""
EVENTFUL = 1_000
"""One of so many topics has a consumer event in each second."""
STEPS_PER_SECOND = 20


@contextmanager
def feeding(kind: str, bootstrap: str, **about: int | str) -> Iterator[None]:
    """Runs the feed `samples` or `announcements` beside the block; `about` are its arguments."""
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.feeds", kind, bootstrap, json.dumps(about)])
    try:
        yield
    finally:
        process.terminate()
        process.wait(10)


def samples(
    bootstrap: str,
    topics: int,
    segments: int,
    seconds: int,
    prefix: str = "orders",
    brokers: int = 0,
    per_message: int = 1_000,
) -> None:
    """Report every topic once in `seconds`, by topic, or with `brokers` in columns, until terminated."""
    fleet, sender = BenchmarkFleet(topics, segments, 0.1, prefix), MessageSender(bootstrap)
    form = InColumns(brokers, per_message) if brokers else None
    per_step = -(-fleet.messages(form) // (seconds * STEPS_PER_SECOND))
    due = time.monotonic()
    while True:
        reports = fleet.round(_now(), form)
        for _ in range(seconds * STEPS_PER_SECOND):
            sender.send(SEGMENT_STATS.name, islice(reports, per_step))
            due = _wait_for(due + 1 / STEPS_PER_SECOND)


def announcements(bootstrap: str, topics: int, segments: int, prefix: str = "orders") -> None:
    """Send snapshots and consumer events evenly until terminated."""
    names = BenchmarkFleet(topics, segments, 0.0, prefix).names
    sender, in_turn, counts = MessageSender(bootstrap), cycle(names), dict.fromkeys(names, 1)
    due = time.monotonic()
    layouts: dict[str, LayoutEntry] = {}
    for second in count():
        due = _wait_for(due + 1.0)
        now = _now()
        announced = list(islice(in_turn, -(-topics // SNAPSHOT_SECONDS)))
        turn = second // SNAPSHOT_SECONDS
        in_full = [name for name in announced if name not in layouts or (crc32(name.encode()) + turn) % FULL_EVERY == 0]
        for name, value in first_layouts(in_full, segments, "snapshot", now):
            layouts[name] = LayoutEntry(name, 0, digest_of(layout_in(value)))
            sender.send(CONTROL_EVENTS.name, iter([(name, value)]))
        by_digest = known_messages((layouts[name] for name in set(announced).difference(in_full)), now)
        sender.send(CONTROL_EVENTS.name, ((SEVERAL_TOPICS, value) for value in by_digest))
        for name in announced:
            sender.send(CONSUMER_EVENTS.name, iter([consumers_message(name, "snapshot", counts[name], now)]))
        for name in names[second % EVENTFUL :: EVENTFUL]:
            counts[name] = 3 - counts[name]
            event: ConsumerEventKind = "registered" if counts[name] == 2 else "unregistered"
            sender.send(CONSUMER_EVENTS.name, iter([consumers_message(name, event, counts[name], now)]))


def consumers_message(name: str, event: ConsumerEventKind, consumers: int, instant: int) -> tuple[str, bytes]:
    """Key and value of a consumer event."""
    event_message = ConsumerEvent(
        v=1, topic=name, subscription="s", type="STREAM", event=event, consumers=consumers, at=instant
    )
    return name, event_message.to_json().encode()


def _wait_for(due: float) -> float:
    time.sleep(max(0.0, due - time.monotonic()))
    return due


def _now() -> int:
    return time.time_ns() // 1_000_000


if __name__ == "__main__":
    {"samples": samples, "announcements": announcements}[sys.argv[1]](sys.argv[2], **json.loads(sys.argv[3]))
