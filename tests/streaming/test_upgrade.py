"""Today's job on what an older release left behind: its checkpoint, its lake and Kafka's messages.

The deployments are made by `tests.streaming.make_deployment`, with the code of those releases: the last ones of state
version 1 and 2, and the last one before the job put its policy into the stream and `layout_epoch` became optional.
"""

from __future__ import annotations

import base64
import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from decisions.autoscale.policy import PROFILES
from decisions.topic.layout import SegmentLayout
from engine.autoscale.family import LOADS, TOPICS
from engine.autoscale.loads_codec import LOADS_VERSION
from engine.autoscale.topics_codec import STATE_VERSION
from schemas.kafka.topics import KAFKA_TOPICS
from schemas.settings.root import load_settings
from schemas.tables.rows import BATCHES, DEAD_LETTERS, DECISIONS, EVENTS, HOLDS, SEGMENT_LOAD
from streaming.checkpoint.stateview import stored_bucket, topic_view
from streaming.checkpoint.storage import checkpoint_of
from streaming.checkpoint.upgrade import described_here
from streaming.job.sources import buckets_of
from tests.engine.records import consumers, layout, outcome, record, stats, tick
from tests.streaming.jobs import Feed, check_nothing_lost_and_nothing_twice, now_ms, read, rows
from tests.streaming.make_deployment import FAILED, GONE, LATE, MERGED, OPEN, SEEN, SPLIT, newest_decision
from tests.streaming.recomputation import in_order, recomputed
from tests.waiting import wait_until

TABLES = (DECISIONS, HOLDS, EVENTS, DEAD_LETTERS, SEGMENT_LOAD)


def unpack_deployment(number: int, folder: Path, bootstrap: str) -> None:
    """Checkpoint and lake into the folder, and the messages to a new broker: same partitions, offsets and times."""
    with tarfile.open(Path(__file__).parent / f"deployment_v{number}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    as_they_were = {"retention.ms": "-1", "message.timestamp.type": "CreateTime"}
    kept = [
        ConfigResource(
            ConfigResource.Type.TOPIC,
            topic.name,
            incremental_configs=[
                ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
                for name, value in as_they_were.items()
            ],
        )
        for topic in KAFKA_TOPICS
    ]
    for altered in admin.incremental_alter_configs(kept).values():
        altered.result(20)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for line in (folder / "messages.jsonl").read_text().splitlines():
        one = json.loads(line)
        key, value = (None if one[part] is None else base64.b64decode(one[part]) for part in ("key", "value"))
        producer.produce(one["topic"], value, key, one["partition"], timestamp=one["at"])
    assert producer.flush(20) == 0


def undated(row: dict) -> dict:
    """A row without when its loads were measured, and what was worked out of that: older releases believed the clocks
    of reporters. And without the digest of its layout, of which they kept no more than its fields."""
    plain = {**row, **dict.fromkeys(row.keys() & {"gates", "measured", "margin", "eligible_at", "layout_digest"})}
    if row.get("inputs"):
        plain["inputs"] = json.loads(row["inputs"])
        for load in plain["inputs"]["loads"].values():
            for name in ("modifiedAt", "seenAt", "coldSince"):
                load.pop(name, None)
    return plain


def without_policy(row: dict) -> dict:
    """An undated row without what names the policy, which has `promptSplits` in one of two."""
    plain = {**undated(row), "policy_digest": None}
    if isinstance(plain.get("inputs"), dict):
        plain["inputs"].pop("policy", None)
    return plain


def _said(found: list[dict], last: int) -> set[tuple]:
    """What was said of topics up to a batch."""
    return {
        (row["subject"], row["seq"], row.get("arguments"), row.get("gate")) for row in found if row["batch_id"] <= last
    }


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.timeout(900)
@pytest.mark.parametrize("deployment", [1, *(pytest.param(one, marks=pytest.mark.soak) for one in (2, 3))])
def test_older_deployment_upgraded_at_new_place(
    deployment, spark, start, state, job_settings, own_broker, tmp_path, monkeypatch
):
    """Nothing is lost and nothing comes twice."""
    unpack_deployment(deployment, tmp_path, own_broker.bootstrap)
    job_settings.write_text(job_settings.read_text().replace("buckets = 4", "buckets = 2"))
    settings, feed = load_settings([job_settings]), Feed(own_broker.bootstrap)
    old = {table.name: rows(settings, table) for table in TABLES}
    last = max(row["batch_id"] for row in rows(settings, BATCHES))
    assert read(settings) == feed.end_offsets() > 0

    at = now_ms()
    feed.send(
        layout(SegmentLayout.create(2, at), topic=LATE),
        outcome(newest_decision(settings, SPLIT), "failed", topic=SPLIT),
        # Inside the band around what the old job has accepted: suppressed, unless that was forgotten.
        *[stats({0: 50_100.0, 1: 301.0}, at, topic) for topic in (OPEN, FAILED)],
        stats({2: 1_000.0, 3: 2.0}, at, MERGED),
        consumers(2, topic=OPEN),
        record("consumer-events", OPEN, b"no JSON"),
    )
    job = start()
    wait_until(lambda: read(settings) == feed.end_offsets() or not job.is_running, 240, 0.2)
    assert job.failure is None
    feed.send(tick(now_ms()))
    wait_until(lambda: read(settings) == feed.end_offsets(), 180, 0.2)
    job.stop()

    check_nothing_lost_and_nothing_twice(settings, feed)
    assert len({row["generation"] for row in rows(settings, BATCHES)}) == 1
    expected = recomputed(settings)
    # What this release would have done at once, those did one by one: of these topics it would know something else now.
    otherwise = {
        subject
        for name in (DECISIONS.name, HOLDS.name)
        for subject, *_ in _said(expected[name], last) ^ _said(old[name], last)
    }
    assert otherwise <= {MERGED, SPLIT, SEEN, FAILED, GONE}
    # Of these it is only that hot samples lead to decisions now: at ticks alone, this release says what those said.
    at_ticks = {name: replace(policy, prompt_splits=False) for name, policy in PROFILES.items()}
    with monkeypatch.context() as patched:
        patched.setattr("decisions.autoscale.policy.PROFILES", at_ticks)
        by_ticks = recomputed(settings)
    assert not {FAILED, GONE} & {
        subject
        for name in (DECISIONS.name, HOLDS.name)
        for subject, *_ in _said(by_ticks[name], last) ^ _said(old[name], last)
    }
    new: dict[str, list[dict]] = {}
    for table in TABLES:
        found = rows(settings, table)
        new[table.name] = [row for row in found if row["batch_id"] > last]
        before = [{**dict.fromkeys(table.row.model_fields), **row} for row in old[table.name]]
        assert in_order([row for row in found if row["batch_id"] <= last]) == in_order(before)
        wanted = [row for row in expected[table.name] if row["batch_id"] > last]
        told, meant = (
            [row for row in some if table not in (DECISIONS, HOLDS) or row["subject"] not in otherwise]
            for some in (new[table.name], wanted)
        )
        assert in_order(map(undated, told)) == in_order(map(undated, meant))
        if table in (DECISIONS, HOLDS):
            told, meant = (
                [without_policy(row) for row in some if row["subject"] in (FAILED, GONE) and row["batch_id"] > last]
                for some in (found, by_ticks[table.name])
            )
            assert in_order(told) == in_order(meant)
    decided = [(row["subject"], row["seq"], row["action"], row["arguments"]) for row in new["decisions"]]
    assert decided == [(FAILED, 2, "split", '{"segments":[0]}')]
    assert {row["topic"] for row in new["segment_load"]} == {MERGED}
    assert "split" in state("show", SEEN)

    _ = spark.streams
    for topic, bucket in buckets_of(spark, [SEEN, LATE], settings.stream.buckets).items():
        packed = stored_bucket(spark, checkpoint_of(settings), bucket).packed
        for name, newest in ((TOPICS, STATE_VERSION), (LOADS, LOADS_VERSION)):
            assert [packed.parts[name].base, *packed.parts[name].log][-1][0] == newest
        view = topic_view(packed, topic)
        rates = {segment: load["msg_rate_in"] for segment, load in view["loads"].items()}
        # Loads wait an hour for the layout of their topic, and those of LATE are older.
        assert rates == ({"0": 90.0, "1": 40.0} if topic == SEEN else {})


def description(name: str, place: str, version: str = "v2") -> str:
    """What Spark stores of an operator."""
    schemas = [f"{place}/state/0/_stateSchema/default/{number}_x" for number in (0, 7)]
    stores = [{"storeName": "default", "numPartitions": 2, "stateSchemaFilePaths": schemas}]
    body = {"operatorInfo": {"operatorId": 0, "operatorName": name}, "stateStoreInfo": stores}
    return f"{version}\n{json.dumps(body, separators=(',', ':'))}"


NOW = "transformWithStateInPySparkExec"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (description("transformWithStateInPandasExec", "file:/a"), description(NOW, "file:/b")),
        (description(NOW, "file:/a"), description(NOW, "file:/b")),
        (description("stateStoreSave", "file:/b"), description("stateStoreSave", "file:/b")),
        (description(NOW, "file:/a", "v3"), description(NOW, "file:/a", "v3")),
    ],
)
def test_operator_description_gets_current_paths(before, after):
    assert described_here(before, "file:/b") == after


def test_fitting_description_left_unchanged():
    odd = description(NOW, "file:/b").replace(",", ", ")
    assert described_here(odd, "file:/b") == odd
