"""Rows of the table `waits`: what an open decision waits for, for people and their SQL.

The executor reads none of them: what holds a decision is worked out from the brakes themselves. So a row may be late,
and a lake that cannot be written to holds nothing up.
"""

from __future__ import annotations

import logging
from datetime import datetime

from deltalake import write_deltalake
from deltalake.exceptions import DeltaError

from executor.brakes.rules import Candidate, Held
from lake.tables import HOOKS, OpenTable, create_table
from schemas.arrow import to_arrow
from schemas.tables import WAITS, WaitRow

log = logging.getLogger(__name__)

DELAY_SECONDS = 5.0
"""Before rows that could not be written are tried again."""


class WaitTable:
    """The table `waits` of a lake, made if it is missing. One thread uses it."""

    def __init__(self, lake: str, executor: str) -> None:
        """`executor`: which process writes. Raises what Delta raises, and `LakeError`."""
        self._open = OpenTable(create_table(lake, WAITS))
        self._executor = executor
        self._unwritten: dict[str, WaitRow] = {}
        self._write_at = 0.0

    def note(self, one: Candidate, held: Held, at: datetime) -> None:
        """What a decision waits for from now on; kept until `write`."""
        self._unwritten[one.decision_id] = WaitRow(
            decision_id=one.decision_id, family=one.family, subject=one.subject, brake=held.brake, reason=held.why,
            until=held.until, at=at, executor=self._executor, day=at.date(),
        )  # fmt: skip

    def write(self, now: float) -> None:
        """One commit with all rows that were noted; `now`: seconds of a steady clock. Raises nothing."""
        if not self._unwritten or now < self._write_at:
            return
        try:
            rows = to_arrow(WAITS, self._unwritten.values())
            write_deltalake(self._open.newest(), rows, mode="append", post_commithook_properties=HOOKS)
        except (DeltaError, OSError) as error:
            log.warning("what decisions wait for cannot be written, trying again: %s", error)
            self._write_at = now + DELAY_SECONDS
            return
        self._unwritten.clear()
