"""The family `bundles` in the job, on real parts: switched on, crashed, gone on, and not switched off again."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from anabranch.history.recorded import RecordedHistory
from anabranch.local.broker import create_topics
from decisions.topic.layout import SegmentLayout
from engine.bundles.codec import pack, unpack
from engine.bundles.family import PART
from engine.cluster_replay import ClustersReplay
from schemas.kafka.topics import BUNDLE_TOPICS
from schemas.settings.root import SettingsError, load_settings
from schemas.tables.rows import BATCHES, DEAD_LETTERS, DECISIONS, EVENTS, HOLDS
from streaming.checkpoint.stateview import stored_bucket
from streaming.checkpoint.storage import checkpoint_of
from streaming.job.job import JobFailed
from tests.engine.balancers import bundle, ended, report, skewed
from tests.engine.records import layout, record, stats, tick
from tests.streaming.crashes import crashing_sink
from tests.streaming.jobs import BATCH_SECONDS, Feed, now_ms, rows
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(600)]


@pytest.fixture
def bundle_topics(own_broker):
    """The two topics of the family, on the broker of the jobs, and gone again afterwards."""
    create_topics(own_broker.connection, BUNDLE_TOPICS)
    yield
    admin = AdminClient({"bootstrap.servers": own_broker.bootstrap})
    for deleted in admin.delete_topics([topic.name for topic in BUNDLE_TOPICS], operation_timeout=20).values():
        deleted.result(30)


def switch(job_settings: Path, on: bool) -> None:
    text = job_settings.read_text().split("[bundles]")[0]
    job_settings.write_text(f"{text}[bundles]\nenabled = {str(on).lower()}\n")


def of_bundles(settings, table):
    return [row for row in rows(settings, table) if row["family"] == "bundles"]


def letters_of_bundles(settings):
    return [row for row in rows(settings, DEAD_LETTERS) if row["kafka_topic"] == "broker-load"]


def suppressed(settings):
    """Messages that said nothing new: of the second time, all but the one that is none."""
    return sum(row["messages_suppressed"] for row in rows(settings, BATCHES))


def stored_clusters(spark, settings):
    """What the job knows of its clusters, as bytes."""
    _ = spark.streams
    stored = (stored_bucket(spark, checkpoint_of(settings), bucket, (PART,)) for bucket in range(4))
    return {name: pack({name: state}) for one in stored for name, state in unpack(one.packed.parts[PART]).items()}


def recorded_clusters(settings, folder):
    """The same as the lake leads to, with nothing on record that would be otherwise now."""
    history, replay = RecordedHistory(settings.lake_path, folder, of_clusters=True), ClustersReplay()
    for chunk in history.chunks():
        for batch in chunk.of_bucket(history.topics):
            assert replay.take(batch) == []
    return {name: pack({name: state}) for name, state in replay.clusters.items()}


@pytest.mark.parametrize("how", ["crashed", pytest.param("killed", marks=pytest.mark.soak)])
def test_ended_cycle_and_rebuild_leave_no_trace(
    how, spark, start, start_process, state, job_settings, own_broker, bundle_topics, tmp_path
):
    """Crashed, or killed as a process, in the middle of a cycle, then rebuilt from the lake."""
    switch(job_settings, True)
    settings, feed = load_settings([job_settings]), Feed(own_broker.bootstrap)
    point, first = "decisions:after", now_ms()
    job = start(crashing_sink(point)) if how == "crashed" else start_process(point, "all")
    feed.send(*skewed(first), *skewed(first, "east"))
    wait_until(lambda: sum(row["kafka_topic"] == "broker-load" for row in rows(settings, EVENTS)) == 4, 120)
    feed.send(tick(now_ms()))
    if how == "crashed":
        assert f"crashed at {point}" in str(job.end().__cause__)
    else:
        assert job.process.wait(120) == -signal.SIGKILL
    decided = of_bundles(settings, DECISIONS)
    assert decided
    assert not of_bundles(settings, HOLDS)

    job = start()
    wait_until(lambda: {"east", "west"} <= {row["subject"] for row in of_bundles(settings, DECISIONS)}, BATCH_SECONDS)
    later = now_ms()
    feed.send(report("broker-3:8080", {bundle(7): 90.0}, later, cpu=95), ended(decided[0]), tick(later))
    wait_until(
        lambda: any(row["subject"] == "west/broker-3:8080" for row in of_bundles(settings, HOLDS)), BATCH_SECONDS
    )
    job.stop()
    assert all(row in of_bundles(settings, DECISIONS) for row in decided)
    assert recorded_clusters(settings, tmp_path / "first") == stored_clusters(spark, settings)

    shutil.move(settings.stream.checkpoint, tmp_path / "lost")
    assert "0 topics, 2 clusters with bundles" in state("rebuild")
    job = start()
    feed.send(tick(now_ms()))
    wait_until(lambda: len({row["generation"] for row in rows(settings, BATCHES)}) == 2, BATCH_SECONDS)
    job.stop()
    assert recorded_clusters(settings, tmp_path / "second") == stored_clusters(spark, settings)
    numbers = sorted((row["subject"], row["seq"]) for row in of_bundles(settings, DECISIONS))
    assert len(set(numbers)) == len(numbers)


@pytest.mark.soak
def test_bundles_enabled_later_survive_a_crash(start, job_settings, own_broker, bundle_topics):
    """The job runs beside topics; nothing is lost and nothing comes twice."""
    settings, feed = load_settings([job_settings]), Feed(own_broker.bootstrap)
    job = start()
    feed.send(layout(SegmentLayout.create(2, now_ms() - 60_000)), stats({0: 1.0, 1: 1.0}, now_ms()), tick(now_ms()))
    wait_until(lambda: any(row["type"] == "tick" for row in rows(settings, EVENTS)), BATCH_SECONDS)
    job.stop()
    assert not of_bundles(settings, HOLDS)

    switch(job_settings, True)
    settings, first = load_settings([job_settings]), now_ms()
    messages = [*skewed(first), *skewed(first, "east"), record("broker-load", "west", b"no report")]
    feed.send(*messages)
    job = start(crashing_sink("decisions:after"))
    wait_until(lambda: sum(row["kafka_topic"] == "broker-load" for row in rows(settings, EVENTS)) == 4, BATCH_SECONDS)
    feed.send(tick(now_ms()))
    failure = job.end()
    assert isinstance(failure, JobFailed)
    assert "crashed at decisions:after" in str(failure.__cause__)

    job = start()
    wait_until(lambda: {"east", "west"} <= {row["subject"] for row in of_bundles(settings, DECISIONS)}, BATCH_SECONDS)
    by_cluster = {row["subject"]: row for row in of_bundles(settings, DECISIONS)}
    later = now_ms()
    feed.send(ended(by_cluster["west"]), report("broker-2:8080", {}, later, cpu=5), *messages, tick(later))
    wait_until(lambda: len(letters_of_bundles(settings)) == 2 and suppressed(settings) == 6, BATCH_SECONDS)
    job.stop()

    moved = [json.loads(row["arguments"]) for row in of_bundles(settings, DECISIONS)]
    assert sorted(by_cluster) == ["east", "west"]
    assert {one["destinationBroker"] for one in moved} == {"broker-2:8080"}
    for table in (DECISIONS, HOLDS):
        by_subject: dict[str, list[int]] = {}
        for row in of_bundles(settings, table):
            by_subject.setdefault(row["subject"], []).append(row["seq"])
        for subject, numbers in by_subject.items():
            assert sorted(numbers) == list(range(1, len(numbers) + 1)), (table.name, subject)
    assert [row["reason"] for row in letters_of_bundles(settings)] == ["not-json", "not-json"]
    places = [(row["kafka_topic"], row["kafka_partition"], row["kafka_offset"]) for row in rows(settings, EVENTS)]
    assert len(set(places)) == len(places)
    for row in rows(settings, BATCHES):
        assert row["messages"] == row["messages_accepted"] + row["messages_suppressed"] + row["dead_letters"]

    switch(job_settings, False)
    refused = start().end()
    assert isinstance(refused, SettingsError)
    assert "[bundles] enabled is false" in str(refused)
