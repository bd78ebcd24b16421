"""The probe of Kafka says that nothing answers, again and again, until it is stopped."""

from __future__ import annotations

from queue import SimpleQueue

from schemas.kafka.connection import KafkaConnection
from streaming.job import watch


def test_probe_reports_each_lack_of_an_answer(monkeypatch):
    monkeypatch.setattr(watch, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(watch, "ASK_SECONDS", 0.01)
    reports = SimpleQueue[bool]()
    probe = watch.KafkaProbe(KafkaConnection("127.0.0.1:1"), reports.put)
    probe.start()
    try:
        assert [reports.get(timeout=60) for _ in range(2)] == [False, False]
    finally:
        probe.stop()
        probe.join(60)
    assert not probe.is_alive()
