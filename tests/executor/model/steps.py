"""Pure: every step that can come next, and which rule it breaks (design "What must always hold", 2).

Longer than other files: all transitions in one place, in the order of the protocol. The executor's own part follows
`executor.kernel.attempt.try_once`; `stage` holds the real one against it, step by step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.executor.model.rules import Rules
from tests.executor.model.state import NAMES, Call, Decision, Executor, Layout, State, Step

GONE = ("down", "standby")


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
    return state.heard == len(state.decisions)


# The job.


def _job(state: State, rules: Rules) -> Iterator[Next]:
    if state.heard < len(state.decisions):
        if state.decisions[state.heard].end:
            yield Next(Step("world", "the job hears of the end"), state._replace(heard=state.heard + 1))
    elif len(state.decisions) < rules.decisions:
        decided = Decision(state.layout, state.layout.active[0])
        yield Next(Step("world", "decide"), state._replace(decisions=(*state.decisions, decided)))


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
    yield _next(state, me, "read the record", at="idle")


def _pick(state: State, me: int, rules: Rules) -> Iterator[Next]:
    for number, decision in enumerate(state.decisions):
        if decision.end:
            continue
        begun = decision.begun
        where = "look" if begun or not rules.intents else "intent"
        yield _next(
            state, me, "take up the decision", at=where, decision=number, calls=decision.calls, open_end=begun,
            refusals=0, answer="", absences=0, known=None,
        )  # fmt: skip
        return


def _intent(state: State, me: int, rules: Rules) -> Iterator[Next]:
    yield from _record(state, me, rules, "record the intent", "", at="look")


def _braked(state: State, me: int, rules: Rules) -> Iterator[Next]:
    yield _next(state, me, "is released", at="intent")
    yield _next(state, me, "is told to reject", at="end rejected")


def _look(state: State, me: int, rules: Rules) -> Iterator[Next]:
    executor = state.executors[me]
    if not rules.lineage:
        yield _next(state, me, "look", "by memory", at="check")
        return
    for how, live in _layouts(state, executor):
        after = state if how == "fresh" else _faulty(state)
        if after is None:
            continue
        unsure = executor.open_end or executor.calls > 0
        verdict = judge(state.decisions[executor.decision], live, unsure)
        where, absences = _settled(verdict, executor, unsure) if verdict != "act" else ("check", 0)
        seen = live if rules.conditional and verdict == "act" else Layout(-1)
        yield _next(after, me, "look", how, fault=how != "fresh", at=where, absences=absences, seen=seen)
    if state.faults:
        yield _next(_faulty(state), me, "look", "no answer", fault=True, at="retry")


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
    yield _next(sent, me, "call", broken=broken, at="calling", seen=Layout(-1))


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
    executor = state.executors[me]
    refused = how in ("refused", "elsewhere")
    return _next(
        state, me, what, how, fault=fault, at="look again", calls=executor.calls + 1,
        refusals=executor.refusals + refused, answer=how if how in ("accepted", "refused", "elsewhere") else "none",
    )  # fmt: skip


def _look_again(state: State, me: int, rules: Rules) -> Iterator[Next]:
    executor = state.executors[me]
    answer = executor.answer
    unsure = executor.open_end or answer not in ("refused", "elsewhere")
    if not rules.lineage:
        where = {"accepted": "end applied", "refused": "end rejected"}.get(answer, "retry")
        yield _next(state, me, "look", "by memory", at=where)
        return
    for how, live in _layouts(state, executor):
        after = state if how == "fresh" else _faulty(state)
        if after is None:
            continue
        verdict, absences = judge(state.decisions[executor.decision], live, True), 0
        if verdict != "act":
            (where, absences), open_end = _settled(verdict, executor, unsure), unsure
        elif answer in ("refused", "elsewhere"):
            is_sure = answer == "refused" and (not executor.open_end or executor.refusals >= 2)
            where, open_end = ("end rejected" if is_sure else "retry"), executor.open_end
        else:
            where, open_end = "retry", unsure
        yield _next(after, me, "look", how, fault=how != "fresh", at=where, open_end=open_end, absences=absences)
    if state.faults:
        yield _next(_faulty(state), me, "look", "no answer", fault=True, at="retry", open_end=unsure)


def _settled(verdict: str, executor: Executor, unsure: bool) -> tuple[str, int]:
    """Where to go when nothing is left to do: an effect may not show yet, so that there is none is asked twice."""
    if verdict == "superseded" and unsure and not executor.absences:
        return "retry", 1
    return f"end {verdict}", executor.absences


def _retry(state: State, me: int, rules: Rules) -> Iterator[Next]:
    yield from _record(state, me, rules, "record the retry", "", at="look", known=state.layout)
    if state.faults and not state.executors[me].absences:
        yield _next(_faulty(state), me, "the time is up", fault=True, at="end failed")


def _end(state: State, me: int, rules: Rules) -> Iterator[Next]:
    status = state.executors[me].at.removeprefix("end ")
    yield from _record(state, me, rules, "record the end", status, at="idle")


def _record(state: State, me: int, rules: Rules, what: str, status: str, **changed: object) -> Iterator[Next]:
    """A commit to `outcomes`, of the intent, a retry or the end."""
    executor = state.executors[me]
    if rules.fenced and state.fence > executor.token:
        yield _next(state, me, what, "overtaken", at="down", holds=False)
        return
    number = executor.decision
    decision = state.decisions[number]
    broken = ""
    if status and decision.end:
        broken = f"a decision ends twice: {decision.end}, then {status}"
    elif status:
        broken = _untrue(state, number, status)
    row = decision._replace(
        begun=decision.begun or rules.intents, calls=max(decision.calls, executor.calls), end=status or decision.end
    )
    if status and not decision.begun:
        row = row._replace(begun=False)
    decisions = (*state.decisions[:number], row, *state.decisions[number + 1 :])
    yield _next(state._replace(decisions=decisions), me, what, status, broken=broken, **changed)


def _nothing(state: State, me: int, rules: Rules) -> Iterator[Next]:
    return iter(())


_STEPS = {
    "standby": _take, "fence": _fence, "read": _read, "idle": _pick, "intent": _intent, "braked": _braked,
    "look": _look, "check": _check, "send": _send, "calling": _await, "look again": _look_again, "retry": _retry,
    **{f"end {status}": _end for status in ("applied", "superseded", "rejected", "failed")},
}  # fmt: skip


def judge(decision: Decision, live: Layout, may_have_called: bool) -> str:
    """What the layout says of a decision, as `executor.autoscale.judge` reads it."""
    if live.life != decision.on.life:
        return "superseded"
    if decision.segment in live.splits:
        return "applied" if may_have_called else "superseded"
    return "act"


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
            executor = executor._replace(at="look again", calls=executor.calls + 1, answer="none")
    return _next(gone, me, "the lease runs out", fault=fault, new=executor)


# The server of the topic's layouts.


def _server(state: State, rules: Rules) -> Iterator[Next]:
    for call in state.calls:
        if call.answer:
            continue
        decision = state.decisions[call.decision]
        who = NAMES[call.by]
        if rules.conditional and call.seen != state.layout:
            refused = _served(state, call, "elsewhere")
            yield Next(Step("world", "the server refuses the call", f"of {who}, meant for another layout"), refused)
        elif decision.segment in state.layout.active:
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
            yield Next(Step("world", "the server applies the call", f"of {who}"), served, broken)
            faulty = _faulty(state)
            if faulty is not None:
                refused = _served(faulty, call, "refused")
                yield Next(Step("world", "the server refuses the call", f"of {who}"), refused, fault=True)
        else:
            yield Next(Step("world", "the server refuses the call", f"of {who}"), _served(state, call, "refused"))


def _served(state: State, call: Call, answer: str) -> State:
    return _without(state, call) if call.given_up else _changed_call(state, call, call._replace(answer=answer))


# Faults, each paid for already.


def _faults(state: State, rules: Rules) -> Iterator[Next]:
    layout = state.layout
    if len(layout.splits) < 3:
        for how, segment in (("the same", layout.active[0]), ("another one", layout.active[-1])):
            changed = state._replace(layout=layout.split(segment), before=layout)
            yield Next(Step("world", "somebody splits by hand", how), changed, fault=True)
    is_between = any(one.at in ("check", "send", "calling") for one in state.executors)
    if layout.life == 0 and (rules.anew or not (is_between or state.calls)):
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
        if executor.at == "intent":
            yield _next(state, me, "is braked", fault=True, at="braked")


# Small things.


def _layouts(state: State, executor: Executor) -> list[tuple[str, Layout]]:
    """What a look may show: a copy lags less than the delay before a retry."""
    lagging = [("stale", state.before)] if state.layout not in (state.before, executor.known) else []
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
    return ""


def _others(state: State, me: int) -> list[Executor]:
    return [other for number, other in enumerate(state.executors) if number != me]


def _next(
    state: State | None, me: int, what: str, how: str = "", *, broken: str = "", fault: bool = False,
    new: Executor | None = None, **changed: object,
) -> Next:  # fmt: skip
    assert state is not None
    executor = (new or state.executors[me])._replace(**changed)  # type: ignore[arg-type]
    executors = (executor, state.executors[1]) if me == 0 else (state.executors[0], executor)
    return Next(Step(NAMES[me], what, how), state._replace(executors=executors), broken, fault)


def _faulty(state: State) -> State | None:
    return state._replace(faults=state.faults - 1) if state.faults else None


def _without(state: State, call: Call) -> State:
    calls = list(state.calls)
    calls.remove(call)
    return state._replace(calls=tuple(calls))


def _changed_call(state: State, call: Call, new: Call) -> State:
    return _without(state, call)._replace(calls=tuple(sorted((*_without(state, call).calls, new))))
