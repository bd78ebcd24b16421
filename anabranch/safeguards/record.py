"""Rows of the table `waits`: the reason why an open decision waits, for operators and their SQL.

The executor never reads them: it derives what holds a decision from the brakes themselves. So a row may be late, and a
lake that cannot be written delays nothing.
"""

import logging
from datetime import datetime

from deltalake.exceptions import DeltaError

from anabranch.safeguards.rules import HeldBySafeguard, PendingDecision
from lake.tables import OpenTable, create_table
from schemas.tables.arrow import to_arrow
from schemas.tables.rows import WAITS, WaitRow

log = logging.getLogger(__name__)

DELAY_SECONDS = 5.0
"""Delay before rows that could not be written are tried again."""


class WaitTable:
    """Table `waits` of a lake, created if missing. Used by one thread."""

    def __init__(self, lake: str, executor: str, shard: int = 0) -> None:
        """Open the table; `executor`: process that writes for a shard. Raises Delta's errors, `LakeError`."""
        self._open = OpenTable(create_table(lake, WAITS))
        self._executor, self._app = executor, f"anabranch-waits:{shard}"
        self._unwritten: dict[str, WaitRow] = {}
        self._write_at = 0.0

    def note(self, candidate: PendingDecision, held: HeldBySafeguard, instant: datetime) -> None:
        """Note the brake that holds a decision from now on; kept in memory until `write`."""
        self._unwritten[candidate.decision_id] = WaitRow(
            decision_id=candidate.decision_id,
            family=candidate.family,
            subject=candidate.subject,
            brake=held.brake,
            reason=held.why,
            until=held.until,
            at=instant,
            executor=self._executor,
            day=instant.date(),
        )

    def write(self, now: float) -> None:
        """Write all noted rows in one commit; `now`: seconds of a monotonic clock. Never raises."""
        if not self._unwritten or now < self._write_at:
            return
        try:
            rows = to_arrow(WAITS, self._unwritten.values())
            self._open.newest()
            self._open.append(rows, self._app, 0)
        except (DeltaError, OSError) as error:
            log.warning("what decisions wait for cannot be written, trying again: %s", error)
            self._write_at = now + DELAY_SECONDS
            return
        self._unwritten.clear()
