"""Gates: every reason to refuse a command or to leave a ledger as it is, with advice to operators.

Stage: under the whole family. Run as `python -m decisions.bookkeeper.gates`: the table of docs/bookies.md.
"""

from decisions.kernel.readings import NamedReason


class BookieGate(NamedReason):
    """A gate: its name on the wire, and what it means when it does not pass."""

    REQUEST = "request", "The request lacks what this command needs."
    URI = "metadata-service-uri", "The metadata service URI cannot be read."
    URI_FREE = "uri-free", "Another cluster has this URI, or the same ensemble with the same or a nested root."
    URI_FIXED = "uri-fixed", "A registered cluster keeps its URI, as ledgers are found by its name."
    INSTANCE = "instance-id", "Two names are one BookKeeper cluster, or a cluster is not the one that was registered."
    ONE_ACTIVE = "one-active", "Exactly one registered cluster is ACTIVE, and only a switch changes which."
    REGISTERED = "registered", "No cluster of that name is registered."
    NOT_ACTIVE = "not-active", "The cluster is ACTIVE."
    NO_SWITCH = "no-switch-open", "A switch is under way: end it, ask for the same target again, or roll it back."
    NOTHING_NAMES_IT = "nothing-names-it", "Ledgers on record are attributed to the cluster."
    ATTRIBUTION = (
        "attribution-known",
        "Nobody knows where a ledger is: no stamp, and not made before the bootstrap record.",
    )
    TARGET_CLIENT = "target-client", "The target cannot be reached, or a broker's client of it does not start."
    IDS_BEYOND = (
        "ids-beyond-source",
        "The target's next ledger id is not beyond every id that the source has used or gives next, or one of them is "
        "not known.",
    )
    IDS_APART = (
        "ids-apart",
        "The source has reached the ids that the target gives since the switch was asked for, or its ids are not "
        "known.",
    )
    DIRECTIVE = "switch-asked-for", "No switch was asked for."
    ORCHESTRATOR = "orchestrator", "Another orchestrator holds the lease."
    BROKERS_FOLLOW = "brokers-follow", "A broker has not taken up the switch yet."
    BROKERS_ROUTE = "brokers-route", "The brokers know one cluster only: they would not find what was deleted here."
    LISTED = "ledgers-listed", "The cluster's ledgers were not listed."
    SOURCE_READABLE = "source-readable", "The source's ledger is not there, or cannot be read."
    SOURCE_CLOSED = "source-closed", "The source's ledger is still open, so nobody knows all of it."
    COPY_EQUAL = "copy-equal", "The target has another ledger of that id."
    FAILED_BEFORE = "failed-before", "It failed in this attempt; asking for the same switch again tries again."
    TRIES = "tries", "Others won every try."
    CONCURRENCY = "concurrency", "As many objects are worked on as may be at a time."
    IN_FLIGHT = "in-flight", "It is being worked on."
    WINDOW = "window", "The old copies are kept until both windows have passed."
    ROLLBACK_WINDOW = "rollback-window", "The window for a rollback has passed."
    ASKED = "cleanup-asked-for", "Old copies are deleted only when an operator asks for it."
    DRY_RUN = "dry-run", "Only a dry run was asked for."
    MAX_DELETIONS = "max-deletions", "As many ledgers are deleted as were asked for."
    PROMOTED = "promoted", "Its copy was made but never promoted."
    ATTRIBUTED_ELSEWHERE = "attributed-elsewhere", "A record attributes the ledger to this very cluster."
    TARGET_HOLDS_IT = "target-holds-it", "The cluster that it is attributed to has no equal, closed, readable copy."
    NOTHING_LOST = "nothing-lost", "Something would be left behind."
    WORK = "work-left", "Nothing is left to do."


SENTENCES = {gate: gate.sentence for gate in BookieGate}
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
