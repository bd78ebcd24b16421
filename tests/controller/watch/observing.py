"""What a hub holds, for tests to see."""

from __future__ import annotations

from anabranch.controller.watch.hub import WatchHub


def open_sessions(hub: WatchHub) -> int:
    """Number of sessions on all topics."""
    return sum(len(feed.sessions) for feed in hub._feeds.values())
