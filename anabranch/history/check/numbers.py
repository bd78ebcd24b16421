"""Check that the numbers of each subject's rows are consecutive; pure, a row at a time.

The job numbers a subject's decisions, and its holds, 1, 2, 3, … They may restart at 1 where a topic of the same name is
created again, and with a new checkpoint. A batch that was cut off for good (its checkpoint was lost in it) may have
left rows: the rebuilt job may use their numbers again or not.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import NamedTuple


class Numbered(NamedTuple):
    """A row of `decisions` or `holds`."""

    family: str
    subject: str
    seq: int
    at: datetime
    is_whole: bool
    """True if its batch is completely on record."""
    begins_anew: bool
    """True if the subject's numbers may restart: it was deleted once, or there was more than one checkpoint."""


class Gap(NamedTuple):
    """Number that does not follow its predecessor."""

    row: Numbered
    expected: int
    since: datetime | None
    """Time of the row before; None: it is the subject's first."""


def gaps(rows: Iterable[Numbered]) -> Iterator[Gap]:
    """Yield the gaps; `rows` are grouped by subject, in the order in which they were written."""
    subject: tuple[str, str] | None = None
    expected, allowed, since = 1, {1}, None
    for row in rows:
        if (row.family, row.subject) != subject:
            subject, expected, allowed, since = (row.family, row.subject), 1, {1}, None
        if row.seq not in allowed and not (row.seq == 1 and row.begins_anew):
            yield Gap(row, expected, since)
        if row.is_whole:
            expected, allowed = row.seq + 1, {row.seq + 1}
        else:
            allowed = {*allowed, row.seq + 1}
        since = row.at
