"""`python -m tests.executor.model > tests/executor/model/PROTOCOL.md`: explores the larger bounds, has the real
executor take the steps of many histories, and prints the record.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from tests.executor.model.explore import Explored, broken_rules, explore
from tests.executor.model.rules import Rules
from tests.executor.model.scenarios import Scenario, scenarios
from tests.executor.model.stage import Stage

BOUNDS = (
    Rules(faults=3),
    Rules(faults=2, evaluations=2),
    Rules(faults=2, siblings=2),
    Rules(faults=2, siblings=2, conditional=True),
    Rules(faults=2, siblings=2, bundles=True),
)
"""What is proven on record; the tests explore smaller ones."""

PROTECTIONS = {
    "fenced": "the fence and the look at the lease before each call",
    "intents": "the durable intent",
    "lineage": "the judgement by lineage (an executor believes its memory and the call's answer)",
    "margin": "the margin: a call may be begun up to the end of the lease",
    "waits": "the wait of who takes over",
    "apart": "the judgement of a decision by its own segments (all active ones must be as they were decided on)",
    "every_end": "the announcement of each end (only the newest of a subject is announced again)",
}
ASSUMPTIONS = {
    "frozen_in_between": "a process is frozen between the look at its lease and the first byte of the call",
    "late": "the server carries out a call after the caller has given it up",
    "anew": "somebody makes the topic anew between the look and the call, or a copy lags over that",
}
RULES = {
    "without a durable intent": "no effect without a durable intent",
    "applied twice": "no decision applied twice",
    "ends twice": "no decision ends twice",
    "lost its lease": "no call without the lease",
    "two executors": "no two executors with a call out for one topic",
    "for a decision that has ended": "no call for a decision that has ended",
    "though it was applied": "who ends as superseded or rejected was not applied before",
    "that has ended as": "nor after",
    "without an effect": "who ends as applied was",
    "made anew since": "no effect on another life of the topic",
    "as they were decided on": "who ends as superseded has another's change on its own segments",
}

HEAD = """\
# The executor's protocol, checked exhaustively

A model of how each decision becomes at most one change of a layout, whatever fails: `tests/executor/model/`. The world
is small: one topic, two executors that take over from each other, a job that decides, a server, and somebody who splits
by hand or makes the topic anew. The job takes one decision or, in one evaluation, two on different segments (`[1]` and
`[2]` in a history); of two, one may wait for a brake or a retry while the other goes on. For the family `bundles` the
subject is a cluster with two bundles, each to be moved, and somebody may move one before. A fault is one of: kill -9, a
freeze (SIGSTOP), a lease that runs out in the hands of a living process, a lost call, a lost answer, a refusal, a look
without an answer, a look at a copy that lags, an outcome that Kafka loses, a change by hand, a brake, the end of
`give_up_seconds`. Every order of steps with up to so many faults is explored, breadth first. This page is generated:
`python -m tests.executor.model > tests/executor/model/PROTOCOL.md`.

What must hold, in each state:
"""

MIDDLE = """
And in the end: from each state, with nothing more failing, every decision ends and the job hears of it (steps that
stay possible are taken at last).
"""


def main() -> None:
    """Prints the page."""
    print(beginning())
    for rules in BOUNDS:
        found = explore(rules)
        figures = f"{found.states:,} | {found.transitions:,} | {found.depth} | {found.seconds:.0f}"
        meant = "yes" if rules.conditional else "no"
        family = "bundles" if rules.bundles else "autoscale"
        kinds = f"{family} | {rules.evaluations} | {rules.siblings} | {rules.faults} | {meant}"
        print(f"| {kinds} | {figures} | {_verdict(found)} |", flush=True)
        _say(rules)
    print(explained())
    _play()
    print(ending(), end="")


def beginning() -> str:
    """The page up to the figures of the larger bounds."""
    rules = "\n".join(f"- {rule}" for rule in RULES.values())
    return f"{HEAD}\n{rules}\n{MIDDLE}\n{TABLE}"


def explained() -> str:
    """What the model says of each protection and each assumption."""
    parts = [PROTECTED, *map(unprotected, PROTECTIONS)]
    parts += [ASSUMED, _left(conditional=False), CONDITIONAL, _left(conditional=True)]
    for name, what in ASSUMPTIONS.items():
        parts.append(f"\nWhen {what}, for instance:\n\n```\n{_counterexample(replace(Rules(), **{name: True}))}\n```")
    return "\n".join([*parts, TAIL])


def unprotected(name: str) -> str:
    """The shortest history that breaks a rule without a protection."""
    rules = replace(Rules(siblings=2 if name in OF_SIBLINGS else 1), **{name: False})
    return f"\nWithout {PROTECTIONS[name]}:\n\n```\n{_counterexample(rules)}\n```"


def ending() -> str:
    """Which histories the real executor follows."""
    return PLAYED.format(*(len(histories) for _, histories in _chosen()))


def _left(conditional: bool) -> str:
    """What is left of each rule when one of the assumptions does not hold."""
    wild = Rules(faults=WILD, conditional=conditional)
    broken = [broken_rules(replace(wild, **{name: True})) for name in ASSUMPTIONS]
    lines = [f"| rule | {' | '.join(ASSUMPTIONS.values())} |", f"| --- |{' --- |' * len(ASSUMPTIONS)}"]
    for words, rule in RULES.items():
        cells = ("broken" if any(words in one for one in found) else "holds" for found in broken)
        lines.append(f"| {rule} | {' | '.join(cells)} |")
    return "\n".join(lines)


TABLE = """\
| family | evaluations | decisions each | faults | calls name a layout | states | steps | longest way | core s | |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"""
OF_SIBLINGS = ("apart", "every_end")
"""Protections that one decision alone does not need."""
WILD = 2
"""Faults beside that what is assumed does not hold."""

PROTECTED = """
## Without a protection

What each of them is for: the shortest history that breaks a rule without it, as the model finds it."""

ASSUMED = f"""
## Without an assumption

The rules hold as long as three things do not happen, which no executor can rule out by itself. What is left if one does
(one decision, {WILD} faults; the second takes three faults to break a rule, as below):
"""

CONDITIONAL = f"""
Our controller carries a call out only on the layout that the caller has seen (the header `X-Anabranch-Layout`, when the
topic was made and the layout's epoch); else it answers 409 and changes nothing. Then a call that comes too late does
nothing once anything has happened to the topic ({WILD} faults):
"""

TAIL = """
A Pulsar takes no such condition. What stands against the three there: the executor looks at the steady clock again when
the connection is open, right before the first byte, so the window of the first is some instructions wide; and a server
refuses to split or merge what is sealed already: even then no segment is split twice. Against the second, whoever takes
over waits for the whole lease, of which a call's time-out is a part. The third takes a topic of the same name with the
same segments, and a race of milliseconds.
"""


def _chosen() -> list[tuple[Rules, list[Scenario]]]:
    """Scenarios that the real executor follows, with their rules."""
    chosen = (
        (Rules(faults=1), 1),
        (Rules(faults=2), EVERY),
        (Rules(faults=1, evaluations=2), 3),
        (Rules(faults=1, siblings=2), 1),
        (Rules(faults=1, siblings=2, bundles=True), 1),
    )
    return [(rules, scenarios(rules)[::every]) for rules, every in chosen]


def _play() -> None:
    """Has the real executor follow them."""
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(Path(folder))
        for rules, histories in _chosen():
            for scenario in histories:
                stage.play(scenario, rules)
            _say(f"and played {len(histories)} of {rules}")


EVERY = 16
"""Of the histories with two faults the real executor takes every sixteenth; of two evaluations every third."""

PLAYED = """\
## The same steps by the real executor

`tests/executor/model/stage.py` has the real kernel of the executor, with real Delta tables, take the steps of histories
out of the model: its threads wait at each step until the history says so, its memory is dropped at a kill, and the
server and Kafka lose what the history says is lost. At each step it must want what the model says comes next, and
record and layout must be the model's at the end. For this record it has followed {} histories with one fault, {} with
two, {} with one fault and two evaluations, {} with one fault and two decisions of one evaluation, and {} of the family
`bundles` with one fault and two moves; those with one fault and one evaluation are among the tests
(`tests/executor/test_protocol.py`).
"""


def _counterexample(rules: Rules) -> str:
    """The one with the fewest faults."""
    for faults in range(4):
        found = explore(replace(rules, faults=faults))
        if found.counterexample or found.stuck:
            return str(found.counterexample or found.stuck)
    return "none"


def _verdict(found: Explored) -> str:
    return "holds" if found.counterexample is None and found.stuck is None else "BROKEN"


def _say(what: object) -> None:
    print(f"explored {what}", file=sys.stderr)


if __name__ == "__main__":
    main()
