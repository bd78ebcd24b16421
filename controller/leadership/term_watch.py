"""Ends the terms of a node that does not hear the metadata store, in time (PIP-468 "Leader Election and Failover").

Stage: beside `controller.leadership.leaders`, in a thread of its own: whatever waits for the store must not hold it up.
A node that is cut off from the store still hears its consumers, and they hear it. The next leader lets them keep their
segments for the grace period, which is at least a session; so this node sends them away before.
"""

from __future__ import annotations

import logging
import threading

from controller.leadership.leaders import Leaders

log = logging.getLogger(__name__)

_SILENT_PART, _LOOKS = 0.5, 10
"""Of a session: the longest silence of the store, beyond that after which the client notices; and looks in one."""


class TermWatch:
    """The thread."""

    def __init__(self, leaders: Leaders, session_seconds: float) -> None:
        self._leaders, self._session_s = leaders, session_seconds
        self._thread = threading.Thread(target=self._run, name="term-watch", daemon=True)

    def start(self) -> None:
        """Begin; it ends when `leaders` stop."""
        self._thread.start()

    def _run(self) -> None:
        while not self._leaders.stopping.wait(self._session_s / _LOOKS):
            try:
                self._leaders.end_unheard(self._session_s * _SILENT_PART)
            except Exception:
                log.exception("terms of this node may be over and cannot be ended; trying again")
