"""One instant of a small cluster, immutable: what is stored, what each broker has read, what is on its way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from decisions.bundles.channel.records import BundleRecord, State, Store

PARENT, LEFT, RIGHT = 0, 1, 2
BUNDLES = ("parent", "left", "right")
NAMES = ("A", "B", "C")


@dataclass(frozen=True)
class Rules:
    """Bounds, and the protocol's protections; tests take these away."""

    store: Store = Store.TOPIC
    brokers: int = 2
    commands: tuple[str, ...] = ("assign", "unload")
    """What is asked of the channel, in this order. `unload` goes to every destination and to none, `move` takes a child
    of the split elsewhere."""
    faults: int = 1
    """How many of: kill -9, restart, lost or doubled message, a second leader, a monitor that comes too early."""

    versions: bool = True
    """A record that is not newer is refused."""
    force_is_newer: bool = True
    """So is one with force."""
    stops: bool = True
    """The source stops serving before it hands over."""
    monitors: bool = True
    """Stuck changes and orphans are looked for."""
    forces: bool = True
    """Overrides are written with force."""
    rolls_on: bool = True
    """The monitor takes up splits, too."""
    looks: bool = True
    """The monitor looks whether the broker lives to which it gives a bundle back."""
    children_first: bool = True
    """The parent is deleted when every child has a record."""

    apart: bool = False
    """A split that is under way and its children go to different brokers when theirs is lost."""
    returns_early: bool = False
    """A lost broker comes back while records still name it."""
    moves_early: bool = False
    """A child is moved while its parent is still `Splitting`."""
    late: bool = False
    """A split bundle's record is removed while messages about it are still on their way."""


class Message(NamedTuple):
    """A record, or a tombstone, on its way."""

    bundle: int
    record: BundleRecord | None

    def __str__(self) -> str:
        return f"{BUNDLES[self.bundle]} {said(self.record)}"


class Broker(NamedTuple):
    """One broker; of a dead one nothing counts."""

    views: tuple[BundleRecord | None, ...] = (None, None, None)
    unread: int = 0
    """Messages of the tail that it has not read."""
    serves: tuple[bool, ...] = (False, False, False)
    alive: bool = True
    leads: bool = False
    lost: str = ""
    """A broker of whose loss it has heard, as a leader, without having acted on it."""


class World(NamedTuple):
    """The cluster."""

    brokers: tuple[Broker, ...]
    stored: tuple[BundleRecord | None, ...] = (None, None, None)
    """What a reader of everything knows: the topic as compacted, or the metadata store."""
    tail: tuple[Message, ...] = ()
    """The last messages that some living broker has not read."""
    flying: tuple[Message, ...] = ()
    """Published and not yet in the topic: they arrive in any order."""
    commands: int = 0
    """How many were given."""
    faults: int = 0
    """How many may still come."""

    @property
    def is_quiet(self) -> bool:
        """Nothing is on its way: what is in flight now will stay so."""
        return not self.flying and not any(one.unread for one in self.brokers if one.alive)

    @property
    def alive(self) -> list[int]:
        """Numbers of the living brokers."""
        return [number for number, one in enumerate(self.brokers) if one.alive]


def said(record: BundleRecord | None) -> str:
    """A record for people."""
    if record is None:
        return "tombstone"
    way = f"{record.source or '-'} to {record.destination or '-'}" if record.source else record.destination or "-"
    return f"{record.state.value} v{record.version} ({way}{', force' if record.force else ''})"


def start(rules: Rules) -> World:
    """Everybody lives, A leads, nothing is owned; or A owns the bundle, if there is no command to assign it."""
    brokers = tuple(Broker(leads=number == 0) for number in range(rules.brokers))
    if "assign" in rules.commands:
        return World(brokers, faults=rules.faults)
    owned = (BundleRecord(State.OWNED, 2, "A"), None, None)
    brokers = tuple(one._replace(views=owned, serves=(number == 0, False, False)) for number, one in enumerate(brokers))
    return World(brokers, owned, faults=rules.faults)
