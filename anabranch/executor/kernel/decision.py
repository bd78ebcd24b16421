"""Rows of the `decisions` table as values that can be acted on, or as the reason why they cannot.

Stage: first in the executor; `loop` reads each row once. A malformed row never raises: it becomes an outcome `rejected`
with the reason. The family interprets arguments and inputs (`Actor.read`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anabranch.executor.kernel.family import Actors, Decision, MalformedDecision
from lake.tables import create_table
from lake.tail import Tail
from schemas.tables.rows import DECISIONS

COLUMNS = ("decision_id", "family", "subject", "action", "arguments", "inputs", "decided_at", "batch_id", "seq")
"""Columns of `decisions` that the executor reads."""

_ID = re.compile(r"[\x21-\x7e]{1,128}")
"""A decision id is sent in an HTTP header."""


@dataclass(frozen=True)
class Malformed:
    """A row that is not a valid decision: its id and subject as far as readable, and what is wrong."""

    decision_id: str
    family: str
    subject: str
    why: str

    def __str__(self) -> str:
        return f"the row for {self.subject}"


def follow_decisions(lake: str) -> Tail:
    """Follow `decisions`, created if missing, after a full scan. Raises `LakeError` or Delta's errors."""
    create_table(lake, DECISIONS)
    return Tail(lake, DECISIONS, COLUMNS, order=("decided_at", "batch_id", "seq"), backlog=None)


def read_decision(row: Mapping[str, Any], actors: Actors) -> Decision | Malformed:
    """Read the decision in a row (a mapping with `COLUMNS`). Never raises."""
    try:
        if not _ID.fullmatch(row["decision_id"] or ""):
            raise MalformedDecision("decision_id must be 1 to 128 printable ASCII characters without a space")
        if (actor := actors.get(row["family"])) is None:
            raise MalformedDecision(
                f"this executor does not know the family {row['family']!r}; it knows {tuple(actors)}"
            )
        decision: Decision = actor.read(row)
    except MalformedDecision as fault:
        decision_id, family, subject = (str(row.get(column) or "") for column in ("decision_id", "family", "subject"))
        return Malformed(decision_id, family, subject, f"the decisions row is malformed: {fault}")
    return decision
