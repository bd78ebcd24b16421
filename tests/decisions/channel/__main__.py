"""Explore and print the record, `explored.md` (some seconds): `python -m tests.decisions.channel`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from decisions.bundles.channel.conflicts import ConflictRefusal
from decisions.bundles.channel.records import TRANSITIONS, State, Store
from tests.decisions.channel.explore import Explored, explore
from tests.decisions.channel.world import Rules

BOUNDS = tuple(
    Rules(store=store, **bounds)  # type: ignore[arg-type]
    for store in Store
    for bounds in (
        {"commands": ("assign", "unload"), "faults": 1},
        {"commands": ("unload",), "faults": 2},
        {"commands": ("split",), "faults": 2 if store is Store.METADATA else 1},
        {"commands": ("split",), "faults": 1, "brokers": 3},
        {"commands": ("split", "move"), "faults": 1},
    )
)
PROTECTIONS = {
    "versions": "that a record must be newer",
    "force_is_newer": "that a record with force must be newer, too",
    "stops": "that the source stops serving before it hands over",
    "monitors": "the monitor",
    "forces": "`force` in what overrides a record",
    "rolls_on": "that the monitor publishes splits again",
    "looks": "the look whether the broker lives to which a bundle goes back",
    "children_first": "that a parent is deleted after its children have owners",
}
FINDINGS = {
    "apart": (
        "the splitter is lost after its children are owned: upstream chooses a new broker for each of the three "
        "records on its own, so the parent is `Splitting` at one broker and a child `Owned` by another, until the "
        "first has written `Deleted`"
    ),
    "returns_early": (
        "a lost broker comes back while records still name it: they are overridden one by one, so for a moment the "
        "split goes on at one broker and a child is served by the one that came back. It ends as the rest arrives"
    ),
    "moves_early": (
        "a child is moved while its parent is still `Splitting`: no rule looks at two bundles at once, and lookups of "
        "the parent still name the splitter"
    ),
    "late": (
        "the record of a split bundle is removed (upstream: after an hour) while a message about it is still on its "
        "way: with no record before it the topic's readers take any. The metadata store takes version 1 alone"
    ),
}
REFUSALS = {
    ConflictRefusal.STALE: "Its version is not newer: somebody else's change came first, or it came twice.",
    ConflictRefusal.GAP: "Its version is not the next one; in the metadata store no compaction can have hidden any.",
    ConflictRefusal.NOT_FIRST: "There is no record of the bundle, and in the metadata store the first has version 1.",
    ConflictRefusal.TRANSITION: "Its state may not follow the state before it.",
    ConflictRefusal.BROKERS: "Its brokers do not fit the record before it.",
}
HEAD = """\
# The ownership channel, checked exhaustively

Brokers with the extensible load manager tell one another who has a bundle over a channel (PIP-192): a compacted system
topic, or since 4.0 the metadata store. `decisions/bundles/channel/` has its rules, without a broker;
`tests/decisions/channel/` has what brokers do by them, and explores it.
`anabranch bundles check` reads a real one (docs/bundles.md).
This page is generated: `python -m tests.decisions.channel > tests/decisions/channel/explored.md`.

## Which state may follow which
"""
CONFLICTS = """
A record without brokers that fit, or one that is not newer, is refused by every reader alike; so the order in the topic
decides who came first. A tombstone is always taken. In the topic, where compaction may have hidden records, a version
that is two or more ahead is taken without a look at its state, and so is any first record. In the metadata store the
first record of a bundle has version 1 and any state: the children of a split begin as `Owned`.

| a record is refused as | because |
| --- | --- |"""
EXPLORED = """
## What was explored

A small cluster: brokers that each read at their own pace, a leader, one bundle, which may be split in two. Messages
arrive in any order. A fault is one of: kill -9, a restart, a lost message, a doubled message, a second leader, a
monitor that comes before what is on its way has arrived. Every order of steps within the bounds, breadth first.

What must hold in each state:

- no half of the bundle has two living owners by what a reader of everything knows
- no two brokers that have read everything serve the same half
- whoever has read everything knows what is stored
- no record goes back to an older version

And in the end: without more faults, every run comes to rest, in which nothing is in flight, every owner lives and
serves, and no child of a deleted parent is without an owner. Until then a monitor's round (each 60 s, for what is in
flight for more than 30 s) is needed as often as the table says at most. A bundle may rest as `Free`, or without a
record: it is assigned as somebody looks it up. A bundle whose assignment is lost before it is written is in no reader's
records; who asked asks again.

| store | brokers | asked of it | faults | states | steps | longest way | rounds until rest | |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |"""
MISSED = """
## Each protection is needed

A shortest history that breaks a promise when one is taken away, in the system topic."""
FOUND = """
## Where upstream's own rules are not enough

The rules above are upstream's, kept as they are. The promises rest on four assumptions, which upstream does not
enforce; the table above explores worlds in which they hold. Each of these breaks a promise without them."""


def assumed(name: str, store: Store = Store.TOPIC) -> Rules:
    """The rules without an assumption, and with what it takes to break a promise."""
    commands = ("split",) if name in ("apart", "returns_early") else ("split", "move")
    faults = {"returns_early": 2, "moves_early": 0}.get(name, 1)
    brokers = 3 if name == "apart" else 2
    return replace(Rules(store=store, brokers=brokers, commands=commands, faults=faults), **{name: True})


def without(protection: str) -> Explored:
    """What is found when a protection is taken away, with as few commands and faults as it takes."""
    for faults in range(3):
        for commands in (("unload",), ("split",)):
            found = explore(replace(Rules(commands=commands, faults=faults), **{protection: False}))
            if found.broken:
                return found
    raise AssertionError(f"nothing breaks without {PROTECTIONS[protection]}")


def transition_table() -> str:
    """The transitions of both stores as a table in Markdown."""
    lines = ["| from | to, in the system topic | to, in the metadata store |", "| --- | --- | --- |"]
    for state in State:
        cells = (
            ", ".join(f"`{target.value}`" for target in State if target in TRANSITIONS[store][state])
            for store in (Store.TOPIC, Store.METADATA)
        )
        lines.append(f"| `{state.value}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def lines() -> Iterator[str]:
    """The page."""
    yield HEAD
    yield transition_table().rstrip()
    yield CONFLICTS
    for refused, why in REFUSALS.items():
        yield f"| `{refused.value}` | {why} |"
    yield EXPLORED
    for rules in BOUNDS:
        found = explore(rules)
        figures = f"{found.states:,} | {found.transitions:,} | {found.depth} | {found.rounds}"
        verdict = found.broken or "all holds"
        asked = ", ".join(rules.commands)
        yield f"| {rules.store.value} | {rules.brokers} | {asked} | {rules.faults} | {figures} | {verdict} |"
    yield MISSED
    for protection, what in PROTECTIONS.items():
        yield f"\nWithout {what}:\n\n```\n{without(protection).counterexample}\n```"
    yield FOUND
    for name, when in FINDINGS.items():
        yield f"\n**{name.replace('_', ' ').capitalize()}**: {when}."
        yield f"\n```\n{explore(assumed(name)).counterexample}\n```"


if __name__ == "__main__":
    for line in lines():
        print(line)
