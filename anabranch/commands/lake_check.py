"""`anabranch lake check`: whether the lake is whole, and what to do where it is not. Nothing is written."""

from __future__ import annotations

import json

import click

from anabranch.context import Context
from schemas.printable import printable

FOUND = 2


@click.command("check")
@click.option("--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.pass_context
def check(ctx: click.Context, output: str) -> None:
    """Find gaps, duplicates, orphans and missing files, and say what to do about each.

    Safe while the job and an executor run: it looks at the lake as it is at one moment, and leaves out what is still
    being written. Exit code 0: all is well; 2: something was found; 1: it could not be done.
    """
    from deltalake.exceptions import DeltaError

    from ledger.check.checking import check_lake
    from ledger.check.findings import REMEDIES
    from ledger.sql import SqlError

    context: Context = ctx.obj
    lake = context.settings.lake_path
    try:
        found = check_lake(lake)
    except (SqlError, DeltaError, OSError) as error:
        raise click.ClickException(f"the lake {lake} cannot be checked: {printable(str(error))}") from error
    if output == "json":
        click.echo(json.dumps({"lake": lake, **found.to_json()}, indent=2))
    else:
        for one in found:
            click.echo(f"{one.table}: {one.kind} ({one.count:,})")
            for told in one.told:
                click.echo(f"  {printable(told)}")
            if one.count > len(one.told):
                click.echo(f"  and {one.count - len(one.told):,} more")
            click.echo(f"  What to do: {REMEDIES[one.kind]}")
        rows = sum(found.rows.values())
        click.echo(f"{rows:,} rows in {len(found.rows)} tables: {'see above' if found else 'nothing is wrong'}")
    ctx.exit(FOUND if found else 0)
