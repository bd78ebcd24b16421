"""A Kafka for tests that need the protocol and no JVM."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer


@pytest.fixture(scope="module")
def kafka() -> Iterator[str]:
    """Bootstrap address of librdkafka's own mock cluster: the real protocol, no JVM."""
    owner = Producer({"test.mock.num.brokers": "1", "bootstrap.servers": "unused:1", "log_level": 0})
    yield ",".join(f"{broker.host}:{broker.port}" for broker in owner.list_topics(timeout=10).brokers.values())
    owner.flush(1)
