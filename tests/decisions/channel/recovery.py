"""Bundles whose broker is lost, and changes that are stuck: what the leader writes.

Source: PIP-192 "Bundle State Channel Recovery", `ServiceUnitStateChannelImpl` (`handleBrokerDeletionEvent`,
`monitorOwnerships`). All of it is written with `force`: it is no step of the usual way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum

from decisions.bundles.channel.records import IN_FLIGHT, IN_FLIGHT_MS, BundleRecord, State, brokers_of
from tests.decisions.channel.protocol import next_version

JITTER_MS = 180_000
"""How long a session that came back is not trusted (`maxCleanupDelayTimeInSecs`)."""
SYSTEM_NAMESPACE = "pulsar/system/"


class Session(Enum):
    """Trustworthiness of the leader's own session with the metadata store."""

    STABLE = "Stable"
    JITTERY = "Jittery"
    UNSTABLE = "Unstable"


def session_health(connected: bool, since: int, now: int) -> Session:
    """The session's health: `since` is when it was lost or established again, 0 if it never was lost."""
    if not connected:
        return Session.UNSTABLE
    return Session.JITTERY if since and now - since < JITTER_MS else Session.STABLE


def reowned_at(health: Session, now: int) -> int | None:
    """Return when the bundles of a broker lost now get other owners; None if the loss is not believed."""
    return {Session.STABLE: now, Session.JITTERY: now + JITTER_MS, Session.UNSTABLE: None}[health]


def recovery_order(bundles: Iterable[str]) -> list[str]:
    """Those of the system's namespace last: the channel itself lives there."""
    return sorted(bundles, key=lambda bundle: (bundle.startswith(SYSTEM_NAMESPACE), bundle))


def override_record(record: BundleRecord | None, lost: str, chosen: str, now: int) -> BundleRecord | None:
    """A record that a lost broker concerns, given to `chosen`; '' when there is no candidate: `Free`.

    A split goes on at the new broker; anything else is owned there (`overrideOwnership`).
    """
    if record is None or lost not in brokers_of(record):
        return None
    version = next_version(record)
    if not chosen:
        return BundleRecord(State.FREE, version, source=lost, force=True, at=now)
    if record.state is State.SPLITTING:
        return BundleRecord(State.SPLITTING, version, record.destination, chosen, True, record.children, now)
    return BundleRecord(State.OWNED, version, chosen, lost, force=True, at=now)


def is_stuck(record: BundleRecord | None, now: int) -> bool:
    """Tell if a change is under way for longer than it may be."""
    return record is not None and record.state in IN_FLIGHT and now - record.at > IN_FLIGHT_MS


def monitor_bundle(record: BundleRecord | None, alive: Collection[str], chosen: str, now: int) -> BundleRecord | None:
    """Return what one round of the monitor writes for a bundle.

    None when it is in order, or `chosen` is needed and ''. Records that concern a dead broker are overridden. Of stuck
    ones a split is published again; a bundle that is released goes back to its source, one that is assigned forward to
    `chosen` (`getOverrideInFlightStateData`).
    """
    if record is None:
        return None
    lost = next((broker for broker in brokers_of(record) if broker not in alive), "")
    if lost:
        return override_record(record, lost, chosen, now)
    if not is_stuck(record, now):
        return None
    version = next_version(record)
    if record.state is State.SPLITTING:
        return record._replace(version=version, force=True, at=now)
    owner = record.source if record.state is State.RELEASING else chosen
    return BundleRecord(State.OWNED, version, owner, force=True, at=now) if owner else None
