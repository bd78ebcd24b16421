"""Findings of a check, by kind, with a remedy for each: all are counted, the first ones listed.

Stage: filled by `checking` and `rows`. A new kind of finding needs a remedy in `REMEDIES`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

MOST_LISTED = 20
"""Findings of a kind in a table that are kept in words; all are counted."""

_LOST = (
    "Rows were lost. Put a backup of the table in its place, or go on: `anabranch decisions replay` and backtests "
    "say where they "
    "differ for it."
)
_TWICE = (
    "Look whether something else than `anabranch lake optimize` compacts the table, stop that, and put a backup of the "
    "table in its place."
)
REMEDIES = {
    "unreadable": "Put a backup of the table's folder in its place (docs/operations.md, Backup).",
    "missing table": "Put a backup of the table's folder in its place. If an older release made the lake, start the "
    "job: it makes the table.",
    "missing file": "Put the file back from a backup of the table's folder. Without one its rows are lost.",
    "damaged file": "Its rows are not what was written, or cannot be read: look at the disk, and put the file back "
    "from a backup of the table's folder.",
    "gap": _LOST,
    "missing rows": _LOST,
    "too many rows": _TWICE,
    "duplicate": _TWICE,
    "unbalanced": "The counts of a batch contradict each other: keep the lake as it is and report it as a fault.",
    "changed": "A row is not what the job wrote: put a backup of the table in its place.",
    "applied twice": "Look at both rows with `anabranch sql`: two executors may have acted. All executors of a lake "
    "have to be of one ZooKeeper (docs/deploy.md).",
    "lost batch": _LOST,
    "lost end": _LOST,
    "ended twice": "Look at both rows with `anabranch sql`: two executors may have acted, or a row was changed. All "
    "executors of a lake have to be of one ZooKeeper (docs/deploy.md).",
    "ended otherwise": "A row was changed, or somebody else has announced an end on Kafka: compare both rows with the "
    "topic's layout, and put a backup of the table that is wrong in its place.",
    "too early": "Look whether the clocks of job and executor agree (NTP). If they do, a row was changed: put a backup "
    "of the table in its place.",
    "another subject": "A row was changed, or the tables of two lakes were mixed: put a backup of the table in its "
    "place.",
    "wrong day": "Something else than Anabranch has written to the table, or changed it: put a backup in its place.",
    "orphan": "The decision was lost, or is in another lake: do not mix the tables of two lakes; put a backup of "
    "`decisions` in its place.",
    "open": "No executor acts on it any more, and its topic decides nothing else. Look whether an executor runs with "
    "this lake and covers the topic (`anabranch decisions waiting`); when one starts, it lets the decision expire.",
    "unheard": "To the job the decision is still open. Look whether an executor runs and reaches Kafka, and whether "
    "the job does: the end is announced until the job has recorded it.",
    "unknown layout": "The announcement of the layout was lost. Put a backup of `events` in its place, or go on: "
    "`anabranch explain` cannot show what was seen then.",
}
"""By kind, what to do."""


@dataclass
class Finding:
    """All findings of one kind in one table."""

    kind: str
    table: str
    count: int = 0
    listed: list[str] = field(default_factory=list)
    """The first `MOST_LISTED`, a line each."""


class Findings:
    """Findings by kind and table, in order of discovery."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Finding] = {}
        self.rows: dict[str, int] = {}
        """Rows of each table that were looked at."""

    def add(self, kind: str, table: str, text: str) -> None:
        """Add a finding. `kind` is one of `REMEDIES`."""
        if kind not in REMEDIES:
            raise ValueError(f"nobody knows what to do about {kind!r}")
        finding = self._found.setdefault((kind, table), Finding(kind, table))
        finding.count += 1
        if len(finding.listed) < MOST_LISTED:
            finding.listed.append(text)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._found.values())

    def __bool__(self) -> bool:
        return bool(self._found)

    def to_json(self) -> dict[str, Any]:
        """Return the findings for scripts."""
        return {
            "ok": not self,
            "rows": self.rows,
            "findings": [
                {
                    "kind": finding.kind,
                    "table": finding.table,
                    "count": finding.count,
                    "told": finding.listed,
                    "do": REMEDIES[finding.kind],
                }
                for finding in self
            ],
        }
