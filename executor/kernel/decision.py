"""A row of the `decisions` table as a value that can be acted on, or the reason why it cannot.

Stage: first in the executor; `loop` reads each row once. A malformed row never raises: it becomes an outcome `rejected`
with the reason. What arguments and inputs mean is the family's (`Actor.read`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from executor.kernel.family import Actors, Decision, MalformedDecision
from lake.tables import create_table
from lake.tail import Tail
from schemas.tables import DECISIONS

COLUMNS = ("decision_id", "family", "subject", "action", "arguments", "inputs", "decided_at", "batch_id", "seq")
"""The columns of `decisions` that the executor reads."""

_ID = re.compile(r"[\x21-\x7e]{1,128}")
"""A decision's id travels in an HTTP header."""


@dataclass(frozen=True)
class Malformed:
    """A row that is no decision: its id and subject as far as they can be read, and what is wrong with it."""

    decision_id: str
    family: str
    subject: str
    why: str

    def __str__(self) -> str:
        return f"the row for {self.subject}"


def follow_decisions(lake: str) -> Tail:
    """Follows the `decisions` table of a lake, which is made if it is missing; first the whole table is scanned.

    Raises what Delta raises, and `LakeError`.
    """
    create_table(lake, DECISIONS)
    return Tail(lake, DECISIONS, COLUMNS, order=("decided_at", "batch_id", "seq"), backlog=None)


def read_decision(row: Mapping[str, Any], actors: Actors) -> Decision | Malformed:
    """The decision in a row (a mapping with `COLUMNS`). Total: raises for no content."""
    try:
        if not _ID.fullmatch(row["decision_id"] or ""):
            raise MalformedDecision("decision_id must be 1 to 128 printable ASCII characters without a space")
        actor = actors.get(row["family"])
        if actor is None:
            raise MalformedDecision(
                f"this executor does not know the family {row['family']!r}; it knows {tuple(actors)}"
            )
        decision: Decision = actor.read(row)
    except MalformedDecision as fault:
        decision_id, family, subject = (str(row.get(column) or "") for column in ("decision_id", "family", "subject"))
        return Malformed(decision_id, family, subject, f"the decisions row is malformed: {fault}")
    return decision
