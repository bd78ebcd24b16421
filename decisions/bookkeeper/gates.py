"""Gates: every reason to refuse a command or to leave a ledger as it is, in the words of an answer.

Stage: under the whole family. Run as `python -m decisions.bookkeeper.gates`: the table of docs/bookies.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType


class Gate(Enum):
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


SENTENCES: Mapping[Gate, str] = MappingProxyType(
    {
        Gate.REQUEST: "The request lacks what this command needs.",
        Gate.URI: "The metadata service URI cannot be read.",
        Gate.URI_FREE: "Another cluster has this URI, or the same ensemble with the same or a nested root.",
        Gate.URI_FIXED: "A registered cluster keeps its URI, as ledgers are found by its name.",
        Gate.INSTANCE: "Two names are one BookKeeper cluster, or a cluster is not the one that was registered.",
        Gate.ONE_ACTIVE: "Exactly one registered cluster is ACTIVE, and only a switch changes which.",
        Gate.REGISTERED: "No cluster of that name is registered.",
        Gate.NOT_ACTIVE: "The cluster is ACTIVE.",
        Gate.NO_SWITCH: "A switch is under way: end it, ask for the same target again, or roll it back.",
        Gate.NOTHING_NAMES_IT: "Ledgers on record are attributed to the cluster.",
        Gate.ATTRIBUTION: "Nobody knows where a ledger is: no stamp, and not made before the bootstrap record.",
        Gate.TARGET_CLIENT: "The target cannot be reached, or a broker's client of it does not start.",
        Gate.IDS_BEYOND: "The target's next ledger id is not beyond every id that the source has used or gives next, "
        "or one of them is not known.",
        Gate.IDS_APART: "The source has reached the ids that the target gives since the switch was asked for, or its "
        "ids are not known.",
        Gate.DIRECTIVE: "No switch was asked for.",
        Gate.ORCHESTRATOR: "Another orchestrator holds the lease.",
        Gate.BROKERS_FOLLOW: "A broker has not taken up the switch yet.",
        Gate.BROKERS_ROUTE: "The brokers know one cluster only: they would not find what was deleted here.",
        Gate.LISTED: "The cluster's ledgers were not listed.",
        Gate.SOURCE_READABLE: "The source's ledger is not there, or cannot be read.",
        Gate.SOURCE_CLOSED: "The source's ledger is still open, so nobody knows all of it.",
        Gate.COPY_EQUAL: "The target has another ledger of that id.",
        Gate.FAILED_BEFORE: "It failed in this attempt; asking for the same switch again tries again.",
        Gate.TRIES: "Others won every try.",
        Gate.CONCURRENCY: "As many objects are worked on as may be at a time.",
        Gate.IN_FLIGHT: "It is being worked on.",
        Gate.WINDOW: "The old copies are kept until both windows have passed.",
        Gate.ROLLBACK_WINDOW: "The window for a rollback has passed.",
        Gate.ASKED: "Old copies are deleted only when an operator asks for it.",
        Gate.DRY_RUN: "Only a dry run was asked for.",
        Gate.MAX_DELETIONS: "As many ledgers are deleted as were asked for.",
        Gate.PROMOTED: "Its copy was made but never promoted.",
        Gate.ATTRIBUTED_ELSEWHERE: "A record attributes the ledger to this very cluster.",
        Gate.TARGET_HOLDS_IT: "The cluster that it is attributed to has no equal, closed, readable copy.",
        Gate.NOTHING_LOST: "Something would be left behind.",
        Gate.WORK: "Nothing is left to do.",
    }
)
"""What it means when a gate does not pass."""


def table() -> str:
    """The gates as a table in Markdown."""
    rows = "\n".join(f"| `{gate.value}` | {SENTENCES[gate]} |" for gate in Gate)
    return f"| gate | holds because |\n| --- | --- |\n{rows}\n"


if __name__ == "__main__":
    print(table(), end="")
