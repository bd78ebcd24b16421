"""The tables of docs/pulsar.md, as the tests read them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).resolve().parents[2] / "docs" / "pulsar.md"


class Difference(NamedTuple):
    """What the two servers answer."""

    pulsar: str
    anabranch: str


@cache
def differences(section: str) -> dict[str, Difference]:
    """Of each line of the table under a heading, by its first column."""
    table = PAGE.read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in table.splitlines() if line[:1] == "|"]
    found = {row[0]: Difference(row[1], row[2]) for row in rows[2:]}
    assert len(found) == len(rows) - 2, f"{PAGE.name}, {section}: a line is there twice"
    return found
