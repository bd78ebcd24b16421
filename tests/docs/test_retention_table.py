"""The table of docs/operations.md about what is kept says of every table what it is made with."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from schemas.tables.rows import TABLES, Table

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
HOURS = {"hours": 1, "day": 24, "days": 24}


def hours(said: str) -> int:
    number, unit = said.split()
    return int(number) * HOURS[unit]


def told() -> dict[str, tuple[int, int]]:
    """Table to hours of its log and of replaced files."""
    section = PAGE.read_text().partition("## What is kept, and how long\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("| `")]
    return {
        name: (hours(log), hours(files)) for names, _, log, files, _ in rows for name in re.findall(r"`(\w+)`", names)
    }


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)
def test_page_states_retention_of_log_and_files(table: Table):
    assert told()[table.name] == (table.log_hours, table.file_hours)


def test_the_page_names_no_table_that_is_not_there():
    assert told().keys() == TABLES.keys()
