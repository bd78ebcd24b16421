"""What can happen next: every move of everybody, with its words for a history."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from decisions.bookkeeper.seen import BookieView
from schemas.bookie_answers import BookieAnswer, Step
from tests.decisions.bookkeeper.model.state import (
    CURSOR,
    OPEN,
    SCHEMA,
    WHOLE,
    Actor,
    Rules,
    World,
    answer_of,
    deletions,
    next_steps,
    snapshot,
)

Move = tuple[str, World]
PUT, ROLLED, ROLLED_BACK = 11, 12, 13
"""Ids of ledgers that others make."""


def moves(world: World, rules: Rules) -> Iterator[Move]:
    """All that can happen now."""
    yield from _operators(world, rules)
    yield from _others(world, rules)
    for which in (0, 1):
        yield from _orchestrator(world, rules, which)


@cache
def read(step: str) -> Step:
    """A step as an orchestrator keeps it."""
    return Step.model_validate_json(step)


def _operators(world: World, rules: Rules) -> Iterator[Move]:
    if world.commands < len(rules.commands):
        command = rules.commands[world.commands]
        rest = world._replace(commands=world.commands + 1)
        if command == "cleanup":
            yield "operator  ask for a cleanup", rest._replace(cleaning=True)
        else:
            # It takes the term, waits until what the one before has asked for is too late, then looks and writes.
            answer = answer_of(world.seen, command)
            if answer.directive is not None:
                after = _written(rest.waited(world.term + 1) if rules.expiry else rest, rules, answer)
                yield f"operator  take over, look, write the directive: {command}", after._replace(term=world.term + 1)


def _written(world: World, rules: Rules, answer: BookieAnswer) -> World:
    directive = answer.directive
    assert directive is not None
    former = {name: (status, version) for name, status, version in world.clusters}
    clusters = world.clusters
    if answer.registry is not None:
        after = {one.name: one.status for one in answer.registry}
        if not rules.one_write:
            # As PIP-477 has it: one status, then the other.
            after[directive.target] = former[directive.target][0]
        clusters = tuple(
            (name, after[name], version + (after[name] != status)) for name, (status, version) in former.items()
        )
    known = world.directive
    is_new = known is None or known[3] != directive.epoch
    fresh = (
        {"begun": frozenset(), "verified": frozenset(), "promoted": frozenset(), "failed": frozenset()}
        if is_new
        else {}
    )
    return world._replace(
        clusters=clusters,
        booted=True,
        cleaning=False,
        directive=(directive.kind, directive.source, directive.target, directive.epoch),
        **fresh,
    )


def _others(world: World, rules: Rules) -> Iterator[Move]:
    [active] = [name for name, status, _ in world.clusters if status == "ACTIVE"] or [""]
    for what in rules.others:
        if what in world.others or not world.booted or not active:
            continue
        done = world._replace(others=world.others | {what})
        if what == "put":
            positions = (*world.positions, (PUT, f"{active}:{PUT}"))
            after = done._replace(positions=positions, schema_version=world.schema_version + 1)
            yield f"broker    put a schema, on {active}", after.with_ledger(active, PUT, WHOLE)
        elif world.cursor is None or world.cursor[0] < 0:
            continue
        elif what == "fold":
            after = done._replace(cursor=(-1, world.cursor[1]), cursor_version=world.cursor_version + 1)
            yield "broker    unload the topic: the cursor moves into its znode", after
        elif what == "roll":
            after = done._replace(cursor=(ROLLED, f"{active}:{ROLLED}"), cursor_version=world.cursor_version + 1)
            yield f"broker    the cursor rolls over, on {active}", after.with_ledger(active, ROLLED, WHOLE)
        elif what == "roll back":
            # One that knows `old` only: the stamp stays as it is.
            after = done._replace(cursor=(ROLLED_BACK, world.cursor[1]), cursor_version=world.cursor_version + 1)
            yield "broker    a cursor rolls over on old, with its stamp", after.with_ledger("old", ROLLED_BACK, WHOLE)


def _orchestrator(world: World, rules: Rules, which: int) -> Iterator[Move]:
    actor, name = world.actors[which], "AB"[which]
    if actor is None:
        if world.takeovers < rules.takeovers and world.directive is not None:
            term = world.term + 1
            after = world._replace(term=term, takeovers=world.takeovers + 1)
            yield f"{name}         take over", after.with_actor(which, Actor(term))
        return
    if world.kills < rules.kills:
        yield f"{name}         is killed", world._replace(kills=world.kills + 1).with_actor(which, None)
    if actor.step:
        yield from _carry_out(world, rules, which, actor)
        return
    steps = (*next_steps(world.seen), *(deletions(world.seen) if world.cleaning else ()))
    for step in steps:
        if not rules.repair and "copy is gone" in step.reason:
            continue
        text = f"{name}         look, and decide to {step.action} {step.ledger or step.object}"
        yield text, world.with_actor(which, Actor(actor.term, step.model_dump_json(), "begin"))


def _carry_out(world: World, rules: Rules, which: int, actor: Actor) -> Iterator[Move]:
    step, name = read(actor.step), "AB"[which]
    idle, ended = world.with_actor(which, Actor(actor.term)), world.with_actor(which, None)
    is_newest = actor.term == world.term or not rules.term
    what = f"{step.action} {step.ledger or step.object}"
    if actor.at == "begin":
        if step.action == "delete" and rules.expiry:
            # Since it took over it has waited until what the one before has asked for is too late.
            world = world.waited(actor.term)
        if not is_newest:
            yield f"{name}         cannot record its intent: overtaken", ended
        elif world.directive is None or world.directive[3] != step.epoch:
            yield f"{name}         too late, another directive", idle
        else:
            begun = world._replace(begun=world.begun | {step.ledger or 0}) if step.action == "copy" else world
            # A copy deletes half of one by the check that is made here; a deletion makes a check of its own.
            deadline = "set" if step.action == "copy" and rules.early_deadline else ""
            yield f"{name}         intent: {what}", begun.with_actor(which, actor._replace(at="do", deadline=deadline))
        return

    def then(after: World, at: str, deadline: str | None = None) -> World:
        now = actor._replace(at=at)
        return after.with_actor(which, now if deadline is None else now._replace(deadline=deadline))

    ledger, source, target = step.ledger or 0, str(step.source), str(step.target)
    if step.action == "copy":
        there = world.on(target).get(ledger)
        if actor.at == "do" and there is None:
            if ledger not in world.on(source):
                yield f"{name}         the source is gone", idle
            else:
                yield (
                    f"{name}         create {ledger} on {target}",
                    then(world.with_ledger(target, ledger, name), "fill"),
                )
        elif actor.at == "do":
            is_whole = there == WHOLE
            deadline = None if is_whole or rules.early_deadline else "set"
            at = "compare" if is_whole else "delete half"
            yield (
                f"{name}         {ledger} is on {target}: {'whole' if is_whole else 'half'}",
                then(world, at, deadline),
            )
        elif actor.at == "delete half":
            if actor.deadline != "passed":
                yield (
                    f"{name}         delete half {ledger}, make it anew",
                    then(world.with_ledger(target, ledger, name), "fill"),
                )
            yield from _too_late(world, rules, name, actor, idle)
        elif actor.at == "fill" and there == name:
            yield f"{name}         fill and close {ledger}", then(world.with_ledger(target, ledger, WHOLE), "compare")
        elif actor.at == "fill":
            yield f"{name}         its copy is gone", idle
        elif there != WHOLE:
            yield f"{name}         no equal copy any more", idle
        else:
            yield _recorded(world, name, idle, ended, is_newest, verified=world.verified | {ledger})
    elif step.action == "verify":
        if world.on(target).get(ledger) != WHOLE:
            yield f"{name}         no equal copy any more", idle
        else:
            yield _recorded(world, name, idle, ended, is_newest, verified=world.verified | {ledger})
    elif step.action == "seal":
        sealed = world.with_ledger(source, ledger, WHOLE) if world.on(source).get(ledger) == OPEN else world
        yield f"{name}         seal {ledger} on {source}", sealed.with_actor(which, Actor(actor.term))
    elif step.action == "cas_attribution":
        yield from _promote(world, rules, name, step, actor, idle, ended, then)
    elif step.action == "delete":
        yield from _delete(world, rules, name, step, actor, idle, ended, then)
    elif step.action == "rollover_fallback":
        yield _recorded(world, name, idle, ended, is_newest, promoted=world.promoted | {(step.object, ledger)})
    elif step.action == "fail":
        yield _recorded(world, name, idle, ended, is_newest, failed=world.failed | {ledger})
    else:
        yield f"{name}         {what}: recorded", idle if is_newest else ended


def _promote(world, rules, name, step, actor, idle, ended, then) -> Iterator[Move]:  # type: ignore[no-untyped-def]
    stamps = {int(one): stamp if rules.stamps else str(step.target) for one, stamp in (step.stamps or {}).items()}
    is_cursor = step.object == CURSOR
    version = world.cursor_version if is_cursor else world.schema_version
    if actor.at == "do":
        whole = all(world.on(str(step.target)).get(one) == WHOLE for one in stamps)
        yield f"{name}         look at the copies", then(world, "write") if whole else idle
        return
    if actor.term != world.term and rules.term:
        yield f"{name}         cannot write: overtaken", ended
    elif rules.directive and world.directive[3] != step.epoch:
        yield f"{name}         cannot write: another directive", idle
    elif version != step.expectation["version"]:
        yield f"{name}         the record has changed", idle
    elif is_cursor:
        assert world.cursor is not None
        ledger = world.cursor[0]
        after = world._replace(
            cursor=(ledger, stamps[ledger]), cursor_version=version + 1, promoted=world.promoted | {(CURSOR, ledger)}
        )
        yield f"{name}         attribute the cursor to {step.target}", _idle(after, name, actor.term)
    else:
        positions = tuple((one, stamps.get(one, stamp)) for one, stamp in world.positions)
        done = world.promoted | {(SCHEMA, one) for one in stamps}
        after = world._replace(positions=positions, schema_version=version + 1, promoted=done)
        yield f"{name}         attribute the schema to {step.target}", _idle(after, name, actor.term)


def _delete(world, rules, name, step, actor, idle, ended, then) -> Iterator[Move]:  # type: ignore[no-untyped-def]
    ledger, source, target = step.ledger or 0, str(step.source), str(step.target)
    if actor.at == "do":
        records = {SCHEMA: world.schema_version, CURSOR: world.cursor_version}
        same = all(records[path] == version for path, version in step.expectation["records"].items())
        leads = [one.cluster for one in BookieView(snapshot(world.seen)).naming.get(ledger, ())]
        kept = rules.attributions and (not same or source in leads or None in leads)
        unlike = bool(step.expectation["records"]) and world.on(target).get(ledger) != WHOLE
        if kept or unlike:
            yield f"{name}         read what names {ledger}, compare the copies: it stays", idle
            return
        words = f"read what names {ledger}, compare the copies" + (", fix the deadline" * rules.early_deadline)
        yield f"{name}         {words}", then(world, "check", "set" if rules.early_deadline else "")
    elif actor.at == "check":
        records = {SCHEMA: world.schema_version, CURSOR: world.cursor_version}
        same = all(records[path] == version for path, version in step.expectation["records"].items())
        if actor.term != world.term and rules.term:
            yield f"{name}         cannot write: overtaken", ended
        else:
            yield (
                f"{name}         term and records are as they were",
                then(world, "ask") if same or not rules.attributions else idle,
            )
    elif actor.at == "ask":
        words = f"ask for the deletion of {ledger}" + (", fix the deadline" * (not rules.early_deadline))
        yield f"{name}         {words}", then(world, "delete", None if rules.early_deadline else "set")
    else:
        if actor.deadline != "passed":
            yield (
                f"{name}         delete {ledger} from {source}",
                _idle(world.with_ledger(source, ledger, None), name, actor.term),
            )
        yield from _too_late(world, rules, name, actor, idle)


def _too_late(world: World, rules: Rules, name: str, actor: Actor, idle: World) -> Iterator[Move]:
    if rules.expiry:
        yield f"{name}         asked for too long ago: nothing is deleted", idle


def _recorded(world, name, idle, ended, is_newest, **what) -> Move:  # type: ignore[no-untyped-def]
    step = read(world.actors["AB".index(name)].step)
    if is_newest and world.directive[3] != step.epoch:
        return f"{name}         outcome: applied, of an earlier directive", idle
    if not is_newest:
        return f"{name}         cannot record its outcome: overtaken", ended
    return f"{name}         outcome: applied", idle._replace(**what)


def _idle(world: World, name: str, term: int) -> World:
    return world.with_actor("AB".index(name), Actor(term))
