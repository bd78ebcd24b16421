"""`anabranch lake`: makes the Delta tables and shows what is in them."""

from __future__ import annotations

import json
from datetime import date, datetime, timezone
from typing import Any

import click

from anabranch.context import Context
from schemas.tables import TABLES

_SHOWN_BYTES = 60


@click.group("lake")
def command() -> None:
    """Create the Delta tables and show what is in them. [lake] path says where they are."""


@command.command("create")
@click.pass_obj
def create(context: Context) -> None:
    """Make the tables that are missing; those that exist stay as they are."""
    from deltalake.exceptions import DeltaError

    from schemas.delta import create_lake

    try:
        for name, table in create_lake(context.settings.lake_path).items():
            click.echo(f"{name}: version {table.version()}")
    except (DeltaError, OSError) as error:
        raise click.ClickException(f"cannot create tables in {context.settings.lake_path}: {error}") from error


@command.command("show")
@click.argument("table", required=False, type=click.Choice(list(TABLES)), metavar="[TABLE]")
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option("--limit", type=click.IntRange(min=0), default=10, show_default=True, help="Newest rows to show.")
@click.pass_obj
def show(context: Context, table: str | None, output: str, limit: int) -> None:
    """Show every table (rows, version, newest commit), or the newest rows of TABLE, oldest first.

    \b
    anabranch lake show
    anabranch lake show decisions --limit 3
    anabranch lake show outcomes --output json | jq .status
    """
    if table is None:
        _show_tables(context.settings.lake_path, output)
    else:
        _show_rows(context.settings.lake_path, table, output, limit)


def _show_tables(lake: str, output: str) -> None:
    from schemas.delta import open_table

    found: list[dict[str, Any]] = []
    for name, table in TABLES.items():
        opened = open_table(lake, table)
        if opened is None:
            found.append({"table": name, "rows": None, "version": None, "files": None, "committedAt": None})
            continue
        actions = opened.get_add_actions(flatten=True)
        found.append({
            "table": name,
            "rows": sum(rows or 0 for rows in actions.column("num_records").to_pylist()),
            "version": opened.version(),
            "files": actions.num_rows,
            "committedAt": datetime.fromtimestamp(opened.history(1)[0]["timestamp"] / 1000, timezone.utc).strftime(
                "%Y-%m-%dT%H:%M:%SZ"
            ),
            "writtenBy": table.written_by,
        })  # fmt: skip
    if output == "json":
        click.echo(json.dumps({"lake": lake, "tables": found}, indent=2))
        return
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as Grid

    grid = Grid(title=lake, title_justify="left", box=SIMPLE_HEAD)
    for heading in ("table", "rows", "version", "files", "newest commit", "written by"):
        grid.add_column(heading, no_wrap=True, justify="right" if heading in ("rows", "version", "files") else "left")
    for row in found:
        cells = ("rows", "version", "files", "committedAt")
        shown = ["-" if row[cell] is None else str(row[cell]) for cell in cells]
        grid.add_row(row["table"], *shown, row.get("writtenBy", "not made yet"))
    _print(grid)


def _show_rows(lake: str, name: str, output: str, limit: int) -> None:
    from lab.tail import COMMITTED_AT, newest_rows
    from schemas.delta import open_table

    opened = open_table(lake, TABLES[name])
    if opened is None:
        raise click.ClickException(f"there is no table {name} in {lake} yet: anabranch lake create")
    rows = newest_rows(opened, limit)
    if output == "json":
        for row in rows:
            row["committedAt"] = row.pop(COMMITTED_AT)
            click.echo(json.dumps(row, default=_plain))
        return
    from rich.table import Table as Grid
    from rich.text import Text

    for row in rows:
        title = f"committed {row.pop(COMMITTED_AT):%F %T} UTC"
        grid = Grid(show_header=False, box=None, padding=(0, 1), title=title, title_justify="left")
        for column, value in row.items():
            # Text, not str: what a stranger sent may look like markup.
            shown = value[:_SHOWN_BYTES] if isinstance(value, bytes) else _plain(value)
            grid.add_row(Text(column, "dim"), Text(str(shown)))
        _print(grid)


def _plain(value: object) -> str:
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _print(renderable: object) -> None:
    from rich.console import Console

    Console(markup=True, highlight=False).print(renderable)
