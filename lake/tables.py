"""The lake: one folder with one Delta table per `schemas.tables.Table`, made and opened through delta-rs.

Never used in a forked child: delta-rs' runtime refuses that (it hangs there); processes are spawned.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from lake.files import PARTITION, WrittenFile, modified_now, rows_of, table_path
from lake.reading import dataset_of, read_table
from schemas.arrow import arrow_schema
from schemas.settings import SettingsError
from schemas.tables import TABLES, Table

log = logging.getLogger(__name__)

WRITER_VERSION = 4
"""Of the Delta protocol: the highest without a list of features, and what `Table.properties` asks for."""
WRITER_FEATURES = frozenset({
    "appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns", "timestampNtz"
})  # fmt: skip
"""Features of the Delta protocol that delta-rs writes. Others make the first commit fail, or are ignored."""

OPEN_FOR_COMMITS = 50
"""After this many commits a followed table is reopened; by then its log has a checkpoint."""

HOOKS = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)
"""What follows a commit. By default delta-rs (1.6) asks after every one for the age of every file of the log: 9 µs each
on two cores, of thousands. `lake.upkeep` does that now and then."""

MAX_RACES = 20
"""How often a change of a table's columns is tried while others commit."""


class LakeError(SettingsError):
    """A table of the lake is not one that this release can use; the message says which, why, and what to do."""


def create_table(lake: str | Path, table: Table) -> DeltaTable:
    """The table, made if it is not there, with its properties. Safe to race: an existing table is left as it is.

    For those who write. Optional columns that an older release did not have are added, and those are relaxed that it
    made NOT NULL and this one writes null to.
    Raises `LakeError` when this release cannot write to the table as it is.
    """
    path = table_path(lake, table)
    make_folder(path)
    try:
        delta = DeltaTable.create(
            path,
            schema=arrow_schema(table.row),
            mode="ignore",
            partition_by=list(table.partition_by),
            configuration=dict(table.properties),
            name=table.name,
        )
    except DeltaError as error:
        raise LakeError(
            f"the table {path} cannot be opened: {str(error).splitlines()[0]}. If a newer Delta made it, use that; if "
            "its log is damaged, put a backup in its place, or move the folder away: a new table is made"
        ) from error
    delta = _with_properties(_with_new_columns(delta, path, table), path, table)
    _check(delta, path, table)
    return _relaxed(delta, path, table)


def make_folder(path: str) -> None:
    """Makes a table's folder, where there are folders: an object store has none."""
    if "://" not in path:
        Path(path).mkdir(parents=True, exist_ok=True)


def create_lake(lake: str | Path) -> dict[str, DeltaTable]:
    """Every table of the lake by its name, made where missing. Raises `LakeError`."""
    return {name: create_table(lake, table) for name, table in TABLES.items()}


def open_table(lake: str | Path, table: Table) -> DeltaTable | None:
    """The table, or None when it does not exist yet. Raises `DeltaError` when it cannot be read."""
    try:
        return DeltaTable(table_path(lake, table))
    except TableNotFoundError:
        return None


def read_columns(
    lake: str | Path, table: Table, columns: Sequence[str], where: pc.Expression | None = None
) -> pa.Table:  # fmt: skip
    """The rows of a table, cut to some columns; none when it is missing. Raises `DeltaError` when it cannot be read.

    `where`: of which rows, a condition on columns that every release has; one on `day` reads the files of those days
    alone. Optional columns that an older release did not write are null.
    """
    delta, schema = open_table(lake, table), arrow_schema(table.row)
    if delta is None:
        return schema.empty_table().select(columns)
    stored = pa.schema(delta.schema().to_arrow()).names
    rows = read_table(delta, [name for name in columns if name in stored or not schema.field(name).nullable], where)
    for name in columns:
        if name not in rows.column_names:
            rows = rows.append_column(schema.field(name), pa.nulls(len(rows), schema.field(name).type))
    return rows.select(columns)


def stream_columns(
    lake: str | Path, table: Table, columns: Sequence[str], rows: int, where: pc.Expression | None = None
) -> Iterator[pa.Table]:  # fmt: skip
    """All rows of a table in no order, cut to some columns, at most `rows` at a time; none when it is missing.

    `where`: of which rows, a condition on columns that every release has. Optional columns that an older release did
    not write are null. Raises `DeltaError` or `OSError`.
    """
    delta = open_table(lake, table)
    if delta is None:
        return
    whole = arrow_schema(table.row)
    schema = pa.schema([whole.field(name) for name in columns])
    # More than it names does no harm.
    asked = [name for name in whole.names if where is not None and re.search(rf"\b{name}\b", str(where))]
    needed = list(dict.fromkeys((*columns, *asked)))
    dataset = dataset_of(delta)
    for fragment in dataset.get_fragments(where):
        groups = fragment if where is None else fragment.subset(where, dataset.schema)
        if not groups.row_groups:
            continue
        numbers = [group.id for group in groups.row_groups]
        for found in rows_of(lake, table, fragment.path, needed, numbers, rows):
            chosen = found if where is None else found.filter(where)
            if len(chosen):
                yield chosen.select(schema.names)


class OpenTable:
    """A table that is kept open for a long time.

    For each commit that it follows, delta-rs (1.6) keeps a list of files of its own. Each list slows all later commits
    by 0.3 ms (on two cores) and takes some 40 kB. A reopened table has one list.
    """

    def __init__(self, table: DeltaTable) -> None:
        self._table, self._opened_at = table, table.version()

    @property
    def table(self) -> DeltaTable:
        """The table as it was at the last look, or `append`."""
        return self._table

    def newest(self) -> DeltaTable:
        """The table as it is now. Raises `DeltaError` or `OSError` when it cannot be read."""
        self._table.update_incremental()
        if self._table.version() - self._opened_at >= OPEN_FOR_COMMITS:
            self._table = DeltaTable(self._table.table_uri)
            self._opened_at = self._table.version()
        return self._table

    def append(
        self, rows: pa.Table, app: str, number: int, more: Mapping[str, int] = MappingProxyType({})
    ) -> None:  # fmt: skip
        """One commit with all rows.

        It leaves `number` as the newest transaction of `app` in the table, and those of `more` as well.

        Of two commits at once with the same `app` one fails with `CommitFailedError` (Delta's rule for transactions).
        Raises `DeltaError` or `OSError`.
        """
        write_deltalake(
            self._table, rows, mode="append", commit_properties=_numbered({app: number, **more}),
            post_commithook_properties=HOOKS,
        )  # fmt: skip

    def add(
        self, files: Sequence[WrittenFile], app: str, number: int, more: Mapping[str, int] = MappingProxyType({})
    ) -> None:  # fmt: skip
        """One commit with the rows of files in the table's folder, which it does not read; else as `append`."""
        self._table.create_write_transaction(
            [
                AddAction(file.path, file.size, {PARTITION: file.day}, modified_now(), True, file.statistics)
                for file in files
            ],
            mode="append",
            schema=self._table.schema(),
            partition_by=[PARTITION],
            commit_properties=_numbered({app: number, **more}),
            post_commithook_properties=HOOKS,
        )

    def newest_transaction(self, app: str) -> int | None:
        """The newest transaction of `app`; None: there is none. Raises `DeltaError` or `OSError`."""
        return self.newest_transactions(app)[0]

    def newest_transactions(self, *apps: str) -> list[int | None]:
        """The same of several, by one look at the table: on an object store that is what takes long."""
        table = self.newest()
        return [table.transaction_version(app) for app in apps]


def _numbered(transactions: Mapping[str, int]) -> CommitProperties:
    return CommitProperties(app_transactions=[Transaction(*one) for one in transactions.items()])


def _check(delta: DeltaTable, path: str, table: Table) -> None:
    """Raises `LakeError` unless rows of `table.row` can be appended to the table as it is."""
    protocol = delta.protocol()
    features = set(protocol.writer_features or ()) - WRITER_FEATURES
    if features or (protocol.writer_features is None and protocol.min_writer_version > WRITER_VERSION):
        what = f"the features {_listed(features)}" if features else f"writer version {protocol.min_writer_version}"
        raise LakeError(
            f"the table {path} asks for {what} of the Delta protocol, which this release cannot write: drop what was "
            f"added (ALTER TABLE ... DROP FEATURE), or move the folder away: a new table is made"
        )
    stored, expected = pa.schema(delta.schema().to_arrow()), arrow_schema(table.row)
    unknown, missing = set(stored.names) - set(expected.names), set(expected.names) - set(stored.names)
    if unknown:
        raise LakeError(
            f"the table {path} has columns that this release does not know: {_listed(unknown)}. A newer release made "
            "it: run that one, or give this one a lake of its own ([lake] path)"
        )
    if missing:
        raise LakeError(
            f"the table {path} lacks columns of this release: {_listed(missing)}. An older release made it: add them "
            "(ALTER TABLE ... ADD COLUMNS), or move the folder away: a new table is made"
        )
    for field in expected:
        there = stored.field(field.name)
        if there.type != field.type:
            raise LakeError(
                f"the table {path} has the column {field.name} as {_described(there)}, this release writes "
                f"{_described(field)}: run the release that made it, or move the folder away: a new table is made"
            )


def _with_new_columns(delta: DeltaTable, path: str, table: Table) -> DeltaTable:
    """The table with every optional column of this release; rows that are there have null in it.

    A table that has a column which this release does not know is a newer one's, and stays as it is.
    """
    expected = arrow_schema(table.row)
    for _ in range(MAX_RACES):
        stored = pa.schema(delta.schema().to_arrow()).names
        missing = [field for field in expected if field.nullable and field.name not in stored]
        if not missing or not set(stored) <= set(expected.names):
            break
        try:
            delta.alter.add_columns(list(Schema.from_arrow(pa.schema(missing)).fields))
        except DeltaError as error:
            log.info("the columns of %s are changed while others commit, trying again: %s", path, error)
            delta = DeltaTable(path)
    return delta


def _with_properties(delta: DeltaTable, path: str, table: Table) -> DeltaTable:
    """The table with this release's properties in the place of an older one's; what a person has set stays.

    Where that cannot be done now the table is used as it is.
    """
    for _ in range(MAX_RACES):
        there = delta.metadata().configuration
        changed = {
            name: table.properties[name]
            for name, former in table.former_properties.items()
            if there.get(name) == former != table.properties[name]
        }
        if not changed:
            break
        try:
            delta.alter.set_table_properties(changed)
        except CommitFailedError as error:
            log.info("the properties of %s are changed while others commit, trying again: %s", path, error)
            delta = DeltaTable(path)
        except (DeltaError, OSError) as error:
            log.warning("%s keeps the properties of an older release: %s", path, error)
            break
    return delta


def _relaxed(delta: DeltaTable, path: str, table: Table) -> DeltaTable:
    """The table, with every column nullable that this release may write null to; rows and files stay as they are.

    Where that cannot be done now the table is used as it is: rows without a null still fit.
    """
    for _ in range(MAX_RACES):
        stored = pa.schema(delta.schema().to_arrow())
        nullable = [field.name for field in arrow_schema(table.row) if field.nullable]
        strict = [name for name in nullable if not stored.field(name).nullable]
        if not strict:
            break
        try:
            for name in strict:
                delta.alter.drop_column_not_null(name)
        except CommitFailedError as error:
            log.info("the columns of %s are changed while others commit, trying again: %s", path, error)
            delta = DeltaTable(path)
        except (DeltaError, OSError) as error:
            log.warning("columns of %s still refuse nulls (%s): %s", path, ", ".join(strict), error)
            break
    return delta


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names))


def _described(field: pa.Field) -> str:
    return f"{field.type}" if field.nullable else f"{field.type} not null"
