"""The job's configured cluster policy, announced in the stream before the first batch.

Stage: start-up. A policy known only from settings could change under a batch replayed after a crash; as a message in
`control-events` it is the same for every attempt, and for every replay of the lake (PIP-483 "Policy resolution").
"""

import time

from confluent_kafka import KafkaException, Producer

from decisions.autoscale.policy import ClusterPolicy, PolicyError, read_cluster_policy
from engine.autoscale.topics import ConfiguredPolicy
from engine.kernel.settings import EngineSettings
from schemas.kafka.connection import KafkaConnection
from schemas.kafka.messages import VERSION, PolicyEvent, key_of
from schemas.kafka.topics import CONTROL_EVENTS
from schemas.settings.root import Settings, SettingsError

DELIVERY_SECONDS = 30.0
"""Longest wait for Kafka to accept the message; the job does not start before."""


class NotAnnounced(RuntimeError):
    """Kafka did not accept the policy; the message says why."""


def engine_settings(settings: Settings) -> EngineSettings:
    """Return the settings that workers need."""
    return EngineSettings(
        change_threshold=settings.stream.change_threshold,
        tick_ms=int(settings.stream.tick_seconds * 1000),
        bundles=settings.bundles.enabled,
    )


def configured_policy(settings: Settings) -> ClusterPolicy:
    """Return the cluster's policy from the settings; raises `SettingsError` when its file is unreadable."""
    text = settings.cluster_policy_text()
    try:
        return read_cluster_policy(settings.policy.profile, text)
    except PolicyError as error:
        file = settings.path(settings.policy.cluster)
        raise SettingsError(f"cannot read the cluster's policy {file}, [policy] cluster: {error}") from error


def policy_event(policy: ClusterPolicy, instant: int) -> PolicyEvent:
    """Return the message with the configured policy; `instant` in milliseconds."""
    return PolicyEvent(
        v=VERSION, type="policy", scope="cluster", profile=policy.profile, policy=policy.override, at=instant
    )


def stored_policy(policy: ClusterPolicy) -> ConfiguredPolicy:
    """Return the policy in the form that a bucket stores."""
    return ConfiguredPolicy(policy.profile, None if policy.override is None else policy.override.to_json())


def announce_policy(kafka: KafkaConnection, policy: ClusterPolicy, seconds: float = DELIVERY_SECONDS) -> None:
    """Write the policy to `control-events` and wait until Kafka has it; raises `NotAnnounced`."""
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
