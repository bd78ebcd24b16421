"""What only the SQLite store promises: one process at a time, and durable, whole commits under kill -9."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from anabranch.controller.errors import StartError
from anabranch.controller.metadata.sqlite import SqliteStore

WRITER = """
import sys
from pathlib import Path
from anabranch.controller.metadata.base import Put
from anabranch.controller.metadata.sqlite import SqliteStore
store = SqliteStore(Path(sys.argv[1]))
store.create_ephemeral("/alive", b"")
for number in range(1_000_000):
    both = store.commit(Put("/left", b"%d" % number), Put("/right/deep", b"%d" % number))
    print(number, both[0], flush=True)
"""


def test_second_process_waits_for_the_first(tmp_path: Path) -> None:
    file = tmp_path / "metadata.db"
    store = SqliteStore(file)
    with pytest.raises(StartError, match="in use"):
        SqliteStore(file)
    store.close()
    SqliteStore(file).close()


def test_foreign_database_refused_and_untouched(tmp_path: Path) -> None:
    text, newer = tmp_path / "text.db", tmp_path / "newer.db"
    text.write_text("no database, " * 100)
    with pytest.raises(StartError, match=r"text\.db"):
        SqliteStore(text)
    database = sqlite3.connect(newer)
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(StartError, match="format 99"):
        SqliteStore(newer)
    assert text.read_text().startswith("no database")


@pytest.mark.process
def test_answered_commits_survive_a_kill_whole(tmp_path: Path) -> None:
    """Ephemerals do not survive."""
    file = tmp_path / "metadata.db"
    last_version = 0
    for answers in (1, 5, 17):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(file)], stdout=subprocess.PIPE, text=True)
        try:
            assert writer.stdout
            lines = [writer.stdout.readline() for _ in range(answers)]
        finally:
            writer.kill()
            rest, _ = writer.communicate()
        complete = [line for line in [*lines, *rest.splitlines(keepends=True)] if line.endswith("\n")]
        number, version = map(int, complete[-1].split())
        store = SqliteStore(file)
        left, right = store.get("/left"), store.get("/right/deep")
        assert left
        assert left == right
        assert int(left.value) in (number, number + 1)
        assert left.version >= version > last_version
        assert store.get("/alive") is None
        last_version = store.put("/new", b"")
        assert last_version > left.version
        store.close()
