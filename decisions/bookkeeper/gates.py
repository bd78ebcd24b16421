"""Gates: every reason to refuse a command or to leave a ledger as it is, with advice to operators.

Stage: under the whole family. Run as `python -m decisions.bookkeeper.gates`: the table of docs/bookies.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType


class BookieGate(Enum):
    """A gate's name on the wire."""

    REQUEST = "request"
    URI = "metadata-service-uri"
    URI_FREE = "uri-free"
    URI_FIXED = "uri-fixed"
    INSTANCE = "instance-id"
    ONE_ACTIVE = "one-active"
    REGISTERED = "registered"
    NOT_ACTIVE = "not-active"
    NO_SWITCH = "no-switch-open"
    NOTHING_NAMES_IT = "nothing-names-it"
    ATTRIBUTION = "attribution-known"
    TARGET_CLIENT = "target-client"
    IDS_BEYOND = "ids-beyond-source"
    IDS_APART = "ids-apart"
    DIRECTIVE = "switch-asked-for"
    ORCHESTRATOR = "orchestrator"
    BROKERS_FOLLOW = "brokers-follow"
    BROKERS_ROUTE = "brokers-route"
    LISTED = "ledgers-listed"
    SOURCE_READABLE = "source-readable"
    SOURCE_CLOSED = "source-closed"
    COPY_EQUAL = "copy-equal"
    FAILED_BEFORE = "failed-before"
    TRIES = "tries"
    CONCURRENCY = "concurrency"
    IN_FLIGHT = "in-flight"
    WINDOW = "window"
    ROLLBACK_WINDOW = "rollback-window"
    ASKED = "cleanup-asked-for"
    DRY_RUN = "dry-run"
    MAX_DELETIONS = "max-deletions"
    PROMOTED = "promoted"
    ATTRIBUTED_ELSEWHERE = "attributed-elsewhere"
    TARGET_HOLDS_IT = "target-holds-it"
    NOTHING_LOST = "nothing-lost"
    WORK = "work-left"


SENTENCES: Mapping[BookieGate, str] = MappingProxyType(
    {
        BookieGate.REQUEST: "The request lacks what this command needs.",
        BookieGate.URI: "The metadata service URI cannot be read.",
        BookieGate.URI_FREE: "Another cluster has this URI, or the same ensemble with the same or a nested root.",
        BookieGate.URI_FIXED: "A registered cluster keeps its URI, as ledgers are found by its name.",
        BookieGate.INSTANCE: "Two names are one BookKeeper cluster, or a cluster is not the one that was registered.",
        BookieGate.ONE_ACTIVE: "Exactly one registered cluster is ACTIVE, and only a switch changes which.",
        BookieGate.REGISTERED: "No cluster of that name is registered.",
        BookieGate.NOT_ACTIVE: "The cluster is ACTIVE.",
        BookieGate.NO_SWITCH: "A switch is under way: end it, ask for the same target again, or roll it back.",
        BookieGate.NOTHING_NAMES_IT: "Ledgers on record are attributed to the cluster.",
        BookieGate.ATTRIBUTION: "Nobody knows where a ledger is: no stamp, and not made before the bootstrap record.",
        BookieGate.TARGET_CLIENT: "The target cannot be reached, or a broker's client of it does not start.",
        BookieGate.IDS_BEYOND: "The target's next ledger id is not beyond every id that the source has used or gives "
        "next, or one of them is not known.",
        BookieGate.IDS_APART: "The source has reached the ids that the target gives since the switch was asked for, or "
        "its ids are not known.",
        BookieGate.DIRECTIVE: "No switch was asked for.",
        BookieGate.ORCHESTRATOR: "Another orchestrator holds the lease.",
        BookieGate.BROKERS_FOLLOW: "A broker has not taken up the switch yet.",
        BookieGate.BROKERS_ROUTE: "The brokers know one cluster only: they would not find what was deleted here.",
        BookieGate.LISTED: "The cluster's ledgers were not listed.",
        BookieGate.SOURCE_READABLE: "The source's ledger is not there, or cannot be read.",
        BookieGate.SOURCE_CLOSED: "The source's ledger is still open, so nobody knows all of it.",
        BookieGate.COPY_EQUAL: "The target has another ledger of that id.",
        BookieGate.FAILED_BEFORE: "It failed in this attempt; asking for the same switch again tries again.",
        BookieGate.TRIES: "Others won every try.",
        BookieGate.CONCURRENCY: "As many objects are worked on as may be at a time.",
        BookieGate.IN_FLIGHT: "It is being worked on.",
        BookieGate.WINDOW: "The old copies are kept until both windows have passed.",
        BookieGate.ROLLBACK_WINDOW: "The window for a rollback has passed.",
        BookieGate.ASKED: "Old copies are deleted only when an operator asks for it.",
        BookieGate.DRY_RUN: "Only a dry run was asked for.",
        BookieGate.MAX_DELETIONS: "As many ledgers are deleted as were asked for.",
        BookieGate.PROMOTED: "Its copy was made but never promoted.",
        BookieGate.ATTRIBUTED_ELSEWHERE: "A record attributes the ledger to this very cluster.",
        BookieGate.TARGET_HOLDS_IT: "The cluster that it is attributed to has no equal, closed, readable copy.",
        BookieGate.NOTHING_LOST: "Something would be left behind.",
        BookieGate.WORK: "Nothing is left to do.",
    }
)
"""What it means when a gate does not pass."""
_ADVICE = (
    (
        "Conflict",
        "{target} has other contents under this id. Find out whose they are (bookkeeper shell ledgermetadata "
        "-ledgerid {ledger}); when nobody needs them, delete them there and try again",
    ),
    (
        "differs",
        "{target} has other contents under this id. Find out whose they are (bookkeeper shell ledgermetadata "
        "-ledgerid {ledger}); when nobody needs them, delete them there and try again",
    ),
    (
        "the id is there",
        "{target} has this id, open or not readable, and it is no copy of ours. Find out whose it is "
        "(bookkeeper shell ledgermetadata -ledgerid {ledger}); when nobody needs it, delete it there",
    ),
    ("LedgerFenced", "bookies of {target} remember this id as deleted: restart them, then try again"),
    ("NotEnoughBookies", "{target} has fewer bookies than this ledger needs: start more, then try again"),
    ("it is open", "read this schema once through a broker, which closes its ledger, then try again"),
    ("was open again", "stop the consumers of this subscription, or the brokers, then try again"),
    ("an earlier switch left it", "ask for the same switch again, which moves it from there"),
    ("gives ids from", "the two clusters may give the same ids: move to one whose ids are beyond (precheck --advance)"),
    ("has no such ledger", "it is lost. Reset a subscription; delete a schema, or put it anew. Then try again"),
)
"""By a part of a failure's reason, what an operator can do."""
_OTHERWISE = "bring back what cannot be read or written, such as bookies that are down, then try again"


def ledger_advice(ledger: int, reason: str, source: str, target: str) -> str:
    """Return what an operator can do about a ledger that stays where it is, by the reason on record."""
    for part, text in _ADVICE:
        if part in reason:
            return text.format(source=source, target=target, ledger=ledger)
    return _OTHERWISE


def gates_table() -> str:
    """Return the gates as a table in Markdown."""
    rows = "\n".join(f"| `{gate.value}` | {SENTENCES[gate]} |" for gate in BookieGate)
    return f"| gate | holds because |\n| --- | --- |\n{rows}\n"


if __name__ == "__main__":
    print(gates_table(), end="")
