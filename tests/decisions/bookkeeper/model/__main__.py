"""Explore the larger bounds and print `explored.md`: `python -m tests.decisions.bookkeeper.model`."""

from __future__ import annotations

from dataclasses import replace

from tests.decisions.bookkeeper.model.explore import explore
from tests.decisions.bookkeeper.model.state import Rules

SMALL = (
    Rules(takeovers=2, kills=1, others=("put", "roll")),
    Rules(takeovers=2, commands=("switch new", "rollback")),
    Rules(takeovers=2, commands=("switch new", "cleanup"), others=("fold",)),
    Rules(takeovers=1, commands=("switch new", "switch third"), others=("roll",)),
    Rules(takeovers=1, others=("roll back", "put")),
    Rules(takeovers=2, kills=1, commands=("switch new", "rollback"), others=("fold",), open_cursor=True),
)
"""What the tests explore."""
LARGE = (
    Rules(takeovers=3, kills=1, others=("put", "roll", "fold")),
    Rules(takeovers=2, kills=1, commands=("switch new", "cleanup", "rollback"), others=("put",)),
    Rules(takeovers=2, commands=("switch new", "cleanup", "switch third", "cleanup"), others=("roll",)),
    Rules(takeovers=2, kills=1, commands=("switch new", "rollback", "switch new"), others=("roll back",)),
    Rules(takeovers=2, commands=("switch new", "cleanup", "rollback", "cleanup")),
)
"""What is proven on record."""
WITHOUT = (
    ("the flip as one transaction (PIP-477 writes one status, then the other)", Rules(one_write=False), "are ACTIVE"),
    (
        "the wait before anything is deleted after a takeover from somebody who did not leave",
        Rules(expiry=False, takeovers=2, commands=("switch new", "cleanup")),
        "no cluster has a whole copy",
    ),
    (
        "a deadline that is fixed before the term is checked (it is fixed when the deletion is asked for)",
        Rules(early_deadline=False, takeovers=2, commands=("switch new", "cleanup", "rollback", "cleanup")),
        "no cluster has a whole copy",
    ),
    ("making a promoted copy again that is gone", Rules(repair=False, takeovers=2), "has no whole copy"),
    (
        "making it again, and with a stamp that does not name the ledger",
        Rules(repair=False, stamps=False, others=("roll back",)),
        "has no whole copy",
    ),
    (
        "term and directive in every transaction, and without reading attributions again before a deletion",
        Rules(
            attributions=False, directive=False, term=False, takeovers=2, commands=("switch new", "cleanup", "rollback")
        ),
        "no cluster has a whole copy",
    ),
)
"""A protection that is taken away, and what breaks then."""

HEAD = """\
# The protocol of a switch, checked exhaustively

A model of a switch between BookKeeper clusters, whatever fails: `tests/decisions/bookkeeper/model/`. What is to be done
is decided by the code itself (`decisions.bookkeeper`), on what an orchestrator saw when it looked; how it is carried
out follows `anabranch/bookkeeper/steps.py`, one request after the other. The world is small: a schema, a subscription,
three clusters, two orchestrators that take over from each other, operators, and brokers that change records. Anybody
may be frozen between any two requests, for as long as it takes, and go on; or be killed. Every order is explored. This
page is generated: `python -m tests.decisions.bookkeeper.model > tests/decisions/bookkeeper/model/explored.md`.

What must hold, in each state:

- exactly one cluster is ACTIVE
- every ledger that a record names has a whole copy on some cluster
- somebody who takes over, and whom nobody disturbs, comes to rest; then every ledger is whole where it is attributed to

| operators ask for | takeovers | kills | others | states | steps | longest way | core s | |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |"""
TAIL = """
## Without a protection

What each is for: the shortest history that breaks a rule without it.
"""


def row(rules: Rules) -> str:
    """A line of the table."""
    found = explore(rules)
    verdict = found.broken or "holds"
    asked = ", ".join([*rules.commands, *(["an open cursor"] if rules.open_cursor else [])])
    return (
        f"| {asked} | {rules.takeovers} | {rules.kills} | {', '.join(rules.others) or 'nobody'} | "
        f"{found.states:,} | {found.moves:,} | {found.depth} | {found.seconds:.0f} | {verdict} |"
    )


def main() -> None:
    """Prints the page."""
    print(HEAD)
    for rules in (*SMALL, *LARGE):
        print(row(rules), flush=True)
    print(TAIL)
    for words, rules, _ in WITHOUT:
        print(f"Without {words}:\n\n```\n{explore(replace(rules))}\n```\n", flush=True)


if __name__ == "__main__":
    main()
