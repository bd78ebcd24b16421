"""Clients of the local run: their configuration, consumers that fail, and counts at the end."""

from __future__ import annotations

import threading

from anabranch.local.clients import topic as clients
from anabranch.local.clients.ledger import MessageLedger
from anabranch.local.clients.traffic import client_config
from schemas.settings.root import load_settings


def test_clients_have_the_access_of_the_admin_client(tmp_path):
    overlay = tmp_path / "own.toml"
    overlay.write_text(f'[controller]\nurl = "https://localhost:8443"\nurl_ca = "{tmp_path}/ca.pem"\n')
    config = client_config(load_settings([overlay], environment={"ANABRANCH_CONTROLLER_TOKEN": "let-me-in"}))
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

    monkeypatch.setattr(clients, "StreamConsumer", Broken)
    monkeypatch.setattr(clients, "RETRY_SECONDS", 0.01)
    thread = clients.ConsumerThread({}, "topic://acme/shop/orders", "billing-0", MessageLedger("a"))
    try:
        assert begun.acquire(timeout=60)
        assert begun.acquire(timeout=60)
        assert thread.is_alive
    finally:
        thread.stop()
        thread.join(60)
    assert not thread.is_alive
