"""A producer that has failed for good is replaced by another, and nobody notices but by a failed delivery."""

from __future__ import annotations

import pytest

from runtime.messaging.producer import LastingProducer
from tests.runtime.messaging.fatal import fail_for_good
from tests.waiting import wait_until

MOCK = {"test.mock.num.brokers": "1", "bootstrap.servers": "unused:1", "enable.idempotence": True, "log_level": 0}


class Deliveries(list):
    """How the deliveries of messages ended."""

    def of(self, name):
        return lambda error, _: self.append((name, error is None))


@pytest.fixture
def producer():
    return LastingProducer(MOCK)


@pytest.mark.parametrize("noticed_by", ["produce", "poll", "flush"])
def test_message_after_fatal_error_delivered(producer, noticed_by):
    told = Deliveries()
    producer.produce("a-topic", b"x", b"k", told.of("before"))
    assert producer.flush(10) == 0
    fail_for_good(producer._producer)
    if noticed_by == "poll":
        producer.poll(0.2)
    elif noticed_by == "flush":
        producer.flush(0.2)
    producer.produce("a-topic", b"x", b"k", told.of("after"))
    assert producer.flush(10) == 0
    assert told == [("before", True), ("after", True)]


def test_what_was_on_its_way_is_told_as_failed():
    # With a wait before it is sent, so that it cannot arrive before the fault.
    producer, told = LastingProducer({**MOCK, "linger.ms": 1_000}), Deliveries()
    producer.produce("a-topic", b"x", b"k", told.of("lost"))
    fail_for_good(producer._producer)
    wait_until(lambda: producer.poll(0.05) or told)
    assert told == [("lost", False)]
    producer.produce("a-topic", b"x", b"k", told.of("again"))
    assert producer.flush(10) == 0
    assert told[1:] == [("again", True)]


def test_nonfatal_errors_reported_without_replacement():
    errors = []
    producer = LastingProducer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "error_cb": errors.append})
    first = producer._producer
    for _ in range(100):
        producer.poll(0.05)
        if errors:
            break
    assert errors
    assert producer._producer is first
