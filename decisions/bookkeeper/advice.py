"""Advice to operators about a ledger that stays where it is, by the reason on record.

Stage: beside `work`, for the commands and the page; pure.
"""

from __future__ import annotations

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
    """Return what an operator can do about a ledger that stays where it is."""
    for part, text in _ADVICE:
        if part in reason:
            return text.format(source=source, target=target, ledger=ledger)
    return _OTHERWISE
