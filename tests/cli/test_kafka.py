"""`anabranch kafka`: topics are made as the job needs them, and a wrong one is named."""

from __future__ import annotations

from dataclasses import replace

import yaml
from click.testing import CliRunner, Result

from anabranch.cli.commands import kafka
from anabranch.cli.main import cli
from schemas.kafka.topics import CONTROL_EVENTS, KafkaTopic
from tests.waiting import wait_until


def run(bootstrap: str, *arguments: str, **environment: str) -> Result:
    environment["ANABRANCH_KAFKA_BOOTSTRAP"] = bootstrap
    return CliRunner().invoke(cli, ["kafka", *arguments], env=environment)


def test_strimzi_topics_have_partitions_and_settings():
    printed = run("nowhere:1", "create", "--output", "strimzi", "--cluster", "main", ANABRANCH_BUNDLES__ENABLED="true")
    topics = {one["metadata"]["name"]: one for one in yaml.safe_load_all(printed.output)}
    assert list(topics) == ["segment-stats", "consumer-events", "control-events", "broker-load", "broker-events"]
    stats = topics["segment-stats"]
    assert stats["metadata"]["labels"] == {"strimzi.io/cluster": "main"}
    assert (stats["spec"]["partitions"], stats["spec"]["replicas"]) == (4, 3)
    assert stats["spec"]["config"]["message.timestamp.type"] == "LogAppendTime"
    assert stats["spec"]["config"]["min.insync.replicas"] == "2"


def test_longer_retention_ok_client_time_is_not():
    right = {**CONTROL_EVENTS.config, "retention.ms": "-1", "min.insync.replicas": "2"}
    assert kafka.config_problems(CONTROL_EVENTS, right, 3) == []
    wrong = {**right, "message.timestamp.type": "CreateTime", "retention.ms": "1000", "min.insync.replicas": "1"}
    assert kafka.config_problems(CONTROL_EVENTS, wrong, 2) == [
        "control-events: message.timestamp.type is CreateTime, LogAppendTime is wanted",
        "control-events: retention.ms is 1000, 604800000 is wanted",
    ]


def test_kafka_that_does_not_answer_is_exit_code_3(monkeypatch):
    monkeypatch.setattr(kafka, "SECONDS", 0.5)
    checked = run("127.0.0.1:1", "check")
    assert checked.exit_code == 3
    assert "Kafka at 127.0.0.1:1 does not answer" in checked.stderr


def test_topics_are_created_once_and_checked(broker, monkeypatch):
    topic = KafkaTopic("made-by-command", 2, {"retention.ms": "86400000"})
    monkeypatch.setattr(kafka, "wanted_topics", lambda _: (topic,))
    missing = run(broker.bootstrap, "check")
    assert (missing.exit_code, "made-by-command is missing: anabranch kafka create" in missing.output) == (1, True)
    create = ["create", "--replication-factor", "1"]
    assert run(broker.bootstrap, *create).output == "created made-by-command\n"
    wait_until(lambda: run(broker.bootstrap, "check").exit_code == 0, 30, 0.2)
    assert "exists" in run(broker.bootstrap, *create).output
    more = run(broker.bootstrap, "check", "--replication-factor", "3")
    assert (more.exit_code, more.output.splitlines()[:2]) == (
        1,
        [
            "made-by-command has partitions with 1 replica, 3 are wanted: add them with "
            "kafka-reassign-partitions.sh; if so few are meant, say --replication-factor",
            "made-by-command: min.insync.replicas is 1, 2 is wanted",
        ],
    )
    monkeypatch.setattr(kafka, "wanted_topics", lambda _: (replace(topic, partitions=3),))
    fewer = run(broker.bootstrap, "check")
    assert (fewer.exit_code, "has 2 partitions, 3 are wanted" in fewer.output) == (1, True)
