"""Clients of a Kafka that was away: whoever had no answer is not asked again, and nobody waits for its end."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from anabranch.controller.segments import kafka_groups
from anabranch.controller.segments.base import SegmentStoreError
from anabranch.controller.segments.kafka import KafkaSegments
from anabranch.controller.segments.kafka_groups import CommittedOffsets
from schemas.kafka.connection import KafkaConnection
from tests.controller.conftest import NOWHERE

SEGMENT = "segment://acme/away/t/0000-ffff-0"


@pytest.fixture
def segments() -> KafkaSegments:
    return KafkaSegments(KafkaConnection(NOWHERE), timeout_seconds=0.2)


def test_unanswered_request_moves_to_next_client(segments: KafkaSegments) -> None:
    first = segments._kafka.admin
    with pytest.raises(SegmentStoreError, match="gave no answer"):
        segments.subscriptions(SEGMENT)
    second = segments._kafka.admin
    assert second is not first
    assert not segments.answers()
    third = segments._kafka.admin
    assert third not in (first, second)
    # One question that an earlier client has failed at does not tell on this one.
    segments._kafka.had_no_answer(first)
    assert segments._kafka.admin is third


def test_cluster_without_brokers_has_not_answered(segments: KafkaSegments) -> None:
    """As a broker says that was away and is not taken back yet; the client that hears it asks nobody any more."""
    deaf: Any = SimpleNamespace(list_topics=lambda *_, **__: SimpleNamespace(brokers={}, topics={}))
    segments._kafka._admin = deaf
    assert not segments.answers()
    assert segments._kafka.admin is not deaf
    segments._kafka._admin = deaf
    with pytest.raises(SegmentStoreError, match="check that it runs"):
        segments.subscriptions(SEGMENT)
    assert segments._kafka.admin is not deaf


def test_endless_reader_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    over, answers = threading.Event(), {"fine"}

    class Reader:
        def __init__(self, configuration: dict[str, Any]) -> None:
            self.group = configuration["group.id"]
            made.append(self.group)

        def committed(self, partitions: list[Any], timeout: float) -> list[Any]:
            if self.group not in answers:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            return [SimpleNamespace(error=None, offset=7)]

        def close(self) -> None:
            over.wait()

    monkeypatch.setattr(kafka_groups, "Consumer", Reader)
    offsets = CommittedOffsets(KafkaConnection(NOWHERE), 0.2)
    try:
        with pytest.raises(KafkaException):
            offsets.of(["fine", "deaf", "behind"], "t", 0)
        answers |= {"deaf", "behind"}
        assert offsets.of(["fine", "deaf", "behind"], "t", 0) == {"fine": 7, "deaf": 7, "behind": 7}
        assert made == ["fine", "deaf", "behind", "deaf", "behind"]
        offsets.forget()
        assert offsets.of(["fine"], "t", 0) == {"fine": 7}
        assert made[5:] == ["fine"]
    finally:
        over.set()
