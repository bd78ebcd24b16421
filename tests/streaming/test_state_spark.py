"""The state of a real job: shown, lost, rebuilt from the lake, and gone on with."""

from __future__ import annotations

import json
import shutil

import pytest

from decisions.topic.layout import SegmentLayout
from schemas.settings.root import load_settings
from schemas.tables.rows import BATCHES, DECISIONS
from streaming.checkpoint.stateview import stored_bucket, topic_view
from streaming.checkpoint.storage import checkpoint_of
from streaming.job.sources import buckets_of
from tests.engine.records import consumers, layout, outcome, policy, stats, tick
from tests.streaming.jobs import TOPICS, Feed, check_nothing_lost_and_nothing_twice, now_ms, read, rows
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(600)]


def known(spark, settings) -> dict[str, dict]:
    """What the job knows of each topic, without what a rebuild leaves out."""
    _ = spark.streams
    views = {}
    buckets = buckets_of(spark, TOPICS, settings.stream.buckets)
    stored = {bucket: stored_bucket(spark, checkpoint_of(settings), bucket) for bucket in set(buckets.values())}
    for topic, bucket in buckets.items():
        view = views[topic] = topic_view(stored[bucket].packed, topic)
        del view["tickAskedFor"]
        for load in view["loads"].values():
            assert load["modified_at"] <= load.pop("seen_at")
    return views


def test_job_continues_from_rebuilt_checkpoint(spark, start, state, job_settings, own_broker, tmp_path):
    job_settings.write_text(job_settings.read_text().replace("buckets = 4", "buckets = 2"))
    settings, feed = load_settings([job_settings]), Feed(own_broker.bootstrap)
    checkpoint, moved = tmp_path / "checkpoint", tmp_path / "lost"
    first = SegmentLayout.create(2, now_ms())

    def fed(*records) -> None:
        feed.send(*records)
        wait_until(lambda: read(settings) == feed.end_offsets(), 180, 0.2)

    def since_the_rebuild() -> list[dict]:
        lost = json.loads((moved / "metadata").read_text())["id"]
        return [row for row in rows(settings, BATCHES) if row["generation"] != lost]

    job = start()
    fed(
        *[layout(first, topic=topic) for topic in TOPICS],
        policy({"maxSegments": 5}, "acme/shop"),
        *[stats({0: 50_000.0, 1: 1.0}, now_ms(), topic) for topic in TOPICS[:3]],
        stats({0: 1.0, 1: 1.0}, now_ms(), TOPICS[3]),
        consumers(2, topic=TOPICS[0]),
    )
    fed(tick(now_ms()))
    (decision,) = [row for row in rows(settings, DECISIONS) if row["subject"] == TOPICS[0]]
    fed(
        stats({0: 50_100.0, 1: 1.0}, now_ms(), TOPICS[1]),
        layout(first.split_segment(0, now_ms()), "split", topic=TOPICS[0]),
        outcome(decision["decision_id"], "applied", topic=TOPICS[0]),
        tick(now_ms()),
    )
    while_it_runs = state("show", TOPICS[0])
    assert "epoch 1, 3 active segments" in while_it_runs
    assert "maxSegments = 5" in while_it_runs
    job.stop()

    before = known(spark, settings)
    assert before[TOPICS[1]]["openDecision"] is not None
    shutil.move(checkpoint, moved)
    assert "4 topics, 2 open decisions" in state("rebuild")
    job = start()
    feed.send(outcome(before[TOPICS[1]]["openDecision"]["decision_id"], "failed", topic=TOPICS[1]))
    wait_until(lambda: any(row["messages_accepted"] for row in since_the_rebuild()), 180, 0.2)
    job.stop()
    after = known(spark, settings)
    for topic in (TOPICS[0], TOPICS[2], TOPICS[3]):
        assert after[topic] == before[topic]
    # The job asks again 20 s after a decision, which may be before it stops.
    held = before[TOPICS[1]]["holds"]
    assert (after[TOPICS[1]]["hold"], after[TOPICS[1]]["holds"]) in {("in-flight", held), ("retry-backoff", held + 1)}
    assert after[TOPICS[1]] == {
        **before[TOPICS[1]],
        "hold": after[TOPICS[1]]["hold"],
        "holds": after[TOPICS[1]]["holds"],
        "openDecision": None,
        "failures": 1,
        "failedAction": "split",
        "failedAt": after[TOPICS[1]]["failedAt"],
    }
    # What was suppressed behind the last accepted sample is read once more, and suppressed once more.
    read_twice = sum(row["messages_suppressed"] for row in since_the_rebuild())
    assert read_twice <= 1
    check_nothing_lost_and_nothing_twice(settings, feed, read_twice)
