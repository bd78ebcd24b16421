"""Questions of docs/sql.md, and their answers in answers.md. A person writes the answers; no program mends them."""

from __future__ import annotations

import io
import re
from functools import cache
from pathlib import Path

import pyarrow as pa

from anabranch.cli.answers import write_table
from anabranch.query.sql import LakeSql

PAGE = Path(__file__).resolve().parents[3] / "docs" / "sql.md"
ANSWERS = Path(__file__).with_name("answers.md")
OF_TOPICS, OF_CLUSTERS = 20, 30
"""The last questions about topics, and about brokers and bundles; those behind are about BookKeeper clusters."""
_QUESTION = re.compile(r"### (?P<title>\d+\. [^\n]+)\n\n```sql\n(?P<sql>.*?)\n```", re.DOTALL)
_ANSWER = re.compile(r"## (?P<number>\d+)\.\n\n```text\n(?P<answer>.*?)```", re.DOTALL)


def questions() -> list[tuple[str, str, str]]:
    """Title, statement and answer of each question."""
    answers = {one["number"]: one["answer"] for one in _ANSWER.finditer(ANSWERS.read_text())}
    return [
        (one["title"], one["sql"], answers[one["title"].partition(".")[0]])
        for one in _QUESTION.finditer(PAGE.read_text())
    ]


@cache
def _questions_to(lake: str) -> LakeSql:
    return LakeSql(lake)


@cache
def asked(lake: str, sql: str) -> pa.Table:
    """The rows of the answer, asked once in a process: the lake must stay as it is."""
    return _questions_to(lake).ask(sql).read_all()


def answer(lake: str, sql: str) -> str:
    """As the command prints it."""
    out = io.StringIO()
    write_table(asked(lake, sql).to_reader(), out, 1_000)
    return out.getvalue()


def lake_of(title: str, of_topics: str, of_clusters: str, of_switch: str) -> str:
    """The lake that a question is about."""
    number = int(title.partition(".")[0])
    return of_topics if number <= OF_TOPICS else of_clusters if number <= OF_CLUSTERS else of_switch
