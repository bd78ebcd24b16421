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
from tests.ledger.views.recorded_cluster import ClusterStory
from tests.ledger.views.recorded_switch import switched

PAGE = Path(__file__).resolve().parents[3] / "docs" / "cookbook.md"
OF_TOPICS, OF_CLUSTERS = 20, 30
"""The last questions about topics, and about brokers and bundles; those behind are about BookKeeper clusters."""
_QUESTION = re.compile(r"## (?P<title>[^\n]+)\n\n```sql\n(?P<sql>.*?)\n```\n\n```text\n(?P<answer>.*?)```", re.DOTALL)


def questions() -> list[tuple[str, str, str]]:
    """Title, statement and answer of each question of the page."""
    return [(one["title"], one["sql"], one["answer"]) for one in _QUESTION.finditer(PAGE.read_text())]


def answer(lake: str, sql: str) -> str:
    """As the command prints it."""
    out = io.StringIO()
    write_table(LakeSql(lake).ask(sql), out, 1_000)
    return out.getvalue()


def lake_of(title: str, of_topics: str, of_clusters: str, of_switch: str) -> str:
    """The lake that a question is about."""
    number = int(title.partition(".")[0])
    return of_topics if number <= OF_TOPICS else of_clusters if number <= OF_CLUSTERS else of_switch


def mended(*lakes: str) -> str:
    """The page with the answers that the three lakes give."""

    def answered(one: re.Match[str]) -> str:
        lake = lake_of(one["title"], *lakes)
        return f"## {one['title']}\n\n```sql\n{one['sql']}\n```\n\n```text\n{answer(lake, one['sql'])}```"

    return _QUESTION.sub(answered, PAGE.read_text())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        lakes = Story().run().write(Path(folder) / "lake"), ClusterStory().run().write(Path(folder) / "clusters")
        page = mended(*lakes, switched(Path(folder)))
    if "--mend" in sys.argv:
        PAGE.write_text(page)
    sys.exit(page != PAGE.read_text())
