"""Requests to the channel and reactions of brokers: each function returns what is written next.

Source: PIP-192 "Bundle State Channel" and "Bundle Transfer", PIP-307 (connections are kept until the new owner is
there), `ServiceUnitStateChannelImpl`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from decisions.bundles.channel.records import ACTIVE, FIRST_VERSION, LAST_VERSION, BundleRecord, State, state_of

LOOKUP_WAIT_MS = 30_000
"""How long an answer is put off until the bundle is owned."""
TOMBSTONE_AFTER_MS = 3_600_000
"""How long a bundle stays `Deleted` or `Free` before its record is removed."""


def next_version(record: BundleRecord | None) -> int:
    """Return the version of the record that is written after this one."""
    if record is None:
        return FIRST_VERSION
    return -LAST_VERSION - 1 if record.version == LAST_VERSION else record.version + 1


class ChannelWrite(NamedTuple):
    """A record, or a tombstone, for a bundle."""

    bundle: str
    record: BundleRecord | None


class ChannelAnswer(Enum):
    """Answers of a lookup."""

    OWNER = "owner"
    LATER = "later"
    NOBODY = "nobody"
    DELETED = "deleted"


class Lookup(NamedTuple):
    """The answer to who owns a bundle; `LATER` waits until `until`, then fails."""

    answer: ChannelAnswer
    broker: str = ""
    until: int = 0


class ChannelClients(Enum):
    """Effects on a bundle's connections at the broker that reads a record."""

    KEEP = "keep"
    SERVE = "serve"
    FENCE = "fence"
    """Its topics are closed; the connections stay (PIP-307)."""
    CLOSE = "close"
    """Its topics are closed and the clients sent on."""


class Reaction(NamedTuple):
    """Reaction of a broker to a record that it takes."""

    writes: tuple[ChannelWrite, ...] = ()
    clients: ChannelClients = ChannelClients.KEEP


def lookup_owner(record: BundleRecord | None, asked: str, now: int) -> Lookup:
    """Return the owner of a bundle by the broker `asked` (PIP-192 "Bundle Ownership Lookup").

    The destination of a hand-over puts the answer off until it is the owner; others name it at once.
    """
    state = state_of(record)
    if record is None or state is State.FREE:
        return Lookup(ChannelAnswer.NOBODY)
    if state is State.DELETED:
        return Lookup(ChannelAnswer.DELETED)
    if state is State.OWNED:
        return Lookup(ChannelAnswer.OWNER, record.destination)
    if state is State.SPLITTING:
        return Lookup(ChannelAnswer.OWNER, record.source)
    if not record.destination:
        return Lookup(ChannelAnswer.NOBODY)
    if record.destination == asked:
        return Lookup(ChannelAnswer.LATER, asked, now + LOOKUP_WAIT_MS)
    return Lookup(ChannelAnswer.OWNER, record.destination)


def assign_bundle(record: BundleRecord | None, broker: str, now: int) -> BundleRecord | None:
    """`Assigning` to a broker, for a bundle that nobody has; None when somebody has it or gets it already."""
    if state_of(record) not in (State.INIT, State.FREE):
        return None
    return BundleRecord(State.ASSIGNING, next_version(record), broker, at=now)


def unload_bundle(record: BundleRecord | None, destination: str, now: int) -> BundleRecord | None:
    """Return `Releasing` by the owner, to a destination or to nobody.

    None when nobody owns it, or the destination does.
    """
    if record is None or record.state is not State.OWNED or record.destination == destination:
        return None
    return BundleRecord(State.RELEASING, next_version(record), destination, record.destination, at=now)


def split_bundle(record: BundleRecord | None, children: Sequence[tuple[str, str]], now: int) -> BundleRecord | None:
    """Return `Splitting` by the owner, into children, each with its broker or none.

    None if nobody owns it.
    """
    if record is None or record.state is not State.OWNED:
        return None
    return BundleRecord(State.SPLITTING, next_version(record), "", record.destination, children=tuple(children), at=now)


def react_to_record(me: str, bundle: str, record: BundleRecord | None, now: int, multi_phase: bool = True) -> Reaction:
    """Return the reaction of broker `me` to a record that it takes; splits go on with `advance_split`.

    - `Assigning`: the destination writes `Owned`.
    - `Releasing`: the source stops serving, then writes `Assigning`, or `Free` without a destination.
    - `Owned`: the destination serves; a broker that is not it closes what it has of the bundle, sends clients on.
    """
    if record is None or record.state in (State.FREE, State.DELETED, State.INIT):
        return Reaction(clients=ChannelClients.CLOSE)
    if record.state is State.OWNED:
        return Reaction(clients=ChannelClients.SERVE if record.destination == me else ChannelClients.CLOSE)
    if record.state is State.SPLITTING:
        return Reaction(clients=ChannelClients.SERVE if record.source == me else ChannelClients.CLOSE)
    if record.state is State.ASSIGNING:
        if record.destination != me:
            return Reaction()
        return Reaction((ChannelWrite(bundle, _next_record(record, State.OWNED, now)),))
    if record.source != me:
        return Reaction()
    after = _next_record(record, State.ASSIGNING if record.destination else State.FREE, now)
    keeps = multi_phase and record.destination
    return Reaction((ChannelWrite(bundle, after),), ChannelClients.FENCE if keeps else ChannelClients.CLOSE)


def advance_split(
    me: str, bundle: str, record: BundleRecord | None, children: Mapping[str, BundleRecord | None], now: int
) -> tuple[ChannelWrite, ...]:
    """Return the next writes by the owner of a bundle in `Splitting`, from the children read so far.

    First each child that has no record: `Owned` by the splitter, version 1; once all have one: the parent `Deleted`.
    Repeating it does no harm, and a crash between loses nothing.
    """
    if record is None or record.state is not State.SPLITTING or record.source != me:
        return ()
    missing = [child for child, _ in record.children if children.get(child) is None]
    if missing:
        return tuple(ChannelWrite(child, BundleRecord(State.OWNED, destination=me, at=now)) for child in missing)
    return (ChannelWrite(bundle, _next_record(record, State.DELETED, now)),)


def is_to_be_removed(record: BundleRecord | None, now: int) -> bool:
    """Tell if the tombstone of a split or ownerless bundle is due (`monitorOwnerships`)."""
    return record is not None and record.state not in ACTIVE and now - record.at > TOMBSTONE_AFTER_MS


def _next_record(record: BundleRecord, state: State, now: int) -> BundleRecord:
    return BundleRecord(state, next_version(record), record.destination, record.source, at=now)
