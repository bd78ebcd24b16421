"""The cluster's policy as the job is configured with it, put on record in the stream before the first batch.

Stage: start-up. A policy that only the settings had would change under a batch that is replayed after a crash; as a
message in `control-events` every attempt sees the same one, and so does every replay of the lake (PIP-483 "Policy
resolution").
"""

from __future__ import annotations

import time

from confluent_kafka import KafkaException, Producer

from decisions.autoscale.policy import ClusterPolicy, PolicyError, read_cluster_policy
from engine.autoscale.topics import ConfiguredPolicy
from schemas.kafka import CONTROL_EVENTS
from schemas.kafka_connection import KafkaConnection
from schemas.messages import VERSION, PolicyEvent, key_of
from schemas.settings import Settings, SettingsError

DELIVERY_SECONDS = 30.0
"""Longest wait for Kafka to take the message; the job does not start before."""


class NotAnnounced(RuntimeError):
    """Kafka did not take the policy; the message says why."""


def configured_policy(settings: Settings) -> ClusterPolicy:
    """The cluster's policy of the settings; raises `SettingsError` when its file cannot be read."""
    text = settings.cluster_policy_text()
    try:
        return read_cluster_policy(settings.policy.profile, text)
    except PolicyError as error:
        file = settings.path(settings.policy.cluster)
        raise SettingsError(f"cannot read the cluster's policy {file}, [policy] cluster: {error}") from error


def policy_event(policy: ClusterPolicy, at: int) -> PolicyEvent:
    """The message that says what the job is configured with; `at` in milliseconds."""
    return PolicyEvent(v=VERSION, type="policy", scope="cluster", profile=policy.profile, policy=policy.override, at=at)


def stored_policy(policy: ClusterPolicy) -> ConfiguredPolicy:
    """The policy as a bucket stores it."""
    return ConfiguredPolicy(policy.profile, None if policy.override is None else policy.override.to_json())


def announce_policy(kafka: KafkaConnection, policy: ClusterPolicy, seconds: float = DELIVERY_SECONDS) -> None:
    """Writes the policy to `control-events` and waits until Kafka has it; raises `NotAnnounced`."""
    event = policy_event(policy, time.time_ns() // 1_000_000)
    failures: list[str] = []

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            failures.append(str(error))

    producer = Producer(
        kafka.librdkafka({"enable.idempotence": True, "log_level": 3, "message.timeout.ms": int(seconds * 1000)})
    )
    try:
        producer.produce(CONTROL_EVENTS.name, event.to_json().encode(), key_of(event).encode(), on_delivery=delivered)
        waiting = producer.flush(seconds + 5)
    except (BufferError, KafkaException) as error:
        raise NotAnnounced(f"Kafka at {kafka.bootstrap} does not take the cluster's policy: {error}") from error
    if waiting or failures:
        reason = failures[0] if failures else f"no answer within {seconds:.0f} s"
        raise NotAnnounced(f"Kafka at {kafka.bootstrap} does not take the cluster's policy: {reason}")
