"""Outages of the lake: retries with a delay, each outage logged once."""

import logging
import time

from deltalake.exceptions import DeltaError

from runtime.backoff import Backoff

log = logging.getLogger(__name__)

LAKE_DELAY_SECONDS = 0.1
LAKE_MAX_DELAY_SECONDS = 5.0
"""Shortest and longest delay after the lake could not be read or written."""
LAKE_ERRORS = (DeltaError, OSError)


class Outage:
    """Retry state while the lake fails; logs one line when an outage begins and one when it ends."""

    def __init__(self, subject: str) -> None:
        self._what, self._failures = subject, 0
        self._backoff = Backoff(LAKE_DELAY_SECONDS, LAKE_MAX_DELAY_SECONDS)
        self.until = 0.0

    def failed(self, error: Exception) -> None:
        """Schedule the next attempt."""
        if not self._failures:
            log.warning("%s, trying again: %s", self._what, error)
        self._failures += 1
        self.until = time.monotonic() + self._backoff.after(self._failures)

    def succeeded(self) -> None:
        """Note that the lake works again."""
        if self._failures:
            log.info("the lake works again (%s)", self._what)
        self.until, self._failures = 0.0, 0
