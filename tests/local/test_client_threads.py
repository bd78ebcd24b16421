"""Clients of the local run: their configuration, consumers that fail, and counts at the end."""

from __future__ import annotations

import threading
from types import SimpleNamespace

from anabranch.local.clients import traffic
from anabranch.local.clients.ledger import MessageLedger
from anabranch.local.local_run import CLIENTS_STOP_SECONDS
from schemas.settings.root import load_settings


def test_clients_have_the_access_of_the_admin_client(tmp_path):
    overlay = tmp_path / "own.toml"
    overlay.write_text(f'[controller]\nurl = "https://localhost:8443"\nurl_ca = "{tmp_path}/ca.pem"\n')
    config = traffic.client_config(load_settings([overlay], environment={"ANABRANCH_CONTROLLER_TOKEN": "let-me-in"}))
    assert {name: value for name, value in config.items() if name.startswith("anabranch.")} == {
        "anabranch.controller.url": "https://localhost:8443",
        "anabranch.controller.token": "let-me-in",
        "anabranch.controller.ssl.ca.location": f"{tmp_path}/ca.pem",
    }


def test_consumer_begins_again_after_any_error(monkeypatch):
    begun = threading.Semaphore(0)

    class Broken:
        def __init__(self, *arguments) -> None:
            begun.release()
            raise RuntimeError("out of threads")

    monkeypatch.setattr(traffic, "StreamConsumer", Broken)
    monkeypatch.setattr(traffic, "RETRY_SECONDS", 0.01)
    thread = traffic.ConsumerThread({}, "topic://acme/shop/orders", "billing-0", MessageLedger("a"))
    try:
        assert begun.acquire(timeout=60)
        assert begun.acquire(timeout=60)
        assert thread.is_alive
    finally:
        thread.stop()
        thread.join(60)
    assert not thread.is_alive


class SlowClients:
    """Clients of a topic that take all the time they get; one message was never read."""

    def __init__(self, clock: list[float]) -> None:
        self.clock, self.ledger = clock, MessageLedger("a")
        self.ledger.settle(b"k", self.ledger.write_value(b"k"), True)

    def flush(self, seconds: float) -> None:
        self.clock[0] += seconds

    def stop_consumers(self) -> None:
        pass

    def close(self, end: float) -> None:
        self.clock[0] = max(self.clock[0], end)


def test_end_of_slow_clients_keeps_within_its_time(monkeypatch, caplog):
    clock = [1_000.0]
    own_time = SimpleNamespace(
        monotonic=lambda: clock[0], sleep=lambda seconds: clock.__setitem__(0, clock[0] + seconds)
    )
    monkeypatch.setattr(traffic, "time", own_time)
    topics = [SlowClients(clock) for _ in range(8)]
    traffic._drain(topics)
    traffic._close(topics)
    assert clock[0] <= 1_000 + CLIENTS_STOP_SECONDS - 10
    assert "8 messages were not read" in caplog.text
