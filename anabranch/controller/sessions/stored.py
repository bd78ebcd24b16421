"""Stored state of the sessions of a subscription: its coordinator, and its progress.

Stage: under `manager`, `connections`, `draining` and `positioning`.
"""

import logging
from dataclasses import replace
from typing import NamedTuple

from anabranch.controller.errors import ControllerError, NotFound
from anabranch.controller.metadata.base import StoreError
from anabranch.controller.metadata.records import ConsumerRegistration, SubscriptionRecord
from anabranch.controller.sessions.assignment import assignable
from anabranch.controller.sessions.coordinator import Away, SubscriptionCoordinator, restore
from anabranch.controller.sessions.registry import SubscriptionRegistry
from decisions.topic.segment import segment_topic
from schemas.kafka.messages import SubscriptionType

log = logging.getLogger(__name__)

NO_CONNECTION = Away(2**62)
"""Session of a consumer that was registered by REST: it never expires."""

SubscriptionKey = tuple[str, str]
"""A topic and one of its subscriptions."""


class DrainLook(NamedTuple):
    """Result of one look at the sealed segments of a subscription."""

    drained: frozenset[int]
    """Segments newly found to be read to the end."""
    is_reading: bool
    """True if other sealed segments are left."""
    unread: int
    """Unread messages in segments where it has a position."""
    answered: bool
    """False if some segments did not answer."""


class StoredSessions:
    """Coordinators as stored in the metadata store and the segments."""

    def __init__(self, registry: SubscriptionRegistry, grace_ms: int) -> None:
        self._registry, self._grace_ms = registry, grace_ms

    def load(self, key: SubscriptionKey, type: SubscriptionType | None, now_ms: int) -> SubscriptionCoordinator:
        """Load a subscription's coordinator, all consumers away with a full grace period from `now_ms`.

        A missing one is created with `type`; without a type raises `NotFound`.
        """
        layout, membership = self._registry.membership(*key)
        if membership is None:
            if type is None:
                raise NotFound(f"Subscription not found: {key[1]} on {key[0]}")
            return SubscriptionCoordinator(key[1], type, self._grace_ms, layout)
        restored = restore(
            key[1],
            SubscriptionRecord(
                type=membership.type, drained=membership.drained, contested=membership.contested, life=membership.life
            ),
            [ConsumerRegistration(consumer_name=name) for name in membership.consumers],
            layout,
            self._grace_ms,
            now_ms,
        )
        sessions = {
            name: restored.sessions[name] if needs_connection else NO_CONNECTION
            for name, needs_connection in membership.consumers.items()
        }
        # A consumer registered by REST polls at any time, so its current segments are unknown.
        held = {name: segments for name, segments in restored.kept.items() if membership.consumers[name]}
        return replace(restored, sessions=sessions, kept=held)

    def find_drained(self, key: SubscriptionKey, coordinator: SubscriptionCoordinator) -> DrainLook:
        """Find the sealed segments that were read to the end since; children after parents."""
        drained: set[int] = set()
        while True:
            drained_so_far = coordinator.drained | drained
            reading = {
                segment.segment_id: segment_topic(key[0], segment)
                for segment in assignable(coordinator.layout, drained_so_far)
                if not segment.is_active
            }
            try:
                unread = self._registry.backlogs(key[1], reading, coordinator.layout)
            except (ControllerError, StoreError) as error:
                log.warning("cannot tell what %s of %s has read: %s", key[1], key[0], error)
                return DrainLook(frozenset(drained), True, 0, False)
            if not (read := {id for id, left in unread.items() if left == 0}):
                return DrainLook(frozenset(drained), bool(reading), sum(unread.values()), True)
            drained |= read
