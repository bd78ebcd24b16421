"""Settings of the clients: what is ours, what is Kafka's, and what is refused."""

from __future__ import annotations

from unittest.mock import MagicMock

import confluent_kafka
import pytest

from anabranch_client import transactions
from anabranch_client.config import ProducerSettings, split_settings
from anabranch_client.controller import Controller
from anabranch_client.errors import ClientSettingsError
from anabranch_client.transactions import TransactionalProducer

KAFKA = {"bootstrap.servers": "kafka:9092", "security.protocol": "SASL_SSL", "sasl.password": "secret"}
URL = {"anabranch.controller.url": "http://one:8080, http://two:8080/"}


def test_kafka_settings_pass_through_unchanged() -> None:
    controller, kafka = split_settings({**KAFKA, **URL, "anabranch.controller.token": "t0ken"})
    assert kafka == KAFKA
    assert controller.urls == ("http://one:8080", "http://two:8080")
    assert controller.headers() == {"Authorization": "Bearer t0ken"}
    assert "t0ken" not in repr(controller)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (KAFKA, "anabranch.controller.url is missing"),
        (URL, "bootstrap.servers is missing"),
        ({**KAFKA, "anabranch.controller.url": "one:8080"}, "not of the form"),
        ({**KAFKA, "anabranch.controller.url": "http://one:80800"}, "not of the form"),
        ({**KAFKA, "anabranch.controller.url": "http://me:secret@one:8080"}, "holds a user: give anabranch"),
        ({**KAFKA, **URL, "anabranch.contoller.token": "x"}, "unknown setting anabranch.contoller.token"),
        ({**KAFKA, **URL, "anabranch.controller.token": "x", "anabranch.controller.token.file": "y"}, "exclude"),
        ({**KAFKA, **URL, "acks": "1"}, "acks must be all"),
        ({**KAFKA, **URL, "enable.idempotence": False}, "enable.idempotence must be true"),
        ({**KAFKA, **URL, "transactional.id": "x"}, "use TransactionalProducer"),
        ({**KAFKA, **URL, "message.timeout.ms": "soon"}, "no number"),
    ],
)
def test_wrong_setting_is_refused_with_reason(config: dict[str, object], reason: str) -> None:
    with pytest.raises(ClientSettingsError, match=reason):
        ProducerSettings.of(config)


@pytest.mark.parametrize(
    ("base", "target", "is_admitted"),
    [
        ("http://one:8080", "http://one:8080", True),
        ("http://one:8080", "https://one:8443", True),
        ("http://one:8080", "http://two:8080", False),
        ("https://one:8443", "http://one:8443", False),
        ("http://127.0.0.1:1", "http://localhost:2", True),
        ("http://one:8080", "http://127.0.0.1:2", False),
        ("http://one:8080", "http://user@one:8080", False),
    ],
)
def test_token_goes_to_trusted_addresses_only(base: str, target: str, is_admitted: bool) -> None:
    config = {**KAFKA, "anabranch.controller.url": base, "anabranch.controller.token": "t0ken"}
    assert Controller(split_settings(config)[0])._admits(target) is is_admitted


def test_transactions_are_bounded_and_create_no_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, object] = {}

    def refuse(settings: dict[str, object]) -> None:
        options.update(settings)
        raise confluent_kafka.KafkaException

    monkeypatch.setattr(transactions, "LayoutWatch", MagicMock())
    monkeypatch.setattr(confluent_kafka, "Producer", refuse)
    with pytest.raises(ClientSettingsError):
        TransactionalProducer(
            {**KAFKA, **URL, "queue.buffering.max.messages": 7}, "topic://acme/shop/orders", "orders-1"
        )
    assert options["allow.auto.create.topics"] is False
    assert options["queue.buffering.max.messages"] == 7
    assert options["queue.buffering.max.kbytes"] == 131_072
