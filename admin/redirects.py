"""Redirects, followed by hand: an HTTP library would drop the token that the topic's leader on another host asks for.

Stage: under `transport`; pure. `next_hop` is the one place that decides where a call goes and what it takes along.
"""

from __future__ import annotations

from dataclasses import dataclass

import httpx

MAX_REDIRECTS = 5
"""A call that is sent on more often than this goes round in circles."""
REDIRECTS = frozenset({307, 308})
"""The statuses that keep method and body; the interface uses no other."""


@dataclass(frozen=True)
class Hop:
    """One address that a call goes to."""

    url: str
    with_token: bool


def next_hop(asked: Hop, location: str) -> Hop | None:
    """Where a server at `asked` sends a call by the header Location; None when it is not followed.

    Never from https to http. The token goes along to every address, as the leader of a topic may be on any host.
    """
    came_from = httpx.URL(asked.url)
    try:
        target = came_from.join(location)
    except (httpx.InvalidURL, ValueError):
        return None
    allowed = ("https",) if came_from.scheme == "https" else ("http", "https")
    if target.scheme not in allowed or not target.host:
        return None
    return Hop(str(target), asked.with_token)
