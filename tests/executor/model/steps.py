"""Pure: every step that can come next, and which rule it breaks (design "What must always hold", 2).

Longer than other files: all transitions in one place, in the order of the protocol. The executor's own part follows
`anabranch.executor.kernel.attempt.try_once`; `stage` holds the real one against it, step by step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

from tests.executor.model.rules import Rules
from tests.executor.model.state import NAMES, Call, Decision, Executor, Layout, State, Step, Work

GONE = ("down", "standby")
_AS_IT_IS = Rules()


class Next(NamedTuple):
    """A step, the world after it, and the rule that it breaks, if any."""

    step: Step
    state: State
    broken: str = ""
    fault: bool = False


def steps(state: State, rules: Rules) -> Iterator[Next]:
    """All steps that can come next."""
    yield from _job(state, rules)
    yield from _server(state, rules)
    for number in (0, 1):
        executor = state.executors[number]
        if not executor.frozen:
            yield from _STEPS.get(executor.at, _nothing)(state, number, rules)
        yield from _recovery(state, number, rules)
    if state.faults:
        yield from _faults(state._replace(faults=state.faults - 1), rules)


def is_done(state: State) -> bool:
    """Every decision has ended, and the job knows."""
    return all(decision.heard for decision in state.decisions)


# The job.


def _job(state: State, rules: Rules) -> Iterator[Next]:
    for number, decision in enumerate(state.decisions):
        if decision.told:
            heard = _hear(state, number)
            yield Next(Step("world", "the job hears of the end", decision=_which(state, number)), heard)
            if state.faults:
                lost = _changed_decision(_paid(state), number, told=False)
                step = Step("world", "Kafka loses the outcome", decision=_which(state, number))
                yield Next(step, lost, fault=True)
    if is_done(state) and len(state.decisions) < rules.evaluations * rules.siblings:
        chosen = [i for i in state.layout.active if i < 2 or not rules.bundles][: rules.siblings]
        decided = tuple(Decision(state.layout, segment) for segment in chosen)
        yield Next(Step("world", "decide"), state._replace(decisions=(*state.decisions, *decided)))


def _hear(state: State, number: int) -> State:
    """The job records an end, and whoever announces it finds that out."""
    for me, executor in enumerate(state.executors):
        state = _with(state, me, announces=tuple(one for one in executor.announces if one != number))
    return _changed_decision(state, number, told=False, heard=True)


# One executor, in the order of the protocol.


def _take(state: State, me: int, rules: Rules) -> Iterator[Next]:
    free = state.holder < 0 or state.run_out or (not rules.waits and state.holder != me)
    if free:
        token = state.token + 1
        taken = state._replace(holder=me, run_out=False, token=token)
        yield _next(taken, me, "take the lease", at="fence", token=token, holds=True)


def _fence(state: State, me: int, rules: Rules) -> Iterator[Next]:
    mine = state.executors[me].token
    if rules.fenced and state.fence > mine:
        yield _next(state, me, "fence off the one before", "overtaken", at="down", holds=False)
    else:
        yield _next(state._replace(fence=mine), me, "fence off the one before", at="read")


def _read(state: State, me: int, rules: Rules) -> Iterator[Next]:
    """Take up what is open, and announce each end that the job has not recorded."""
    ended = [number for number, decision in enumerate(state.decisions) if decision.end]
    if not rules.every_end:
        ended = [number for number in ended if number == len(state.decisions) - 1]
    announces = tuple(number for number in ended if not state.decisions[number].heard)
    for number in announces:
        state = _changed_decision(state, number, told=True)
    works = tuple(_work_of(decision) for decision in state.decisions)
    yield _next(state, me, "read the record", at="idle", works=works, announces=announces)


def _work_of(decision: Decision) -> Work:
    if decision.end:
        return Work("ended")
    return Work("begun", decision.calls, open_end=True) if decision.begun else Work()


def _idle(state: State, me: int, rules: Rules) -> Iterator[Next]:
    """Intents come first, all in one commit; then what has begun is tried, in any order."""
    executor = state.executors[me]
    if not all(state.decisions[number].told for number in executor.announces):
        told = state
        for number in executor.announces:
            told = _changed_decision(told, number, told=True)
        yield _next(told, me, "announce again")
    if len(executor.works) < len(state.decisions):
        missing = state.decisions[len(executor.works) :]
        works = (*executor.works, *map(_work_of, missing))
        yield _next(state, me, "take up the decisions", works=works)
        return
    new = [number for number, work in enumerate(executor.works) if work.at == "new"]
    if new and rules.intents:
        yield from _record_intents(state, me, rules, new)
        return
    for number, work in enumerate(executor.works):
        if work.at == "braked":
            yield _next(_of_work(state, me, number, at="new"), me, "is released", which=number)
            yield _next(_with(state, me, decision=number, at="end rejected"), me, "is told to reject", which=number)
    for number, work in enumerate(executor.works):
        if work.at in ("begun", "new"):
            trying = _with(state, me, decision=number, answer="")
            yield from _look(trying, me, rules)


def _record_intents(state: State, me: int, rules: Rules, new: list[int]) -> Iterator[Next]:
    which = new[0] if len(new) == 1 else None
    if rules.fenced and state.fence > state.executors[me].token:
        yield _next(state, me, "record the intent", "overtaken", which=which, at="down", holds=False)
        return
    for number in new:
        state = _of_work(_changed_decision(state, number, begun=True), me, number, at="begun")
    yield _next(state, me, "record the intent", which=which)


def _look(state: State, me: int, rules: Rules) -> Iterator[Next]:
    executor, work = state.executors[me], state.executors[me].work
    if not rules.lineage:
        yield _next(state, me, "look", "by memory", which=executor.decision, at="check")
        return
    for how, live in _layouts(state, work):
        after = state if how == "fresh" else _faulty(state)
        if after is None:
            continue
        unsure = work.open_end or work.calls > 0
        verdict = judge(state.decisions[executor.decision], live, unsure, rules)
        where, absences = _settled(verdict, work, unsure) if verdict != "act" else ("check", 0)
        seen = live if rules.conditional and verdict == "act" else Layout(-1)
        looked = _of_work(after, me, absences=absences)
        yield _next(looked, me, "look", how, which=executor.decision, fault=how != "fresh", at=where, seen=seen)
    if state.faults:
        yield _next(_faulty(state), me, "look", "no answer", which=executor.decision, fault=True, at="retry")


def _check(state: State, me: int, rules: Rules) -> Iterator[Next]:
    executor = state.executors[me]
    if executor.holds or not rules.fenced:
        yield _next(state, me, "look at the lease", "it holds", at="send")
    else:
        yield _next(state, me, "look at the lease", "it has run out", at="retry")


def _send(state: State, me: int, rules: Rules) -> Iterator[Next]:
    executor = state.executors[me]
    decision = state.decisions[executor.decision]
    broken = ""
    if state.holder != me or state.run_out:
        broken = "a call is made by an executor that has lost its lease"
    elif any(other.at == "calling" for other in _others(state, me)):
        broken = "two executors have a call out for one topic"
    elif decision.end:
        broken = f"a call is made for a decision that has ended ({decision.end})"
    sent = state._replace(calls=(*state.calls, Call(me, executor.decision, seen=executor.seen)))
    yield _next(sent, me, "call", which=executor.decision, broken=broken, at="calling", seen=Layout(-1))


def _await(state: State, me: int, rules: Rules) -> Iterator[Next]:
    for call in state.calls:
        if call.by != me or call.given_up:
            continue
        if call.answer:
            yield _answered(_without(state, call), me, "hear", call.answer)
        faulty = _faulty(state)
        if faulty is None:
            continue
        if call.answer:
            yield _answered(_without(faulty, call), me, "hear", "nothing, the answer is lost", fault=True)
        else:
            yield _answered(_without(faulty, call), me, "hear", "nothing, the call is lost", fault=True)
            if rules.late:
                left = _changed_call(faulty, call, call._replace(given_up=True))
                yield _answered(left, me, "hear", "nothing, the call is late", fault=True)


def _answered(state: State, me: int, what: str, how: str, fault: bool = False) -> Next:
    executor, work = state.executors[me], state.executors[me].work
    heard = _of_work(state, me, calls=work.calls + 1, refusals=work.refusals + (how == "refused"))
    answer = how if how in ("accepted", "refused", "elsewhere") else "none"
    return _next(heard, me, what, how, which=executor.decision, fault=fault, at="look again", answer=answer)


def _look_again(state: State, me: int, rules: Rules) -> Iterator[Next]:
    executor, work = state.executors[me], state.executors[me].work
    answer, which = executor.answer, executor.decision
    unsure = work.open_end or answer not in ("refused", "elsewhere")
    if not rules.lineage:
        where = {"accepted": "end applied", "refused": "end rejected"}.get(answer, "retry")
        yield _next(state, me, "look", "by memory", which=which, at=where)
        return
    for how, live in _layouts(state, work):
        after = state if how == "fresh" else _faulty(state)
        if after is None:
            continue
        verdict, absences = judge(state.decisions[which], live, True, rules), 0
        if verdict != "act":
            (where, absences), open_end = _settled(verdict, work, unsure), unsure
        elif answer in ("refused", "elsewhere"):
            is_sure = answer == "refused" and (not work.open_end or work.refusals >= 2)
            where, open_end = ("end rejected" if is_sure else "retry"), work.open_end
        else:
            where, open_end = "retry", unsure
        looked = _of_work(after, me, open_end=open_end, absences=absences)
        yield _next(looked, me, "look", how, which=which, fault=how != "fresh", at=where)
    if state.faults:
        looked = _of_work(_paid(state), me, open_end=unsure)
        yield _next(looked, me, "look", "no answer", which=which, fault=True, at="retry")


def _settled(verdict: str, work: Work, unsure: bool) -> tuple[str, int]:
    """Where to go when nothing is left to do: a copy may lag, so an effect, or the decided layout, is missed twice."""
    if verdict == "gone" or (verdict == "superseded" and unsure):
        return ("end superseded", 1) if work.absences else ("retry", 1)
    return f"end {verdict}", work.absences


def _retry(state: State, me: int, rules: Rules) -> Iterator[Next]:
    # A conflict is retried at once: a copy may still lag then.
    delayed = state if state.executors[me].answer == "elsewhere" else _of_work(state, me, known=state.layout)
    yield from _record(delayed, me, rules, "record the retry", "")
    if state.faults and not state.executors[me].work.absences:
        yield _next(
            _faulty(state), me, "the time is up", which=state.executors[me].decision, fault=True, at="end failed"
        )


def _end(state: State, me: int, rules: Rules) -> Iterator[Next]:
    status = state.executors[me].at.removeprefix("end ")
    yield from _record(state, me, rules, "record the end", status)


def _announce(state: State, me: int, rules: Rules) -> Iterator[Next]:
    executor = state.executors[me]
    number = executor.decision
    kept = executor.announces if rules.every_end else ()
    told = _changed_decision(state, number, told=True)
    yield _next(told, me, "announce", which=number, at="idle", decision=0, announces=(*kept, number))


def _record(state: State, me: int, rules: Rules, what: str, status: str) -> Iterator[Next]:
    """A commit to `outcomes`, of a retry or the end."""
    executor = state.executors[me]
    number = executor.decision
    if rules.fenced and state.fence > executor.token:
        yield _next(state, me, what, "overtaken", which=number, at="down", holds=False)
        return
    decision = state.decisions[number]
    broken = ""
    if status and decision.end:
        broken = f"a decision ends twice: {decision.end}, then {status}"
    elif status:
        broken = _untrue(state, number, status)
    begun = decision.begun or (rules.intents and not status)
    row = {"begun": begun, "calls": max(decision.calls, executor.work.calls), "end": status or decision.end}
    recorded = _changed_decision(state, number, **row)
    if not status:
        yield _next(_of_work(recorded, me, at="begun"), me, what, which=number, at="idle", answer="", decision=0)
        return
    ended = _with(recorded, me, works=_replaced(executor.works, number, Work("ended")))
    yield _next(ended, me, what, status, which=number, broken=broken, at="announce", answer="")


def _nothing(state: State, me: int, rules: Rules) -> Iterator[Next]:
    return iter(())


_STEPS = {
    "standby": _take,
    "fence": _fence,
    "read": _read,
    "idle": _idle,
    "check": _check,
    "send": _send,
    "calling": _await,
    "look again": _look_again,
    "retry": _retry,
    "announce": _announce,
    **{f"end {status}": _end for status in ("applied", "superseded", "rejected", "failed")},
}


def judge(decision: Decision, live: Layout, may_have_called: bool, rules: Rules) -> str:
    """Verdict of the layout on a decision, in the words of the executor's judges."""
    if live.life == decision.on.life and len(live.splits) < len(decision.on.splits):
        return "gone"
    if live.life != decision.on.life or decision.segment in live.elsewhere:
        return "superseded"
    if decision.segment in live.splits:
        return "applied" if may_have_called else "superseded"
    return "act" if rules.apart or live == decision.on else "superseded"


# What goes on by itself around an executor.


def _recovery(state: State, me: int, rules: Rules) -> Iterator[Next]:
    executor = state.executors[me]
    if executor.at == "down":
        yield _next(state, me, "start again", new=Executor())
    if executor.frozen:
        yield _next(state, me, "wake up", frozen=False)
    if state.holder != me or state.run_out:
        if executor.holds and not executor.frozen and state.holder == me:
            # Its own clock has run out before the others' wait: see `_runs_out`.
            raise AssertionError("a lease that has run out is believed in")
        if state.holder == me and state.run_out and executor.at not in GONE and not executor.frozen:
            yield _next(state._replace(run_out=False), me, "renew the lease", holds=True)
        return
    if executor.at in GONE or executor.frozen:
        yield _runs_out(state, me, rules)


def _runs_out(state: State, me: int, rules: Rules, fault: bool = False) -> Next:
    """The lease of `me` runs out, by its own clock and that of the others."""
    executor = state.executors[me]
    gone = state._replace(run_out=True)
    # A frozen one has no eyes for its clock: it looks at the clock before each call.
    executor = executor._replace(holds=False)
    if rules.margin:
        # Whoever is still calling has given the call up by now, and the server has heard of it or never will.
        for call in [call for call in state.calls if call.by == me]:
            if call.answer or not rules.late:
                gone = _without(gone, call)
            else:
                gone = _changed_call(gone, call, call._replace(given_up=True))
        if executor.at == "calling":
            work = executor.work._replace(calls=executor.work.calls + 1)
            works = _replaced(executor.works, executor.decision, work)
            executor = executor._replace(at="look again", works=works, answer="none")
    return _next(gone, me, "the lease runs out", fault=fault, new=executor)


# The server of the topic's layouts.


def _server(state: State, rules: Rules) -> Iterator[Next]:
    for call in state.calls:
        if call.answer:
            continue
        decision = state.decisions[call.decision]
        who, which = NAMES[call.by], _which(state, call.decision)
        if rules.conditional and call.seen != state.layout:
            refused = _served(state, call, "elsewhere")
            step = Step("world", "the server refuses the call", f"of {who}, meant for another layout", which)
            yield Next(step, refused)
        elif decision.segment in state.layout.active or (rules.bundles and decision.segment in state.layout.elsewhere):
            broken = "" if decision.begun else "a call takes effect without a durable intent"
            if any(done == call.decision for done, _ in state.effects):
                broken = "a decision is applied twice"
            elif decision.end in ("superseded", "rejected"):
                broken = f"a decision takes effect that has ended as {decision.end}"
            elif state.layout.life != decision.on.life:
                broken = "a decision takes effect on a topic that was made anew since"
            served = _served(state, call, "accepted")._replace(
                layout=state.layout.split(decision.segment),
                before=state.layout,
                effects=(*state.effects, (call.decision, state.layout.life)),
            )
            yield Next(Step("world", "the server applies the call", f"of {who}", which), served, broken)
            faulty = _faulty(state)
            if faulty is not None:
                refused = _served(faulty, call, "refused")
                yield Next(Step("world", "the server refuses the call", f"of {who}", which), refused, fault=True)
        else:
            yield Next(
                Step("world", "the server refuses the call", f"of {who}", which), _served(state, call, "refused")
            )


def _served(state: State, call: Call, answer: str) -> State:
    return _without(state, call) if call.given_up else _changed_call(state, call, call._replace(answer=answer))


# Faults, each paid for already.


def _faults(state: State, rules: Rules) -> Iterator[Next]:
    layout = state.layout
    if rules.bundles:
        yield from _moves_by_hand(state)
    elif len(layout.splits) < 3:
        for how, segment in (("the same", layout.active[0]), ("another one", layout.active[-1])):
            changed = state._replace(layout=layout.split(segment), before=layout)
            yield Next(Step("world", "somebody splits by hand", how), changed, fault=True)
    is_between = any(one.at in ("check", "send", "calling") for one in state.executors)
    if layout.life == 0 and not rules.bundles and (rules.anew or not (is_between or state.calls)):
        anew = Layout(1)
        before = layout if rules.anew else anew
        yield Next(
            Step("world", "somebody makes the topic anew"), state._replace(layout=anew, before=before), fault=True
        )
    for me, executor in enumerate(state.executors):
        if executor.at in GONE:
            continue
        if executor.at == "calling":
            [call] = [call for call in state.calls if call.by == me and not call.given_up]
            given_up = call._replace(given_up=True)
            left = _without(state, call) if call.answer else _changed_call(state, call, given_up)
            yield _next(left, me, "kill -9", fault=True, new=Executor("down"))
        else:
            yield _next(state, me, "kill -9", fault=True, new=Executor("down"))
        if executor.frozen:
            continue
        if executor.at != "send" or rules.frozen_in_between:
            yield _next(state, me, "freeze", fault=True, frozen=True)
        if state.holder == me and not state.run_out and executor.at != "send":
            yield _runs_out(state, me, rules, fault=True)
        for number, work in enumerate(executor.works):
            if executor.at == "idle" and work.at == "new":
                braked = _of_work(state, me, number, at="braked")
                yield _next(braked, me, "is braked", which=number, fault=True)


def _moves_by_hand(state: State) -> Iterator[Next]:
    """Somebody moves a bundle. Before a call for it: one that was moved on after a call looks as if that had never had
    an effect, as nothing keeps the lineage of owners."""
    for bundle in (0, 1):
        called = {call.decision for call in state.calls}
        called |= {number for number, one in enumerate(state.decisions) if one.calls}
        called |= {n for one in state.executors for n, work in enumerate(one.works) if work.calls}
        is_called = any(number in called and one.segment == bundle for number, one in enumerate(state.decisions))
        if is_called or bundle in state.layout.splits or bundle in state.layout.elsewhere:
            continue
        for how, layout in (("the same", state.layout.split(bundle)), ("elsewhere", state.layout.divert(bundle))):
            step = Step("world", "somebody moves a bundle", how, bundle)
            yield Next(step, state._replace(layout=layout, before=state.layout), fault=True)


# Small things.


def _layouts(state: State, work: Work) -> list[tuple[str, Layout]]:
    """What a look may show: a copy lags less than the delay before a retry."""
    lagging = [("stale", state.before)] if state.layout not in (state.before, work.known) else []
    return [("fresh", state.layout), *lagging]


def _untrue(state: State, number: int, status: str) -> str:
    """What is wrong with an end, given what has happened."""
    decision = state.decisions[number]
    by_us = (number, decision.on.life) in state.effects
    is_split = state.layout.life != decision.on.life or decision.segment in state.layout.splits
    if status == "applied" and not (by_us or is_split):
        return "a decision ends as applied without an effect"
    if status in ("superseded", "rejected") and by_us and state.layout.life == decision.on.life:
        return f"a decision ends as {status} though it was applied"
    if status == "superseded" and judge(decision, state.layout, True, _AS_IT_IS) == "act":
        return "a decision ends as superseded though its own segments are as they were decided on"
    return ""


def _others(state: State, me: int) -> list[Executor]:
    return [other for number, other in enumerate(state.executors) if number != me]


def _next(
    state: State | None,
    me: int,
    what: str,
    how: str = "",
    *,
    which: int | None = None,
    broken: str = "",
    fault: bool = False,
    new: Executor | None = None,
    **changed: object,
) -> Next:
    assert state is not None
    step = Step(NAMES[me], what, how, None if which is None else _which(state, which))
    return Next(step, _with(state, me, new, **changed), broken, fault)


def _which(state: State, number: int) -> int | None:
    return number if len(state.decisions) > 1 else None


def _with(state: State, me: int, new: Executor | None = None, **changed: object) -> State:
    executor = new or state.executors[me]
    if changed:
        executor = executor._replace(**changed)  # type: ignore[arg-type]
    executors = (executor, state.executors[1]) if me == 0 else (state.executors[0], executor)
    return state._replace(executors=executors)


def _of_work(state: State, me: int, number: int | None = None, **changed: object) -> State:
    """With what a process knows of a decision changed, by default of the one that it tries."""
    executor = state.executors[me]
    number = executor.decision if number is None else number
    work = executor.works[number]._replace(**changed)  # type: ignore[arg-type]
    return _with(state, me, works=_replaced(executor.works, number, work))


def _changed_decision(state: State, number: int, **changed: object) -> State:
    decision = state.decisions[number]._replace(**changed)  # type: ignore[arg-type]
    return state._replace(decisions=_replaced(state.decisions, number, decision))


Item = TypeVar("Item")


def _replaced(items: tuple[Item, ...], number: int, new: Item) -> tuple[Item, ...]:
    return (*items[:number], new, *items[number + 1 :])


def _paid(state: State) -> State:
    return state._replace(faults=state.faults - 1)


def _faulty(state: State) -> State | None:
    return state._replace(faults=state.faults - 1) if state.faults else None


def _without(state: State, call: Call) -> State:
    calls = list(state.calls)
    calls.remove(call)
    return state._replace(calls=tuple(calls))


def _changed_call(state: State, call: Call, new: Call) -> State:
    return _without(state, call)._replace(calls=tuple(sorted((*_without(state, call).calls, new))))
