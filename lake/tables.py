"""The lake: a folder with one Delta table per `schemas.tables.rows.Table`, opened through delta-rs.

Never used in a forked child, in which delta-rs' runtime hangs; processes are spawned.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from lake.files import PARTITION, WrittenFile, dataset_of, modified_now, read_table, rows_of, table_path
from lake.pruning import columns_in
from lake.remote_log import RemoteLog
from schemas.settings.root import SettingsError
from schemas.tables.arrow import arrow_schema
from schemas.tables.rows import TABLES, Table

log = logging.getLogger(__name__)

WRITER_VERSION = 4
"""Version of the Delta protocol: the highest without a feature list, as `Table.properties` requires."""
WRITER_FEATURES = frozenset(
    {"appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns", "timestampNtz"}
)
"""Features of the Delta protocol that delta-rs writes; others are ignored or fail a commit."""

OPEN_FOR_COMMITS = 50
"""A followed table is reopened after this many commits; by then its log has a checkpoint."""

HOOKS = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)
"""Actions after a commit.

By default delta-rs (1.6) checks the age of every log file after every commit: 9 µs each on two cores, for thousands
of files. `lake.upkeep` does that occasionally instead.
"""

MAX_RACES = 20
"""Attempts to change a table's columns while others commit."""


class LakeError(SettingsError):
    """A table that this release cannot use; the message says which, why, and what to do."""


def create_table(lake: str | Path, table: Table) -> DeltaTable:
    """Open the table for writing, and create it with its properties if it is missing. Safe to race.

    Adds optional columns that an older release lacked, and drops NOT NULL from columns to which this one writes
    null. Raises `LakeError` when this release cannot write to the table.
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
    _check_appendable(delta, path, table)
    return _relax_columns(delta, path, table)


def make_folder(path: str) -> None:
    """Create a table's folder; an object store needs none."""
    if "://" not in path:
        Path(path).mkdir(parents=True, exist_ok=True)


def create_lake(lake: str | Path) -> dict[str, DeltaTable]:
    """Create or open every table of the lake, by name. Raises `LakeError`."""
    return {name: create_table(lake, table) for name, table in TABLES.items()}


def open_table(lake: str | Path, table: Table) -> DeltaTable | None:
    """Return the table, or None when it does not exist yet. Raises `DeltaError` when it cannot be read."""
    try:
        return DeltaTable(table_path(lake, table))
    except TableNotFoundError:
        return None


def read_columns(
    lake: str | Path, table: Table, columns: Sequence[str], where: pc.Expression | None = None
) -> pa.Table:
    """Return rows of a table, cut to some columns; none when it is missing.

    `where` is a condition on columns that every release has; one on `day` reads only the files of those days.
    Optional columns that an older release did not write are null. Raises `DeltaError` when the table cannot be read.
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
) -> Iterator[pa.Table]:
    """Yield rows of a table, unordered, cut to some columns, at most `rows` at a time; none when missing.

    `where` is a condition on columns that every release has. Optional columns that an older release did not write
    are null. Raises `DeltaError` or `OSError`.
    """
    if (delta := open_table(lake, table)) is None:
        return
    whole = arrow_schema(table.row)
    schema = pa.schema([whole.field(name) for name in columns])
    # A superset of the columns in the condition is harmless.
    needed = list(dict.fromkeys((*columns, *columns_in(where, whole.names))))
    dataset = dataset_of(delta, where)
    for fragment in dataset.get_fragments(where):
        groups = fragment if where is None else fragment.subset(where, dataset.schema)
        if not groups.row_groups:
            continue
        numbers = [group.id for group in groups.row_groups]
        for columns_of_file in rows_of(lake, table, fragment.path, needed, numbers, rows):
            chosen = columns_of_file if where is None else columns_of_file.filter(where)
            if len(chosen):
                yield chosen.select(schema.names)


class OpenTable:
    """A table that stays open for a long time.

    For each commit that it follows, delta-rs (1.6) keeps another list of files, which slows every later commit by
    0.3 ms (on two cores) and takes some 40 kB. A reopened table has a single list.
    """

    def __init__(self, table: DeltaTable) -> None:
        self._table, self._opened_at = table, table.version()
        self._log = RemoteLog(table)
        self._transactions: tuple[int, dict[str, int | None]] = (-1, {})
        """Version, and the newest transactions as of it: for each delta-rs reads the log since its last checkpoint."""

    @property
    def table(self) -> DeltaTable:
        """The table as of the last read, or `append`."""
        return self._table

    def is_known_newest(self) -> bool:
        """Return True if one request shows that nothing has changed; False for a local table."""
        return self._log.ends_with(self._table.version())

    def newest(self) -> DeltaTable:
        """Return the current table. Raises `DeltaError` or `OSError` when it cannot be read."""
        if self.is_known_newest():
            return self._table
        self._table.update_incremental()
        self._log.note_look()
        if self._table.version() - self._opened_at >= OPEN_FOR_COMMITS:
            self._table = DeltaTable(self._table.table_uri)
            self._opened_at = self._table.version()
        return self._table

    def append(self, rows: pa.Table, app: str, number: int, more: Mapping[str, int] = MappingProxyType({})) -> None:
        """Commit all rows at once.

        Sets `number` as the newest transaction of `app` in the table, and those of `more` as well. Of two concurrent
        commits with the same `app`, one fails with `CommitFailedError` (Delta's rule for transactions). Raises
        `DeltaError` or `OSError`.
        """
        with self.committing({app: number, **more}) as properties:
            write_deltalake(
                self._table, rows, mode="append", commit_properties=properties, post_commithook_properties=HOOKS
            )

    def add(
        self, files: Sequence[WrittenFile], app: str, number: int, more: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        """Commit files in the table's folder without reading them; otherwise as `append`."""
        actions = [
            AddAction(file.path, file.size, {PARTITION: file.day}, modified_now(), True, file.statistics)
            for file in files
        ]
        with self.committing({app: number, **more}) as properties:
            self._table.create_write_transaction(
                actions,
                mode="append",
                schema=self._table.schema(),
                partition_by=[PARTITION],
                commit_properties=properties,
                post_commithook_properties=HOOKS,
            )

    def committing(self, transactions: Mapping[str, int]) -> AbstractContextManager[CommitProperties]:
        """Return a context for one commit to `table` with these transactions, which yields its properties."""
        return self._log.committing(self._table, transactions)

    def newest_transaction(self, app: str) -> int | None:
        """Return the newest transaction of `app`, or None. Raises `DeltaError` or `OSError`."""
        return self.newest_transactions(app)[0]

    def newest_transactions(self, *apps: str) -> list[int | None]:
        """Return the newest transactions of several apps with a single read, the slow part on an object store."""
        self.newest()
        return self.transactions_as_read(*apps)

    def transactions_as_read(self, *apps: str) -> list[int | None]:
        """Return the newest transactions of several apps as of the last read, or `append`."""
        version, (seen, numbers) = self._table.version(), self._transactions
        if seen != version:
            later = self._log.transactions_of(seen + 1, version) if numbers and seen < version else None
            numbers = {} if later is None else {**numbers, **later}
            self._transactions = (version, numbers)
        for app in apps:
            if app not in numbers:
                numbers[app] = self._table.transaction_version(app)
        return [numbers[app] for app in apps]


class OpenTables:
    """Tables of a lake that stay open between questions: one that has not changed is not read again."""

    def __init__(self, lake: str) -> None:
        self._lake, self._opened = lake, dict[str, OpenTable]()

    def newest(self, table: Table) -> DeltaTable | None:
        """Return the current table, or None when it does not exist yet. Raises `DeltaError` or `OSError`."""
        if (opened := self._opened.get(table.name)) is not None:
            with suppress(DeltaError, OSError):
                return opened.newest()
        # The first question about it; or it cannot be followed any more, and is opened anew.
        self._opened.pop(table.name, None)
        if (newest := open_table(self._lake, table)) is not None:
            self._opened[table.name] = OpenTable(newest)
        return newest


def _check_appendable(delta: DeltaTable, path: str, table: Table) -> None:
    """Raise `LakeError` unless rows of `table.row` can be appended to the table."""
    protocol = delta.protocol()
    features = set(protocol.writer_features or ()) - WRITER_FEATURES
    if features or (protocol.writer_features is None and protocol.min_writer_version > WRITER_VERSION):
        need = f"the features {_list_names(features)}" if features else f"writer version {protocol.min_writer_version}"
        raise LakeError(
            f"the table {path} asks for {need} of the Delta protocol, which this release cannot write: drop what was "
            f"added (ALTER TABLE ... DROP FEATURE), or move the folder away: a new table is made"
        )
    stored, expected = pa.schema(delta.schema().to_arrow()), arrow_schema(table.row)
    unknown, missing = set(stored.names) - set(expected.names), set(expected.names) - set(stored.names)
    if unknown:
        raise LakeError(
            f"the table {path} has columns that this release does not know: {_list_names(unknown)}. A newer release "
            "made it: run that one, or give this one a lake of its own ([lake] path)"
        )
    if missing:
        raise LakeError(
            f"the table {path} lacks columns of this release: {_list_names(missing)}. An older release made it: add "
            "them (ALTER TABLE ... ADD COLUMNS), or move the folder away: a new table is made"
        )
    for field in expected:
        there = stored.field(field.name)
        if there.type != field.type:
            raise LakeError(
                f"the table {path} has the column {field.name} as {_describe_field(there)}, this release writes "
                f"{_describe_field(field)}: run the release that made it, or move the folder away: a new table is made"
            )


def _with_new_columns(delta: DeltaTable, path: str, table: Table) -> DeltaTable:
    """Add this release's optional columns, null in old rows, unless a newer release made the table."""
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
    """Replace properties of an older release, unless a person set them; a failure is logged."""
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


def _relax_columns(delta: DeltaTable, path: str, table: Table) -> DeltaTable:
    """Make columns nullable to which this release writes null; a failure is logged."""
    for _ in range(MAX_RACES):
        stored = pa.schema(delta.schema().to_arrow())
        nullable = [field.name for field in arrow_schema(table.row) if field.nullable]
        if not (strict := [name for name in nullable if not stored.field(name).nullable]):
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


def _list_names(names: set[str]) -> str:
    return ", ".join(sorted(names))


def _describe_field(field: pa.Field) -> str:
    return f"{field.type}" if field.nullable else f"{field.type} not null"
