"""End the terms of a node cut off from the store (PIP-468 "Leader Election and Failover").

Stage: beside `anabranch.controller.leadership.leaders`, in its own thread, so that nothing that waits for the store
delays it. A node that is cut off from the store may still be connected to its consumers. The next leader lets them keep
their segments for the grace period, which is at least a session; so this node disconnects them before that.
"""

from __future__ import annotations

import logging
import threading

from anabranch.controller.leadership.leaders import Leaders

log = logging.getLogger(__name__)

_SILENT_PART, _LOOKS = 0.5, 10
"""Longest silence of the store, as a share of a session; and number of checks per session."""


class TermWatch:
    """Thread that ends overdue terms."""

    def __init__(self, leaders: Leaders, session_seconds: float) -> None:
        self._leaders, self._session_s = leaders, session_seconds
        self._thread = threading.Thread(target=self._run, name="term-watch", daemon=True)

    def start(self) -> None:
        """Start the thread; it ends when `leaders` stop."""
        self._thread.start()

    def _run(self) -> None:
        while not self._leaders.stopping.wait(self._session_s / _LOOKS):
            try:
                self._leaders.end_unheard(self._session_s * _SILENT_PART)
            except Exception:
                log.exception("terms of this node may be over and cannot be ended; trying again")
