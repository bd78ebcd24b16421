"""Output of an operator task: small bodies through Spark, large ones as files of the tables.

Stage: between the operator and the sink. Per table, a task sends small bodies through the driver up to
`INLINE_BYTES` in total; further rows go into one Parquet file in the table's folder (`lake.files`), whose path the
driver receives and commits with the rest. A failed attempt leaves files of its own, which nobody commits and `lake
vacuum` deletes.
"""

from collections.abc import Callable

import pyarrow as pa

from lake.files import PARTITION, RowsFile
from schemas.tables.rows import Table
from streaming.operator.rows import TABLE_OF, rows_as_they_came

INLINE_BYTES = 256 * 1024
"""Limit per task and table on bytes through Spark; 128 tasks of five tables use 160 MiB in the driver."""
FILE = "file:"
"""Prefix of a table's name, if the body is the path of a file in its folder."""


class OperatorOutbox:
    """Output of one task."""

    def __init__(self, lake: str, batch_id: Callable[[], int], inline_bytes: int = INLINE_BYTES) -> None:
        """Create an outbox; `batch_id` is called when the first file is written."""
        self._lake, self._batch_id, self._most = lake, batch_id, inline_bytes
        self._rows: list[tuple[str, bytes]] = []
        self._inline: dict[str, int] = {}
        self._files: dict[str, RowsFile] = {}

    def give(self, bodies: dict[str, bytes], now: int) -> None:
        """Add output of a bucket by kind at `now` (batch's time, milliseconds). Raises `OSError`."""
        for kind, body in bodies.items():
            table = TABLE_OF.get(kind)
            if table is None or self._is_little(table, len(body)):
                self._rows.append((kind, body))
            else:
                self._write(table, rows_as_they_came(table, [body], now, self._batch_id()))

    def fetch(self) -> list[tuple[str, bytes]]:
        """Return kind and body of what was added since the last call, and of the files begun since."""
        rows, self._rows = self._rows, []
        return rows

    def close(self) -> None:
        """Complete the files, on which the fetched rows depend. Raises `OSError`."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _is_little(self, table: Table, size: int) -> bool:
        """Return whether a body, alone at most an eighth of the limit, goes through Spark."""
        if table.name in self._files or size > self._most // 8:
            return False
        self._inline[table.name] = self._inline.get(table.name, 0) + size
        return self._inline[table.name] <= self._most

    def _write(self, table: Table, rows: pa.Table) -> None:
        if (file := self._files.get(table.name)) is None:
            file = self._files[table.name] = RowsFile(self._lake, table, rows[PARTITION][0].as_py())
            self._rows.append((FILE + table.name, file.path.encode()))
        file.write(rows)
