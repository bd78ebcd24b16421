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

PAGE = Path(__file__).resolve().parents[3] / "docs" / "cookbook.md"
OF_TOPICS = 20
"""Questions about topics; those behind are about brokers and bundles."""
_QUESTION = re.compile(r"## (?P<title>[^\n]+)\n\n```sql\n(?P<sql>.*?)\n```\n\n```text\n(?P<answer>.*?)```", re.DOTALL)


def questions() -> list[tuple[str, str, str]]:
    """Title, statement and answer of each question of the page."""
    return [(one["title"], one["sql"], one["answer"]) for one in _QUESTION.finditer(PAGE.read_text())]


def answer(lake: str, sql: str) -> str:
    """As the command prints it."""
    out = io.StringIO()
    write_table(LakeSql(lake).ask(sql), out, 1_000)
    return out.getvalue()


def is_about_clusters(title: str) -> bool:
    """Whether a question is about the lake of a cluster with bundles, instead of that of topics."""
    return int(title.partition(".")[0]) > OF_TOPICS


def mended(of_topics: str, of_clusters: str) -> str:
    """The page with the answers that two lakes give."""

    def answered(one: re.Match[str]) -> str:
        lake = of_clusters if is_about_clusters(one["title"]) else of_topics
        return f"## {one['title']}\n\n```sql\n{one['sql']}\n```\n\n```text\n{answer(lake, one['sql'])}```"

    return _QUESTION.sub(answered, PAGE.read_text())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        lakes = Story().run().write(Path(folder) / "lake"), ClusterStory().run().write(Path(folder) / "clusters")
        page = mended(*lakes)
    if "--mend" in sys.argv:
        PAGE.write_text(page)
    sys.exit(page != PAGE.read_text())
