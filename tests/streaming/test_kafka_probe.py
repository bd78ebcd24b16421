"""The probe of Kafka says that nothing answers, again and again, until it is stopped."""

from __future__ import annotations

from queue import SimpleQueue

from schemas.kafka.connection import KafkaConnection
from streaming.job import kafka_probe


def test_probe_reports_each_lack_of_an_answer(monkeypatch):
    monkeypatch.setattr(kafka_probe, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(kafka_probe, "ASK_SECONDS", 0.01)
    reports = SimpleQueue[bool]()
    probe = kafka_probe.KafkaProbe(KafkaConnection("127.0.0.1:1"), reports.put)
    probe.start()
    try:
        assert [reports.get(timeout=60) for _ in range(2)] == [False, False]
    finally:
        probe.stop()
        probe.join(60)
    assert not probe.is_alive()
