"""What a task of the operator says: little of it through Spark, the rest as files of the tables.

Stage: between the operator and the sink. Of each table, a task sends small bodies through the driver until they are
`INLINE_BYTES`; from there on its rows go into one Parquet file in the table's folder (`lake.files`), and the driver is
told its path and commits it with the rest. What was said by an attempt that failed is in files of its own, which nobody
commits and `lake vacuum` deletes.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from lake.files import PARTITION, RowsFile
from schemas.tables import Table
from streaming.rows import TABLE_OF, rows_as_they_came

INLINE_BYTES = 256 * 1024
"""Of a table, what one task sends through Spark; with 128 tasks of five tables that is 160 MiB of the driver's."""
FILE = "file:"
"""Before the name of a table: the body is the path of a file in its folder."""


class Outbox:
    """What a task says; one for each task."""

    def __init__(self, lake: str, batch_id: Callable[[], int], inline_bytes: int = INLINE_BYTES) -> None:
        """`batch_id` is asked once there is a file to write."""
        self._lake, self._batch_id, self._most = lake, batch_id, inline_bytes
        self._rows: list[tuple[str, bytes]] = []
        self._inline: dict[str, int] = {}
        self._files: dict[str, RowsFile] = {}

    def give(self, bodies: dict[str, bytes], now: int) -> None:
        """More of what a bucket says, by kind; `now` is the batch's time, milliseconds.

        Raises `OSError` when a file cannot be written.
        """
        for kind, body in bodies.items():
            table = TABLE_OF.get(kind)
            if table is None or self._is_little(table, len(body)):
                self._rows.append((kind, body))
            else:
                self._write(table, rows_as_they_came(table, [body], now, self._batch_id()))

    def fetch(self) -> list[tuple[str, bytes]]:
        """Kind and body of what was given since the last call, and of the files begun since then."""
        rows, self._rows = self._rows, []
        return rows

    def close(self) -> None:
        """The files are whole when this returns; what was fetched before counts only then. Raises `OSError`."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _is_little(self, table: Table, size: int) -> bool:
        """Whether a body goes through Spark. One that alone is an eighth of what may is not little, so that a large
        batch is in files as a whole."""
        if table.name in self._files or size > self._most // 8:
            return False
        self._inline[table.name] = self._inline.get(table.name, 0) + size
        return self._inline[table.name] <= self._most

    def _write(self, table: Table, rows: pa.Table) -> None:
        file = self._files.get(table.name)
        if file is None:
            file = self._files[table.name] = RowsFile(self._lake, table, rows[PARTITION][0].as_py())
            self._rows.append((FILE + table.name, file.path.encode()))
        file.write(rows)
