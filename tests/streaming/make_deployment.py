"""Makes what a release leaves behind: checkpoint, lake and Kafka's messages, for `test_upgrade` to start the job on.

For each new version of the state, once, with the code of the last release that wrote the version before:

    git worktree add --detach /tmp/old RELEASE && cd /tmp/old
    PYTHONPATH=. python …/tests/streaming/make_deployment.py …/tests/streaming/deployment_vN.tar.gz

The job is that of the folder it is run in; it works in /tmp/deployment, so that no other path gets into its files.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from anabranch.local.broker import EmbeddedBroker, create_topics
from anabranch.local.setup import ensure_jars
from decisions.topic.layout import SegmentLayout
from schemas.kafka.topics import KAFKA_TOPICS
from schemas.settings.root import Settings, load_settings
from schemas.tables.rows import DECISIONS
from tests.engine.records import consumers, layout, outcome, policy, record, stats, tick
from tests.streaming.jobs import Feed, read, rows
from tests.waiting import wait_until

FOLDER = Path("/tmp/deployment")
SPLIT, FAILED, OPEN, MERGED, QUIET, GONE, LATE, SEEN = (
    f"topic://acme/shop/{name}" for name in ("split", "failed", "open", "merged", "quiet", "gone", "late", "seen")
)
"""Topics, by what becomes of them in `live`."""
EAGER = {"mergeWindowSeconds": 0, "mergeCooldownSeconds": 0}


def live(feed: Feed, decided: Callable[[str], str], read_all: Callable[[], None]) -> None:
    """A history with all parts of a state: layouts, policies, clocks, decisions, holds, cold and hot loads.

    `decided` answers the id of a topic's newest decision.
    """
    began = time.time_ns() // 1_000_000
    at = iter(range(began, began + 1_000_000, 100))
    first = SegmentLayout.create(2, began)
    many = SegmentLayout.create(4, began)
    feed.send(
        policy({"maxSegments": 9}),
        policy({"maxSegments": 7, "splitCooldownSeconds": 0}, "acme/shop"),
        *[layout(first, topic=topic) for topic in (SPLIT, FAILED, OPEN, QUIET, GONE, SEEN)],
        layout(many, topic=MERGED, policy=EAGER),
        *[consumers(2, topic=topic) for topic in (SPLIT, OPEN, SEEN, GONE)],
        consumers(1, sub="audit", kind="CHECKPOINT", topic=SEEN),
        consumers(1, sub="late", topic=LATE),
        *[stats({0: 50_000.0, 1: 300.0}, next(at), topic) for topic in (SPLIT, FAILED, OPEN, GONE)],
        *[stats({0: 20.0, 1: 700.0}, next(at), topic) for topic in (QUIET, SEEN, LATE)],
        stats({0: 1.0, 1: 2.0, 2: 900.0, 3: 3.0}, next(at), MERGED),
        record("consumer-events", SEEN, b"no JSON"),
        record("segment-stats", SEEN, {"v": 7, "topic": SEEN}),
        record("control-events", SEEN, None),
    )
    read_all()
    feed.send(tick(next(at)))
    read_all()
    split, merged = first.split_segment(0, next(at)), many.merge_segments(0, 1, next(at))
    feed.send(
        outcome(decided(SPLIT), "applied", topic=SPLIT),
        layout(split, "split", topic=SPLIT),
        outcome(decided(MERGED), "applied", topic=MERGED),
        layout(merged, "merge", topic=MERGED, policy=EAGER),
        outcome(decided(FAILED), "failed", topic=FAILED),
        layout(first, "deleted", topic=GONE),
        consumers(3, topic=SPLIT),
        consumers(0, sub="audit", kind="CHECKPOINT", event="deleted", topic=SEEN),
        stats({1: 310.0, 2: 26_000.0, 3: 25_000.0}, next(at), SPLIT),
        stats({0: 20.0, 1: 700.0}, began - 60_000, SEEN),
        stats({0: 19.0, 1: 690.0}, next(at), SEEN),
    )
    read_all()
    feed.send(tick(next(at)), stats({0: 90.0, 1: 40.0}, next(at), SEEN), consumers(4, topic=SEEN))
    read_all()


def newest_decision(settings: Settings, topic: str) -> str:
    """Its id."""
    return max((row["seq"], row["decision_id"]) for row in rows(settings, DECISIONS) if row["subject"] == topic)[1]


def messages(bootstrap: str) -> Iterator[dict]:
    """Every message of Kafka, partition by partition, in order."""
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "deployment"})
    for topic in KAFKA_TOPICS:
        for partition in range(topic.partitions):
            place = TopicPartition(topic.name, partition, OFFSET_BEGINNING)
            reader.assign([place])
            for offset in range(reader.get_watermark_offsets(place, timeout=10)[1]):
                message = reader.poll(10)
                assert message is not None
                assert message.offset() == offset
                yield {
                    "topic": topic.name,
                    "partition": partition,
                    "at": message.timestamp()[1],
                    "key": _in_base64(message.key()),
                    "value": _in_base64(message.value()),
                }
    reader.close()


def _in_base64(part: bytes | None) -> str | None:
    return None if part is None else base64.b64encode(part).decode()


def main() -> None:
    """Runs the release's job through `live`, stops it, and packs what it leaves behind."""
    target, jars = Path(sys.argv[1]).resolve(), ensure_jars(load_settings(environment={}), print)
    FOLDER.mkdir()
    broker = EmbeddedBroker(FOLDER / "kafka", jars.kafka)
    broker.start()
    try:
        create_topics(broker.connection)
        file = FOLDER / "job.toml"
        file.write_text(
            f'[kafka]\nbootstrap = "{broker.bootstrap}"\n[lake]\npath = "{FOLDER}/lake"\n'
            f'[stream]\ncheckpoint = "{FOLDER}/checkpoint"\nbuckets = 2\ntick_seconds = 3600\n'
        )
        settings, feed = load_settings([file]), Feed(broker.bootstrap)

        def read_all() -> None:
            wait_until(lambda: read(settings) >= feed.end_offsets() or job.poll() is not None, 300, 0.2)
            assert job.poll() is None

        command = [sys.executable, "-m", "anabranch", "--config", str(file), "stream"]
        job = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.getcwd()})
        try:
            live(feed, lambda topic: newest_decision(settings, topic), read_all)
        finally:
            job.terminate()
            assert job.wait(90) == 0
        (FOLDER / "messages.jsonl").write_text("".join(json.dumps(one) + "\n" for one in messages(broker.bootstrap)))
    finally:
        broker.stop()
    with tarfile.open(target, "w:gz") as archive:
        for name in ("checkpoint", "lake", "messages.jsonl"):
            archive.add(FOLDER / name, name)
    shutil.rmtree(FOLDER)


if __name__ == "__main__":
    main()
