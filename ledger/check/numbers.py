"""Whether the numbers of each subject's rows follow each other; pure, a row at a time.

A subject's decisions, and its holds, are numbered 1, 2, 3, … by the job. They may begin again at 1 where a topic of the
same name is made anew, and with a new checkpoint. A batch that was cut off for good (its checkpoint was lost in it) may
have left rows: what it has numbered, the rebuilt job may number again or not.
"""

from __future__ import annotations

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
    """Whether its batch is on record as a whole."""
    begins_anew: bool
    """Whether the subject's numbers may begin again: it was deleted once, or there was more than one checkpoint."""


class Gap(NamedTuple):
    """A number that does not follow the one before it."""

    row: Numbered
    expected: int
    since: datetime | None
    """Time of the row before; None: it is the subject's first."""


def gaps(rows: Iterable[Numbered]) -> Iterator[Gap]:
    """The gaps; `rows` are those of a subject together, in the order in which they were written."""
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
