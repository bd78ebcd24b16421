"""`anabranch sql`: query the lake's tables and views in SQL without a JVM, singly or at a prompt."""

import os
import sys
import time
from pathlib import Path

import click

from anabranch.cli.context import Context
from anabranch.cli.exits import failing_on
from anabranch.cli.reports import reading_lake

OUTPUTS = ("table", "json", "csv", "parquet")


@click.command("sql")
@click.argument("statement", required=False)
@click.option("--output", type=click.Choice(OUTPUTS), default="table", show_default=True, help="json: a row a line.")
@click.option(
    "--file", "file", type=click.Path(path_type=Path, dir_okay=False), help="Write there; for parquet needed."
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=1_000,
    show_default=True,
    help="Rows of a table at most; the others have all.",
)
@click.option(
    "--views", "wants_views", is_flag=True, help="List tables and views; with a name instead of SQL, columns."
)
@click.pass_obj
def sql_command(
    context: Context, statement: str | None, output: str, file: Path | None, limit: int, wants_views: bool
) -> None:
    """Ask the lake in SQL. Without STATEMENT, read it from standard input or prompt for one after another.

    \b
    anabranch sql --views
    anabranch sql --views thrash
    anabranch sql "SELECT gate, count(*) FROM holds_now GROUP BY gate"
    anabranch sql "SELECT * FROM load_at(TIMESTAMP '2026-11-22 14:05:00')" --output csv
    anabranch sql

    The SQL is DataFusion's. Instants are UTC. Nothing can be changed. More questions: docs/sql.md.
    """
    if wants_views:
        click.echo(_describe_table(statement) if statement else _listed())
        return
    if output == "parquet" and file is None:
        raise click.UsageError("--output parquet needs --file")
    lake = context.settings.lake_path
    if statement is None and sys.stdin.isatty() and sys.stdout.isatty():
        from anabranch.cli.sql_prompt import ask_on

        history = context.settings.path(context.settings.local.folder) / "sql-history"
        ask_on(lake, history, lambda sql: _answer_statement(lake, sql, output, None, limit), _describe_table, _listed)
        return
    _answer_statement(lake, sys.stdin.read() if statement in (None, "-") else str(statement), output, file, limit)


def _answer_statement(lake: str, statement: str, output: str, file: Path | None, limit: int) -> None:
    """Print or write the answer; raise `ClickException`."""
    from anabranch.cli.answers import write_answer
    from anabranch.query.sql import LakeSql, SqlError

    if file is not None and not os.access(file.absolute().parent, os.W_OK):
        raise click.ClickException(f"{file} cannot be written: its folder is not there, or not yours")
    begun = time.monotonic()
    with failing_on(SqlError), reading_lake(lake, action="read, or the answer not written"):
        rows = write_answer(LakeSql(lake).ask(statement), output, file, limit)
    if file is not None or output == "table":
        click.echo(f"{rows:,} row{'' if rows == 1 else 's'}, {time.monotonic() - begun:.2f} s", err=True)


def _listed() -> str:
    """Every table and view with what a row is."""
    from anabranch.query.views.catalogue import views
    from schemas.tables.rows import TABLES

    tables = {name: " ".join((table.row.__doc__ or "").partition("\n\n")[0].split()) for name, table in TABLES.items()}
    shown = {view.signature: view.about for view in views().values()}
    lines = []
    for title, entries in (("views", shown), ("tables", tables)):
        lines += [f"{title}:", *(f"  {name:20} {about}" for name, about in entries.items()), ""]
    return "\n".join([*lines, "columns: anabranch sql --views NAME"])


def _describe_table(name: str) -> str:
    """The columns of a table or view; raises `ClickException`."""
    import difflib

    from anabranch.query.views.catalogue import views
    from schemas.tables.arrow import arrow_schema
    from schemas.tables.rows import TABLES

    name = name.strip().lower()
    if (view := views().get(name)) is not None:
        columns = [(column.name, column.type, column.meaning) for column in view.columns]
        title = f"{view.signature}, version {view.version}: {view.about}"
    elif (table := TABLES.get(name)) is not None:
        fields = table.row.model_fields
        meanings = [" ".join((fields[field.name].description or "").split()) for field in arrow_schema(table.row)]
        columns = [
            (field.name, str(field.type), meaning)
            for field, meaning in zip(arrow_schema(table.row), meanings, strict=True)
        ]
        title = f"{name}: {' '.join((table.row.__doc__ or '').split())}"
    else:
        nearest = difflib.get_close_matches(name, [*TABLES, *views()], 3)
        raise click.ClickException(f"there is no table or view {name}; nearest: {', '.join(nearest) or 'none'}")
    width = max(len(column[0]) for column in columns)
    return "\n".join(
        [title, "", *(f"  {column:{width}}  {kind:10}  {meaning}".rstrip() for column, kind, meaning in columns)]
    )
