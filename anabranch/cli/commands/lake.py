"""`anabranch lake`: create, show, compact and check the Delta tables, and register them in Spark SQL."""

import json
from datetime import date, datetime, timezone
from typing import Any

import click

from anabranch.cli.commands import state
from anabranch.cli.commands.lake_retain import retain_rows
from anabranch.cli.context import Context
from anabranch.cli.exits import FOUND, Unreachable, failing_on
from anabranch.cli.reports import print_table, reading_lake
from schemas.printable import printable
from schemas.settings.root import Settings
from schemas.tables.rows import HORIZONS, TABLES

_SHOWN_BYTES = 60


@click.group("lake")
def lake_command() -> None:
    """Create, show, register, compact, check and cut the Delta tables. [lake] path says where they are."""


lake_command.add_command(retain_rows)


@lake_command.command("create")
@click.pass_obj
def create_tables(context: Context) -> None:
    """Make the tables that are missing; those that exist stay as they are."""
    from lake.tables import create_lake

    lake = context.settings.lake_path
    with reading_lake(lake, action="written"):
        for name, table in create_lake(lake).items():
            click.echo(f"{name}: version {table.version()}")


@lake_command.command("show")
@click.argument("table", required=False, type=click.Choice(list(TABLES)), metavar="[TABLE]")
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option("--limit", type=click.IntRange(min=0), default=10, show_default=True, help="Newest rows to show.")
@click.pass_obj
def show_tables(context: Context, table: str | None, output: str, limit: int) -> None:
    """Show every table (rows, version, newest commit), or the newest rows of TABLE, oldest first.

    \b
    anabranch lake show
    anabranch lake show decisions --limit 3
    anabranch lake show outcomes --output json | jq .status
    """
    lake = context.settings.lake_path
    with reading_lake(lake):
        if table is None:
            _show_tables(lake, output)
        else:
            _show_rows(lake, table, output, limit)


@lake_command.command("register")
@click.pass_obj
def register_tables(context: Context) -> None:
    """Make every table and view known to Spark SQL, in the database `anabranch`, and say how to open it.

    Safe to repeat, and while the job runs. Without a Hive metastore of your own it is in a folder that one process at
    a time can open: close spark-sql first.
    """
    import shlex

    from pyspark.errors import PySparkException

    from anabranch.query.views.spark import spark_statements
    from streaming.job.session import start_session
    from streaming.sink.catalog import DATABASE, catalog_settings, register_lake, register_views, spark_sql_command

    settings = context.settings
    _check_jars(settings)
    spark = start_session(settings, {**catalog_settings(settings), "spark.app.name": "anabranch-register"})
    try:
        for name, path in register_lake(spark, settings.lake_path).items():
            click.echo(f"anabranch.{name}: {path}")
        views = spark_statements(DATABASE)
        register_views(spark, views)
        click.echo(f"views: {', '.join(views)}")
    except PySparkException as error:
        raise click.ClickException(f"the lake could not be registered: {_first_line(error)}") from error
    finally:
        spark.stop()
    click.echo(f"open it with: {shlex.join(spark_sql_command(settings))}")


@lake_command.command("optimize")
@click.option("--table", "name", type=click.Choice(list(TABLES)), help="Only this table; without it, all of them.")
@click.option("--zorder", is_flag=True, help="Sort closed days by topic instead of compacting all days.")
@click.option(
    "--by",
    "writer",
    type=click.Choice(["delta-rs", "delta-spark"]),
    default="delta-rs",
    show_default=True,
    help="In this process, or on Spark ([stream] spark_conf says where).",
)
@click.pass_obj
def optimize_tables(context: Context, name: str | None, zorder: bool, writer: str) -> None:
    """Turn many small files into few large ones; safe while the job and an executor run."""
    from lake.compaction import Compacting
    from lake.maintenance import compact_by_delta_rs, compact_by_delta_spark
    from lake.tables import open_table

    settings = context.settings
    before = datetime.now(timezone.utc).date() if zorder else None
    tables = [table for table in TABLES.values() if name in (None, table.name)]
    spark = None
    faults: tuple[type[Exception], ...] = (Compacting,)
    if writer == "delta-spark":
        from pyspark.errors import PySparkException

        from streaming.job.session import start_session

        faults += (PySparkException,)
        _check_jars(settings)
        spark = start_session(settings, {"spark.app.name": "anabranch-optimize"})
    try:
        for table in tables:
            with reading_lake(settings.lake_path, action=f"compacted at {table.name}"):
                if open_table(settings.lake_path, table) is None:
                    click.echo(f"{table.name}: not made yet")
                    continue
                if spark is None:
                    done = compact_by_delta_rs(settings.lake_path, table, before)
                else:
                    done = compact_by_delta_spark(spark, settings.lake_path, table, before)
            click.echo(f"{table.name}: {done.files_removed} files became {done.files_added}")
    except faults as error:
        raise click.ClickException(f"{table.name} was not compacted: {_first_line(error)}") from error
    finally:
        if spark is not None:
            spark.stop()


@lake_command.command("vacuum")
@click.option("--table", "name", type=click.Choice(list(TABLES)), help="Only this table; without it, all of them.")
@click.option("--dry-run", is_flag=True, help="Only say how many files would go.")
@click.pass_obj
def vacuum_tables(context: Context, name: str | None, dry_run: bool) -> None:
    """Delete old files without live rows: replaced by a compaction, or left by a killed writer.

    Old is a day, and seven days in the tables whose log is as long (docs/operations.md). Safe while the job and an
    executor run. No row is deleted, but older versions of the tables can no longer be read.
    """
    from lake.maintenance import delete_unused
    from lake.tables import open_table

    lake = context.settings.lake_path
    for table in (*TABLES.values(), HORIZONS):
        if name not in (None, table.name):
            continue
        with reading_lake(lake, action=f"cleaned up at {table.name}"):
            if open_table(lake, table) is None:
                if table is not HORIZONS:
                    click.echo(f"{table.name}: not made yet")
                continue
            files = delete_unused(lake, table, dry_run)
        click.echo(f"{table.name}: {len(files)} files {'would go' if dry_run else 'deleted'}")


def _check_jars(settings: Settings) -> None:
    if not any((settings.path(settings.local.jars) / "spark").glob("*.jar")):
        raise click.ClickException("there are no jars yet: anabranch local setup")


def _first_line(error: Exception) -> str:
    # Spark's errors go on with the JVM's stack.
    return str(error).strip().partition("\n")[0]


def _show_tables(lake: str, output: str) -> None:
    from lake.tables import open_table

    tables: list[dict[str, Any]] = []
    for name, table in TABLES.items():
        if (opened := open_table(lake, table)) is None:
            tables.append({"table": name, "rows": None, "version": None, "files": None, "committedAt": None})
            continue
        actions = opened.get_add_actions(flatten=True)
        tables.append(
            {
                "table": name,
                "rows": sum(rows or 0 for rows in actions.column("num_records").to_pylist()),
                "version": opened.version(),
                "files": actions.num_rows,
                "committedAt": datetime.fromtimestamp(opened.history(1)[0]["timestamp"] / 1000, timezone.utc).strftime(
                    "%Y-%m-%dT%H:%M:%SZ"
                ),
                "writtenBy": table.written_by,
            }
        )
    if output == "json":
        click.echo(json.dumps({"lake": lake, "tables": tables}, indent=2))
        return
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as Grid

    grid = Grid(title=lake, title_justify="left", box=SIMPLE_HEAD)
    for heading in ("table", "rows", "version", "files", "newest commit", "written by"):
        grid.add_column(heading, no_wrap=True, justify="right" if heading in ("rows", "version", "files") else "left")
    for row in tables:
        cells = ("rows", "version", "files", "committedAt")
        shown = ["-" if row[cell] is None else str(row[cell]) for cell in cells]
        grid.add_row(row["table"], *shown, row.get("writtenBy", "not made yet"))
    print_table(grid)


def _show_rows(lake: str, name: str, output: str, limit: int) -> None:
    from lake.tables import open_table
    from lake.tail import COMMITTED_AT, newest_rows

    if (opened := open_table(lake, TABLES[name])) is None:
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
            grid.add_row(Text(column, "dim"), Text(printable(str(shown))))
        print_table(grid)


def _plain(value: object) -> str:
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


lake_command.add_command(state.state_command)


@lake_command.command("check")
@click.option("--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option(
    "--deep",
    is_flag=True,
    help="Read every byte of every file too, and compare it with what it was at the last deep check.",
)
@click.pass_context
def check_tables(ctx: click.Context, output: str, deep: bool) -> None:
    """Find gaps, duplicates, orphans and missing files, and say what to do about each.

    Safe while the job and an executor run: it looks at the lake as it is at one moment, and leaves out what is still
    being written. --deep keeps digests of the files in lake-digests.json in `[local] folder`. Exit code 0: all is well;
    1: something was found; 3: the lake cannot be read.
    """
    from deltalake.exceptions import DeltaError

    from anabranch.history.check.checking import check_lake
    from anabranch.history.check.contents import Digests
    from anabranch.history.check.findings import REMEDIES
    from anabranch.query.sql import SqlError

    context: Context = ctx.obj
    lake = context.settings.lake_path
    kept_in = context.settings.path(context.settings.local.folder) / "lake-digests.json"
    with failing_on(ValueError, OSError):
        digests = Digests(kept_in, lake) if deep else None
    try:
        findings = check_lake(lake, digests, context.settings.executor.stuck_seconds)
        if digests is not None:
            digests.save()
    except (SqlError, DeltaError, OSError) as error:
        raise Unreachable(f"the lake {lake} cannot be checked: {printable(str(error))}") from error
    if output == "json":
        click.echo(json.dumps({"lake": lake, **findings.to_json()}, indent=2))
    else:
        for finding in findings:
            click.echo(f"{finding.table}: {finding.kind} ({finding.count:,})")
            for text in finding.listed:
                click.echo(f"  {printable(text)}")
            if finding.count > len(finding.listed):
                click.echo(f"  and {finding.count - len(finding.listed):,} more")
            click.echo(f"  What to do: {REMEDIES[finding.kind]}")
        if digests is not None and digests.is_first:
            click.echo("the first deep check of this lake: from now on a changed byte is found")
        rows = sum(findings.rows.values())
        click.echo(f"{rows:,} rows in {len(findings.rows)} tables: {'see above' if findings else 'nothing is wrong'}")
    ctx.exit(FOUND if findings else 0)
