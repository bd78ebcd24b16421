"""Outcome events on a real broker, and what happens without one."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from anabranch.executor.kernel.publisher import KafkaPublisher
from anabranch.local.broker import EmbeddedBroker
from schemas.kafka.connection import KafkaConnection
from schemas.kafka.messages import OutcomeEvent
from tests.controller.listening import Listener
from tests.executor.conftest import House
from tests.runtime.messaging.fatal import fail_for_good
from tests.waiting import wait_until


def event(topic: str, decision_id: str, status: str = "applied") -> OutcomeEvent:
    """An outcome event."""
    return OutcomeEvent.model_validate(
        {"v": 1, "type": "outcome", "decisionId": decision_id, "topic": topic, "status": status, "at": 1}
    )


def test_publisher_without_broker_stops_and_reports(caplog: pytest.LogCaptureFixture):
    publisher = KafkaPublisher(KafkaConnection("127.0.0.1:1"))
    for number in range(3):
        publisher.publish(event("topic://acme/shop/orders", f"d{number}"))

    def told() -> bool:
        publisher.poll()
        return any("no Kafka broker" in record.message for record in caplog.records)

    wait_until(told)
    publisher.close()
    assert "are not confirmed: the next start repeats them" in caplog.text


@pytest.mark.broker
def test_every_event_survives_a_producer_that_broke(broker: EmbeddedBroker):
    prefix = "topic://acme/publisher/"
    publisher = KafkaPublisher(broker.connection)
    publisher.publish(event(prefix + "one", "d1"))
    publisher.publish(event(prefix + "one", "d2", "failed"))
    fail_for_good(publisher._producer._producer)
    publisher.publish(event(prefix + "two", "d3"))
    publisher.close()
    assert not publisher._unconfirmed
    listener = Listener(broker.bootstrap, prefix)
    listener.read_until(lambda: {"d1", "d2", "d3"} <= {getattr(m, "decision_id", "") for m in listener.messages})
    listener.close()


@pytest.mark.broker
def test_command_applies_announces_and_stops(house: House, broker: EmbeddedBroker, tmp_path: Path):
    settings = tmp_path / "executor.toml"
    settings.write_text(
        f'[lake]\npath = "{house.lake}"\n[controller]\nurl = "{house.controller.url}"\n'
        f'[kafka]\nbootstrap = "{broker.bootstrap}"\n'
    )
    topic = house.create("command")
    observed = house.decide(topic, 0)
    house.commit(observed, decision_id="observed")
    for mode, decided in (("observe", "observed"), ("act", house.decide(topic, 0).decision_id)):
        if mode == "act":
            house.commit(house.decide(topic, 0))
        command = [sys.executable, "-m", "anabranch", "-c", str(settings), "executor", "--mode", mode]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        listener = Listener(broker.bootstrap, topic)
        try:
            listener.read_until(
                lambda wanted=decided, heard=listener: any(
                    isinstance(m, OutcomeEvent) and m.decision_id == wanted for m in heard.messages
                ),
                60,
            )
            process.send_signal(signal.SIGTERM)
            out, _ = process.communicate(timeout=30)
        finally:
            listener.close()
            process.kill()
        assert process.returncode == 0
        assert f"executor ready: mode {mode}" in out
    assert [end["status"] for end in house.ends()] == ["observed", "applied"]
    assert house.layout(topic).epoch == 1


@pytest.mark.process
def test_unopenable_lake_reported_in_one_line(tmp_path: Path):
    (tmp_path / "lake").write_text("not a folder")
    settings = tmp_path / "executor.toml"
    settings.write_text(f'[lake]\npath = "{tmp_path}/lake"\n')
    command = [sys.executable, "-m", "anabranch", "-c", str(settings), "executor"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: cannot read the lake at")
    assert "Traceback" not in done.stderr
