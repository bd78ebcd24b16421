"""What a hub holds, for tests to see."""

from __future__ import annotations

from anabranch.controller.watch.hub import WatchHub


def open_sessions(hub: WatchHub, topic: str | None = None) -> int:
    """Number of sessions on one topic, or on all."""
    return sum(len(feed.sessions) for name, feed in list(hub._feeds.items()) if topic in (None, name))
