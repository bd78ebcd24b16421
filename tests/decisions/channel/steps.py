"""Pure: every step that can come next, and what of the channel's promises it breaks.

Time is not counted: the monitor's limit stands for "nothing is on its way any more" (`World.is_quiet`); a monitor that
comes before is a fault.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from decisions.bundles.channel.conflicts import ConflictRefusal, refuse_record, refuse_transition
from decisions.bundles.channel.records import IN_FLIGHT, IN_FLIGHT_MS, BundleRecord, State, Store, brokers_of
from tests.decisions.channel.protocol import (
    ChannelClients,
    advance_split,
    assign_bundle,
    react_to_record,
    split_bundle,
    unload_bundle,
)
from tests.decisions.channel.recovery import monitor_bundle, override_record
from tests.decisions.channel.world import BUNDLES, LEFT, NAMES, PARENT, RIGHT, Broker, Message, Rules, World

NOW = IN_FLIGHT_MS + 1
CHILDREN = (("left", ""), ("right", ""))


class Next(NamedTuple):
    """A step, the world after it, the promise that it breaks, if any; whether it is a fault; rounds of the monitor."""

    step: str
    world: World
    broken: str = ""
    fault: bool = False
    rounds: int = 0


def steps(world: World, rules: Rules) -> Iterator[Next]:
    """All steps that can come next."""
    yield from _arrivals(world, rules)
    for me in world.alive:
        if world.brokers[me].unread:
            yield _read(world, me, rules)
    yield from _commands(world, rules)
    yield from _leaders(world, rules)
    if world.is_quiet:
        yield from _monitor(world, rules, fault=False)
    if rules.late and (parent := world.stored[PARENT]) and parent.state is State.DELETED:
        yield _checked("remove the parent's record", _arrived(world, Message(PARENT, None), rules), rules)
    if world.faults:
        for one in _faults(world._replace(faults=world.faults - 1), rules):
            yield one._replace(fault=True)


def is_taken(old: BundleRecord | None, new: BundleRecord | None, rules: Rules) -> bool:
    """The rule of conflicts, without the protections that are taken away."""
    if old is not None and new is not None and new.force and not rules.force_is_newer:
        return True
    found = refuse_record(old, new, rules.store)
    if found is ConflictRefusal.STALE and not rules.versions:
        found = refuse_transition(old, new, rules.store)
    return found is None


def unrest(world: World, rules: Rules) -> str:
    """What is wrong with a world in which nothing happens any more; '' if nothing is."""
    for bundle, record in enumerate(world.stored):
        name = BUNDLES[bundle]
        if record is not None and record.state in IN_FLIGHT:
            return f"{name} stays {record.state.value}"
        if record is not None and record.state is State.OWNED:
            owner = NAMES.index(record.destination)
            if not world.brokers[owner].alive:
                return f"{name} stays with {record.destination}, which is dead"
            if not world.brokers[owner].serves[bundle]:
                return f"{name} is owned by {record.destination}, which does not serve it"
    parent, left, right = world.stored
    if parent is not None and parent.state is State.DELETED and None in (left, right):
        return "the parent is gone and a child has no owner"
    return ""


# Messages.


def _arrivals(world: World, rules: Rules) -> Iterator[Next]:
    for message in sorted(set(world.flying), key=repr):
        rest = list(world.flying)
        rest.remove(message)
        yield _checked(
            f"arrives: {message}", _arrived(world._replace(flying=tuple(rest)), message, rules), rules, world
        )


def _arrived(world: World, message: Message, rules: Rules) -> World:
    old = world.stored[message.bundle]
    taken = is_taken(old, message.record, rules)
    if not taken and rules.store is Store.METADATA:
        return world
    stored = _at(world.stored, message.bundle, message.record) if taken else world.stored
    brokers = tuple(one._replace(unread=one.unread + 1) if one.alive else one for one in world.brokers)
    return world._replace(stored=stored, brokers=brokers, tail=(*world.tail, message))


def _read(world: World, me: int, rules: Rules) -> Next:
    broker = world.brokers[me]
    message = world.tail[len(world.tail) - broker.unread]
    broker, name = broker._replace(unread=broker.unread - 1), NAMES[me]
    flying: tuple[Message, ...] = ()
    how = "and keeps what it has"
    if rules.store is Store.METADATA or is_taken(broker.views[message.bundle], message.record, rules):
        how = "and takes it"
        broker = broker._replace(views=_at(broker.views, message.bundle, message.record))
        reaction = react_to_record(name, BUNDLES[message.bundle], message.record, 0)
        serves = {ChannelClients.KEEP: broker.serves[message.bundle], ChannelClients.SERVE: True}.get(
            reaction.clients, False
        )
        if not rules.stops and message.record and message.record.state in (State.RELEASING, State.ASSIGNING):
            serves = broker.serves[message.bundle]
        if not rules.stops and message.record and message.record.state is State.OWNED:
            serves = serves or broker.serves[message.bundle]
        broker = broker._replace(serves=_at(broker.serves, message.bundle, serves))
        flying = tuple(Message(BUNDLES.index(one.bundle), one.record) for one in reaction.writes)
        flying += _split_on(broker, message, name, rules)
    after = _changed(world, me, broker)
    after = after._replace(flying=tuple(sorted((*after.flying, *flying), key=repr)))
    return _checked(f"{name} reads {message} {how}", after, rules)


def _split_on(broker: Broker, message: Message, name: str, rules: Rules) -> tuple[Message, ...]:
    """What the owner of a split writes as it reads the parent's record, or the last child's."""
    children = {"left": broker.views[LEFT], "right": broker.views[RIGHT]}
    if not rules.children_first and message.bundle == PARENT:
        children = dict.fromkeys(children, BundleRecord(State.OWNED))
    if message.bundle != PARENT and None in children.values():
        return ()
    writes = advance_split(name, "parent", broker.views[PARENT], children, 0)
    more = ()
    if not rules.children_first and writes:
        more = tuple(Message(one, BundleRecord(State.OWNED, destination=name)) for one in (LEFT, RIGHT))
    return (*(Message(BUNDLES.index(one.bundle), one.record) for one in writes), *more)


# What is asked of the channel, and who leads.


def _commands(world: World, rules: Rules) -> Iterator[Next]:
    if world.commands == len(rules.commands):
        return
    command = rules.commands[world.commands]
    given = world._replace(commands=world.commands + 1)
    # Nothing may be left to ask for: the command is passed over.
    yield Next(f"nobody asks to {command}", given)
    for me in world.alive:
        record, left, _ = world.brokers[me].views
        moved = LEFT if command == "move" else PARENT
        found: list[BundleRecord | None] = []
        if command == "split" and record is not None and record.owner == NAMES[me]:
            found = [split_bundle(record, CHILDREN, 0)]
        elif command == "assign" and world.brokers[me].leads:
            found = [assign_bundle(record, NAMES[to], 0) for to in world.alive]
        elif command == "unload" and world.brokers[me].leads:
            found = [unload_bundle(record, to, 0) for to in ("", *(NAMES[to] for to in world.alive))]
        elif command == "move" and world.brokers[me].leads and _may_move(record, rules):
            found = [unload_bundle(left, NAMES[to], 0) for to in world.alive]
        for one in found:
            if one is not None:
                yield _published(given, f"{NAMES[me]} publishes", [Message(moved, one)])


def _may_move(parent: BundleRecord | None, rules: Rules) -> bool:
    return rules.moves_early or parent is None or parent.state is State.DELETED


def _leaders(world: World, rules: Rules) -> Iterator[Next]:
    leaders = [me for me in world.alive if world.brokers[me].leads]
    if not leaders:
        me = world.alive[0]
        yield Next(f"{NAMES[me]} leads", _changed(world, me, world.brokers[me]._replace(leads=True)))
    for me in leaders:
        broker = world.brokers[me]
        if len(leaders) > 1:
            gone = broker._replace(leads=False, lost="")
            yield Next(f"{NAMES[me]} hears that it leads no more", _changed(world, me, gone))
        if broker.lost:
            lost = [bundle for bundle in range(3) if broker.lost in brokers_of(broker.views[bundle])]
            acted = _changed(world, me, broker._replace(lost=""))
            for chosen in _choices(world, len(lost), rules):
                writes = [
                    Message(bundle, _forced(override_record(broker.views[bundle], broker.lost, NAMES[to], 0), rules))
                    for bundle, to in zip(lost, chosen, strict=True)
                ]
                yield _published(acted, f"{NAMES[me]} re-owns what {broker.lost} had:", writes)


def _monitor(world: World, rules: Rules, fault: bool) -> Iterator[Next]:
    if not rules.monitors:
        return
    alive = {NAMES[one] for one in world.alive} if rules.looks else set(NAMES)
    for me in world.alive:
        broker = world.brokers[me]
        if not broker.leads:
            continue
        wrong = [
            bundle
            for bundle, record in enumerate(broker.views)
            if record is not None
            and (rules.rolls_on or record.state is not State.SPLITTING)
            and monitor_bundle(record, alive, NAMES[me], NOW)
        ]
        # Choices with equal outcomes are one.
        outcomes = {
            tuple(
                monitor_bundle(broker.views[bundle], alive, NAMES[to], NOW)
                for bundle, to in zip(wrong, chosen, strict=True)
            )
            for chosen in _choices(world, len(wrong), rules)
        }
        for outcome in sorted(outcomes, key=repr):
            writes = [
                Message(bundle, _forced(one and one._replace(at=0), rules))
                for bundle, one in zip(wrong, outcome, strict=True)
            ]
            if writes:
                early = ", too early" if fault else ""
                yield _published(world, f"{NAMES[me]} monitors{early}:", writes)._replace(rounds=1)


def _choices(world: World, bundles: int, rules: Rules) -> list[tuple[int, ...]]:
    """To which brokers so many bundles may go: each to its own, or all to one."""
    if rules.apart:
        return list(itertools.product(world.alive, repeat=bundles))
    return [(one,) * bundles for one in world.alive]


def _forced(record: BundleRecord | None, rules: Rules) -> BundleRecord | None:
    return record if record is None or rules.forces else record._replace(force=False)


# Faults, each paid for already.


def _faults(world: World, rules: Rules) -> Iterator[Next]:
    for message in sorted(set(world.flying), key=repr):
        rest = list(world.flying)
        rest.remove(message)
        yield Next(f"is lost: {message}", world._replace(flying=tuple(rest)))
        yield _checked(f"arrives, to come once more: {message}", _arrived(world, message, rules), rules, world)
    for me, broker in enumerate(world.brokers):
        if broker.alive and len(world.alive) > 1:
            gone = _changed(world, me, Broker(alive=False))
            heard = tuple(one._replace(lost=NAMES[me]) if one.alive and one.leads else one for one in gone.brokers)
            yield Next(f"kill -9 of {NAMES[me]}", gone._replace(brokers=heard))
        if broker.alive and not broker.leads:
            yield Next(f"{NAMES[me]} leads, too", _changed(world, me, broker._replace(leads=True)))
        is_named = any(NAMES[me] in brokers_of(one) for one in world.stored)
        if not broker.alive and (rules.returns_early or not is_named):
            serves = tuple(bool(one and one.owner == NAMES[me]) for one in world.stored)
            back = Broker(world.stored, serves=serves)
            yield _checked(f"{NAMES[me]} comes back and reads what is stored", _changed(world, me, back), rules)
    if not world.is_quiet:
        yield from _monitor(world, rules, fault=True)


# What must hold.


def _checked(step: str, world: World, rules: Rules, before: World | None = None) -> Next:
    return Next(step, world, _broken(world, before))


def _broken(world: World, before: World | None) -> str:
    for bundle in (LEFT, RIGHT):
        named = {world.stored[one].owner for one in (PARENT, bundle) if world.stored[one] is not None}
        owners = named & {NAMES[one] for one in world.alive}
        if len(owners) > 1:
            return f"two owners: {' and '.join(sorted(owners))} have the {BUNDLES[bundle]} half"
        serving = {
            NAMES[me]
            for me in world.alive
            if not world.brokers[me].unread and (world.brokers[me].serves[PARENT] or world.brokers[me].serves[bundle])
        }
        if len(serving) > 1:
            return (
                f"two serve the {BUNDLES[bundle]} half, and both have read everything: {' and '.join(sorted(serving))}"
            )
    for me in world.alive:
        if not world.brokers[me].unread and world.brokers[me].views != world.stored:
            return f"{NAMES[me]} has read everything and knows something else than is stored"
    for old, new in zip(before.stored if before else (), world.stored, strict=False):
        if old is not None and new is not None and new.version < old.version:
            return "a record goes back to an older version"
    return ""


# Small things.


def _published(world: World, step: str, writes: list[Message]) -> Next:
    flying = tuple(sorted((*world.flying, *writes), key=repr))
    return Next(f"{step} {', '.join(map(str, writes)) or 'nothing'}", world._replace(flying=flying))


def _changed(world: World, me: int, broker: Broker) -> World:
    brokers = tuple(broker if number == me else one for number, one in enumerate(world.brokers))
    unread = max((one.unread for one in brokers if one.alive), default=0)
    return world._replace(brokers=brokers, tail=world.tail[len(world.tail) - unread :])


def _at(values: tuple, place: int, value: object) -> tuple:  # type: ignore[type-arg]
    return (*values[:place], value, *values[place + 1 :])
