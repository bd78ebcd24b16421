"""The subscription coordinator of PIP-468: which consumer holds which segment, and for how long without a connection.

Everything here is a value without clock, socket or store: `assignment` is the rule, `sessions` the state machine around
it, `records` what of it outlives a leader and what a consumer is told. Whoever leads a topic stores, then sends.
"""

from controller.coordinator.assignment import assign, assignable, changed, replayable
from controller.coordinator.records import (
    ConsumerAssignment,
    ConsumerRegistration,
    SubscriptionRecord,
    registrations,
    restore,
)
from controller.coordinator.sessions import Change, Link, MembershipEvent, Push, SubscriptionCoordinator

__all__ = [
    "Change",
    "ConsumerAssignment",
    "ConsumerRegistration",
    "Link",
    "MembershipEvent",
    "Push",
    "SubscriptionCoordinator",
    "SubscriptionRecord",
    "assign",
    "assignable",
    "changed",
    "registrations",
    "replayable",
    "restore",
]
