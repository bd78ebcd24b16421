"""What the store holds of a coordinator, as its records."""

from __future__ import annotations

from anabranch.controller.metadata.records import ConsumerRegistration, SubscriptionRecord
from anabranch.controller.sessions.coordinator import SubscriptionCoordinator


def record_of(coordinator: SubscriptionCoordinator) -> SubscriptionRecord:
    """The record of a coordinator as it is now."""
    drained, contested = tuple(sorted(coordinator.drained)), coordinator.contested or None
    return SubscriptionRecord(type=coordinator.type, drained=drained, contested=contested)


def registrations(coordinator: SubscriptionCoordinator) -> list[ConsumerRegistration]:
    """The sessions of a coordinator, by name."""
    return [ConsumerRegistration(consumer_name=name) for name in sorted(coordinator.sessions)]
