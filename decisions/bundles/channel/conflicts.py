"""Conflict resolution: if a reader takes a record or keeps the one it has.

Source: PIP-192, `ServiceUnitStateDataConflictResolver`. Every reader, and the topic's compaction, folds the records in
order by this rule; the metadata store asks it at each write.
"""

from enum import Enum

from decisions.bundles.channel.records import (
    FIRST_VERSION,
    LAST_VERSION,
    TRANSITIONS,
    BundleRecord,
    State,
    Store,
    state_of,
)


class ConflictRefusal(Enum):
    """Reasons for which a record is not taken."""

    STALE = "stale"
    GAP = "version-gap"
    NOT_FIRST = "not-first"
    TRANSITION = "illegal-transition"
    BROKERS = "brokers"


def refuse_record(old: BundleRecord | None, new: BundleRecord | None, store: Store) -> ConflictRefusal | None:
    """Return why `new` is not taken after `old`, or None. A tombstone (None) always is."""
    if new is None:
        return None
    if old is None and store is Store.METADATA:
        # Its children are how a split needs this: `Owned` may be a bundle's first state, whatever the table says.
        return None if new.version == FIRST_VERSION else ConflictRefusal.NOT_FIRST
    if old is None:
        return None if new.force else refuse_transition(old, new, store)
    wraps = old.version == LAST_VERSION and new.version == -LAST_VERSION - 1
    if not wraps and new.version <= old.version:
        return ConflictRefusal.STALE
    if not wraps and new.version > old.version + 1:
        return None if store is Store.TOPIC else ConflictRefusal.GAP
    return None if new.force else refuse_transition(old, new, store)


def refuse_transition(old: BundleRecord | None, new: BundleRecord | None, store: Store) -> ConflictRefusal | None:
    """Return why this state with these brokers may not follow that one, leaving out versions and force."""
    if state_of(new) not in TRANSITIONS[store][state_of(old)]:
        return ConflictRefusal.TRANSITION
    if old is None or new is None:
        return None
    return None if _brokers_fit(old, new) else ConflictRefusal.BROKERS


def _brokers_fit(old: BundleRecord, new: BundleRecord) -> bool:
    same = (new.source, new.destination) == (old.source, old.destination)
    if old.state is State.OWNED:
        if new.state is State.SPLITTING:
            return not new.destination and new.source == old.destination
        return new.source == old.destination != new.destination
    if old.state is State.FREE:
        return not new.source and bool(new.destination)
    if old.state in (State.INIT, State.DELETED):
        return True
    if old.state is State.RELEASING and new.state is State.ASSIGNING:
        return same and bool(new.destination)
    return same
