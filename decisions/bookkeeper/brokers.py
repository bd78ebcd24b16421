"""Brokers during a switch: they route by attribution or they are stopped; otherwise nothing is moved.

Stage: under everything that acts. A claim that brokers are stopped is checked against those that are registered now.
"""

from __future__ import annotations

from collections.abc import Sequence

from decisions.bookkeeper.account import BookieAccount
from decisions.bookkeeper.gates import BookieGate
from decisions.bookkeeper.seen import BookieView
from schemas.bookies import Routing


def routing_fault(routing: Routing, registered: Sequence[str]) -> str | None:
    """Return why nothing may be moved under these brokers; None: it may."""
    if routing == "stock":
        return (
            "brokers that know one cluster only, when they are pointed at another, remove from topics the data ledgers "
            "that they do not find there, and lose what is deleted here. Stop them, and say --brokers stopped; "
            "rehearse on copies of the metadata (docs/bookies.md)"
        )
    if routing == "stopped" and registered:
        return (
            f"brokers are said to be stopped, and {len(registered)} are registered now, such as {registered[0]}: what "
            "they write would be fenced, and subscriptions changed behind their back. Stop them, wait until their "
            "sessions have ended, then give the same command again"
        )
    return None


def require_routing(seen: BookieView, account: BookieAccount) -> bool:
    """Require brokers under which ledgers may be moved, sealed and deleted."""
    fault = routing_fault(seen.snapshot.routing, seen.snapshot.registered_brokers or ())
    return account.require(BookieGate.BROKERS_ROUTE, fault is None, fault)
