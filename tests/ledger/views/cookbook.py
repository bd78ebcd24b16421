"""docs/cookbook.md: its statements and answers; `python -m tests.ledger.views.cookbook --mend` writes the answers."""

from __future__ import annotations

import io
import re
import sys
import tempfile
from pathlib import Path

from anabranch.answers import write_table
from ledger.sql import LakeSql
from tests.ledger.views.recorded import Story

PAGE = Path(__file__).resolve().parents[3] / "docs" / "cookbook.md"
_QUESTION = re.compile(r"## (?P<title>[^\n]+)\n\n```sql\n(?P<sql>.*?)\n```\n\n```text\n(?P<answer>.*?)```", re.DOTALL)


def questions() -> list[tuple[str, str, str]]:
    """Title, statement and answer of each question of the page."""
    return [(one["title"], one["sql"], one["answer"]) for one in _QUESTION.finditer(PAGE.read_text())]


def answer(lake: str, sql: str) -> str:
    """As the command prints it."""
    out = io.StringIO()
    write_table(LakeSql(lake).ask(sql), out, 1_000)
    return out.getvalue()


def mended(lake: str) -> str:
    """The page with the answers that a lake gives."""

    def answered(one: re.Match[str]) -> str:
        return f"## {one['title']}\n\n```sql\n{one['sql']}\n```\n\n```text\n{answer(lake, one['sql'])}```"

    return _QUESTION.sub(answered, PAGE.read_text())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        page = mended(Story().run().write(Path(folder) / "lake"))
    if "--mend" in sys.argv:
        PAGE.write_text(page)
    sys.exit(page != PAGE.read_text())
