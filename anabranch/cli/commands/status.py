"""`anabranch status`: how the fleet stands, in ten lines. No Spark, no JVM."""

import json
from datetime import datetime, timezone

import click

from anabranch.cli.context import Context


@click.command("status")
@click.option("--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.pass_context
def status_command(ctx: click.Context, output: str) -> None:
    """Show the processes, what is over its threshold, what is open and which alerts fire.

    \b
    anabranch status
    anabranch status --output json | jq '.overThreshold[].topic'
    watch anabranch status

    Everything comes from the lake, so it can be asked wherever the lake can be read. The exit code is 0 when nothing
    needs a person, 1 when something does, and 3 when the lake cannot be read.
    """
    from anabranch.cli.exits import Unreachable
    from anabranch.cli.reports import reading_lake
    from anabranch.history.status import read_status, status_lines
    from anabranch.query.sql import SqlError
    from schemas.printable import printable

    context: Context = ctx.obj
    settings = context.settings
    try:
        with reading_lake(settings.lake_path):
            status = read_status(settings.lake_path, datetime.now(timezone.utc), settings.executor.stuck_seconds)
    except SqlError as error:
        raise Unreachable(f"the lake {settings.lake_path} cannot be read: {error}") from error
    if output == "json":
        click.echo(json.dumps(status))
    else:
        click.echo("\n".join(status_lines(status)))
        for message in status["attention"]:
            click.echo(f"attention: {printable(message)}", err=True)
    ctx.exit(1 if status["attention"] else 0)
