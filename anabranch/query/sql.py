"""SQL over tables and views of the lake without a JVM, through DataFusion in deltalake.

Stage: under `anabranch sql`, and other questions in SQL of the read side. It cannot write: the engine plans a statement
first, and only a plan that reads is run.
"""

import difflib
import json
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import QueryBuilder
from deltalake.exceptions import DeltaError

from anabranch.query.views.catalogue import in_order, views, write_out
from anabranch.query.views.dialects import DATAFUSION, Dialect
from anabranch.query.views.scanning import names, statements, without_comments, words
from lake.tables import OpenTables
from schemas.tables.arrow import arrow_schema
from schemas.tables.rows import EVENTS, TABLES, Table

_READING = {"select", "with", "values", "describe", "desc"}
_EXPLAINING = re.compile(r"explain\s+(?:analyze\s+)?(?:verbose\s+)?(?:format\s+\w+\s+)?", re.IGNORECASE)
_PLAN_OF = "EXPLAIN FORMAT INDENT "
"""Ends the options of EXPLAIN: behind it an ANALYZE, which would run the statement, is no option any more."""
_READS = re.compile(
    r"(?:Aggregate|CrossJoin|DescribeTable|Distinct|DistinctOn|EmptyRelation|Filter|\w+ Join|Limit|Projection|"
    r"RecursiveQuery|Repartition|Sort|Subquery|SubqueryAlias|TableScan|Union|Unnest|Values|WindowAggr)\b"
)
"""The outermost node of a plan that only reads; a statement that changes something is a node of another name."""
_CHANGES = re.compile(r"^\s*(?:CopyTo|Dml|Create\w+|Drop\w+|Alter\w+|Set\w+|Prepare|Execute)\b", re.MULTILINE)
"""Nodes that change something, at any depth, should the engine ever allow one inside of a question."""
_SQL_TYPES = {
    pa.string(): "VARCHAR",
    pa.int64(): "BIGINT",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
    pa.binary(): "BYTEA",
    pa.date32(): "DATE",
}
RECORDED_BY = {
    "decisions": "decided_at",
    "holds": "since",
    "segment_load": "accepted_at",
    "events": "accepted_at",
    "dead_letters": "rejected_at",
    "batches": "committed_at",
    "outcomes": "at",
    "brakes": "at",
    "waits": "at",
    "alerts": "at",
}
"""By table that can be asked as of an instant, the column with the time of a row."""
_CONFIG = {
    "datafusion.execution.collect_statistics": "false",
    # The check of a statement needs no more: the physical plan takes most of the time.
    "datafusion.explain.logical_plan_only": "true",
    # As in SQL: names that are not quoted are read in lower case.
    "datafusion.sql_parser.enable_ident_normalization": "true",
}
_FIRST_INSTANT, _LAST_INSTANT = (
    datetime(year, month, day, tzinfo=timezone.utc) for year, month, day in ((1, 1, 1), (9999, 12, 31))
)
"""Range of instants that files and programs can represent; the last day is left out."""
_SHARE = 0.5
"""Of the memory of the machine or container: what one engine may hold. Sorts and groups beyond it wait in temporary
files, of at most `_SPILLED` in all; a question that still needs more ends with an error instead of the machine."""
_SPILLED = "10G"
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Files with the container's memory limit: control groups version 2 and 1."""


class SqlError(ValueError):
    """Statement that cannot be answered; the message says why, and suggests the probable intention."""


class LakeSql:
    """Tables as of the first question about each; a new instance sees later rows."""

    def __init__(
        self, lake: str, as_of: datetime | None = None, memory_mb: int | None = None, tables: OpenTables | None = None
    ) -> None:
        """`memory_mb`: the engine's limit; None: half of the machine's. `tables`: of earlier instances.

        `as_of`: an instant as of which everything is asked: of the rows on record by then, with that as `$now`. It goes
        by the rows' own times, not by versions of the tables: so it reaches back as far as rows are kept.
        """
        self._tables, self._dialect, self._recorded_by = tables or OpenTables(lake), DATAFUSION, ""
        if as_of is not None:
            utc = as_of.astimezone(timezone.utc)
            instant = f"arrow_cast('{utc:%Y-%m-%dT%H:%M:%S.%fZ}', 'Timestamp(Microsecond, Some(\"UTC\"))')"
            self._dialect = replace(DATAFUSION, now=instant)
            # The partition too: a condition on it leaves files out.
            self._recorded_by = f" WHERE {{by}} <= {instant} AND day <= DATE '{utc:%Y-%m-%d}'"
        self._engine = QueryBuilder(_CONFIG)
        limit_mb = memory_mb or int(_SHARE * memory_of_the_machine_mb())
        self._engine.execute(f"SET datafusion.runtime.max_temp_directory_size = '{_SPILLED}'")
        self._engine.execute(f"SET datafusion.runtime.memory_limit = '{limit_mb}M'")
        self._known: set[str] = set()

    def ask(self, sql: str, is_own: bool = False) -> pa.RecordBatchReader:
        """Return the answer to one statement, a batch at a time; a later batch may raise `SqlError` as well.

        `is_own`: the statement is this release's, so that no plan of it needs a look.
        Raises `SqlError`, and `DeltaError` or `OSError` when a table cannot be read.
        """
        try:
            parsed = statements(without_comments(sql))
            if len(parsed) != 1:
                raise SqlError("one statement at a time" if parsed else "there is no statement")
            _check_words(parsed[0])
            written = self._dialect.translate(write_out(parsed[0]))
        except ValueError as error:
            raise SqlError(str(error)) from None
        mentioned = names(written)
        for view in in_order(sorted(mentioned & {name for name, view in views().items() if not view.parameters})):
            self._make_known(view.needs() & set(TABLES))
            if view.name not in self._known:
                dialect = self._decoding() if "$unescaped" in view.text else self._dialect
                self._run(f"CREATE VIEW {view.name} AS {view.sql(dialect)}")
                self._known.add(view.name)
        self._make_known(mentioned & set(TABLES))
        if not is_own:
            self._check_plan(written, mentioned)
        if _EXPLAINING.match(written):
            self._engine.execute("SET datafusion.explain.logical_plan_only = false")
        return _plain(self._run(written, mentioned))

    def rows(self, sql: str, is_own: bool = False) -> list[dict[str, Any]]:
        """Return the whole answer to one statement, as `ask` does."""
        return list(self.ask(sql, is_own).read_all().to_pylist())

    def _check_plan(self, sql: str, mentioned: Iterable[str]) -> None:
        """Raise `SqlError` unless the engine's plan of the statement only reads."""
        explained = _EXPLAINING.match(sql)
        rows = self._run(_PLAN_OF + (sql[explained.end() :] if explained else sql), mentioned).read_all().to_pylist()
        plan = next((str(row["plan"]) for row in rows if row["plan_type"] == "logical_plan"), "")
        if rows and rows[-1]["plan_type"].endswith(" failed"):
            # A value that does not fit its column; before are the plans until then.
            raise SqlError(str(rows[-1]["plan"]).rpartition("error: ")[2])
        if not _READS.match(plan) or _CHANGES.search(plan):
            raise _refused(plan.partition("\n")[0].partition(":")[0] or "what has no plan")

    def _decoding(self) -> Dialect:
        """Return the dialect with the names of subscriptions that old releases wrote with JSON escapes."""
        self._make_known([EVENTS.name])
        pattern = """'"subscription" *: *"((?:[^"\\\\]|\\\\.)*)"'"""
        escaped = (
            self._run(
                self._dialect.translate(
                    f"SELECT DISTINCT $first(body, {pattern}) AS name FROM events "
                    "WHERE type = 'consumer' AND in_columns IS NULL"
                )
            )
            .read_all()["name"]
            .to_pylist()
        )
        cases = "".join(
            f" WHEN {literal(name)} THEN {literal(decoded)}"
            for name in escaped
            if name and "\\" in name and (decoded := _decoded(name)) is not None
        )
        calls = {"$unescaped": lambda a: f"CASE {a[0]}{cases} ELSE {a[0]} END" if cases else a[0]}
        return replace(self._dialect, calls={**self._dialect.calls, **calls})

    def _make_known(self, tables: Iterable[str]) -> None:
        for name in sorted(set(tables) - self._known):
            self._register(TABLES[name])
            self._known.add(name)

    def _register(self, table: Table) -> None:
        """Register a table by its name; what is missing is empty, columns not yet written are null."""
        opened, expected = self._tables.newest(table), arrow_schema(table.row)
        stored = set() if opened is None else {field.name for field in opened.schema().fields}
        if opened is not None and stored >= set(expected.names) and not self._recorded_by:
            self._engine.register(table.name, opened)
            return
        columns = [
            f'"{field.name}"' if field.name in stored else f'CAST(NULL AS {_sql_type(field.type)}) AS "{field.name}"'
            for field in expected
        ]
        source = " WHERE false"
        if opened is not None:
            self._engine.register(f"stored_{table.name}", opened)
            source = f" FROM stored_{table.name}" + self._recorded_by.format(by=RECORDED_BY[table.name])
        self._run(f"CREATE VIEW {table.name} AS SELECT {', '.join(columns)}{source}")

    def _run(self, sql: str, mentioned: Iterable[str] = ()) -> pa.RecordBatchReader:
        try:
            return pa.RecordBatchReader.from_stream(self._engine.execute(sql))
        except (DeltaError, OSError) as error:
            raise _told(str(error), mentioned) from None
        except Exception as error:
            # delta-rs raises exceptions of its own for what the engine does not understand.
            raise _told(str(error), mentioned) from None


@cache
def memory_of_the_machine_mb() -> int:
    """Return the memory limit of this process, in MiB: the machine's, or the container's if that is less."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for file in _LIMITS:
        with suppress(OSError, ValueError):
            limits.append(int(Path(file).read_text()))
    return max(1, min(limits) // 2**20)


def _check_words(sql: str) -> None:
    """Raise `SqlError` in plain words for a statement that is no question, before `_check_plan`."""
    tokens = [*words(_EXPLAINING.sub("", sql, count=1) if _EXPLAINING.match(sql) else sql)] or [""]
    if tokens[0] not in _READING or {"insert", "into", "copy"} & set(tokens):
        raise _refused(tokens[0].upper() or repr(sql))


def _refused(beginning: str) -> SqlError:
    return SqlError(
        f"{beginning} cannot be asked: begin with SELECT, WITH, VALUES, DESCRIBE or EXPLAIN SELECT; "
        "nothing can be changed here"
    )


def _decoded(text: str) -> str | None:
    """Return the text of an escaped JSON string without its quotes; None: invalid, or not encodable."""
    try:
        decoded = str(json.loads(f'"{text}"', strict=False))
        decoded.encode()
    except ValueError:
        return None
    return decoded


def literal(text: str) -> str:
    """Return the text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def _sql_type(kind: pa.DataType) -> str:
    return _SQL_TYPES.get(kind, "TIMESTAMP WITH TIME ZONE")


def _plain(reader: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """Convert an answer to common types: no string views, instants to the microsecond."""
    named = zip(_distinct(reader.schema.names), reader.schema, strict=True)
    schema = pa.schema([pa.field(name, _plain_type(column.type)) for name, column in named])

    def batches() -> Iterable[pa.RecordBatch]:
        try:
            for batch in reader:
                arrays = [_plain_column(*pair) for pair in zip(batch.columns, schema, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)
        except SqlError:
            raise
        except Exception as error:
            raise _told(str(error), ()) from None

    return pa.RecordBatchReader.from_batches(schema, batches())


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC")
    if pa.types.is_duration(kind):
        return pa.duration("us")
    if kind == pa.string_view():
        return pa.string()
    if kind == pa.binary_view():
        return pa.binary()
    return pa.int64() if pa.types.is_integer(kind) and kind != pa.uint64() else kind


def _distinct(columns: Sequence[str]) -> list[str]:
    """Return unique names for an answer's columns: repeated ones are numbered, `at`, `at_2`."""
    unique: list[str] = []
    for column in columns:
        number, name = 1, column
        while name in unique or (number > 1 and name in columns):
            number += 1
            name = f"{column}_{number}"
        unique.append(name)
    return unique


def _plain_column(column: pa.Array, field: pa.Field) -> pa.Array:
    """Convert a column to a plain type. Raises `SqlError` for instants beyond the calendar."""
    if pa.types.is_temporal(column.type) and not pa.types.is_duration(column.type):
        _check_range(column, field.name)
    return column if column.type == field.type else column.cast(field.type, safe=False)


def _check_range(column: pa.Array, name: str) -> None:
    kind = column.type
    if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        return
    if pa.types.is_date(kind):
        first, last = (pa.scalar(limit.date(), pa.date32()).cast(kind) for limit in (_FIRST_INSTANT, _LAST_INSTANT))
    elif kind.unit == "ns":
        return  # It reaches from 1677 to 2262.
    else:
        first, last = (
            pa.scalar(limit, pa.timestamp("us", "UTC")).cast(kind) for limit in (_FIRST_INSTANT, _LAST_INSTANT)
        )
    if pc.any(pc.or_(pc.less(column, first), pc.greater_equal(column, last))).as_py():
        raise SqlError(
            f"column {name} has instants outside of the years 1 to 9999: leave them out, or cast them to text"
        )


def _told(message: str, mentioned: Iterable[str]) -> SqlError:
    """Return the engine's message in a line, with the names nearest to an unknown one."""
    text = " ".join(message.split())
    if "Resources exhausted" in text:
        return SqlError(
            "the question needs more memory than half of this machine's, which is the most that one may take: narrow "
            "it by a topic or a time, ask for fewer columns (texts such as layout and inputs are the largest), or "
            "leave out ORDER BY"
        )
    if match := re.search(r"table '(?:datafusion\.public\.)?([^']+)' not found", text):
        candidates = [*TABLES, *(view.name for view in views().values())]
        nearest = difflib.get_close_matches(match[1], candidates, 3)
        if match[1] in {name for name, view in views().items() if view.parameters}:
            return SqlError(f"{match[1]} is asked with an instant: {match[1]}(TIMESTAMP '2026-11-22 14:05:00')")
        return SqlError(f"there is no table or view {match[1]}; {_near(nearest, 'anabranch sql --views lists them')}")
    if match := re.search(r"No field named (\S+?)\.? (?:Did you mean|Valid fields|$)", f"{text} "):
        wanted = match[1].strip("'\"").rpartition(".")[2].strip("'\"")
        candidates = [column for name in mentioned for column in columns_of(name)]
        nearest = difflib.get_close_matches(wanted, dict.fromkeys(candidates), 3)
        columns = (
            f"there are {', '.join(dict.fromkeys(candidates))}" if candidates else "DESCRIBE NAME lists those of a view"
        )
        return SqlError(f"there is no column {wanted} here; {_near(nearest, columns)}")
    return SqlError(text.removeprefix("Error during planning: ").removeprefix("Schema error: "))


def _near(nearest: list[str], otherwise: str) -> str:
    return f"nearest: {', '.join(nearest)}" if nearest else otherwise


def columns_of(name: str) -> list[str]:
    """Return the columns of a table or view; empty if there is no such."""
    if name in TABLES:
        return list(TABLES[name].row.model_fields)
    return [column.name for column in views()[name].columns] if name in views() else []
