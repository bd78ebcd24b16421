"""`anabranch lake check`: find damage in the lake, and say how to repair it. Nothing is written."""

import json

import click

from anabranch.cli.context import Context
from anabranch.cli.exits import FOUND, Unreachable, failing_on
from schemas.printable import printable


@click.command("check")
@click.option("--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option(
    "--deep",
    is_flag=True,
    help="Read every byte of every file too, and compare it with what it was at the last deep check.",
)
@click.pass_context
def check(ctx: click.Context, output: str, deep: bool) -> None:
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
