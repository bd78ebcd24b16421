"""`anabranch doctor`: checks the machine and the set-up."""

import json
from dataclasses import asdict

import click

from anabranch.cli.context import DEMONSTRATION, Context
from anabranch.cli.reports import print_table


@click.command("doctor")
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.pass_obj
def doctor_command(context: Context, output: str) -> None:
    """Check this machine and the set-up, and say what is wrong and what to do.

    Exit code 1 when something is wrong.

    Java, packages, settings, jars, disk, memory, ports, Kafka, lake and collector. Without --config and
    ./anabranch.toml it looks at the settings of `anabranch run --local`. It changes nothing; in an object store it
    makes a table of its own and deletes it.
    """
    from anabranch.local.doctor import examine

    if not context.own:
        context.extra.append(DEMONSTRATION)
    findings = examine(context.home, context.files)
    if output == "json":
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for heading in ("", "check", "found", "what to do"):
            table.add_column(heading, overflow="fold")
        for finding in findings:
            mark = "[green]ok[/green]" if finding.ok else "[red]wrong[/red]"
            table.add_row(mark, finding.check, finding.found, "" if finding.ok else finding.remedy)
        print_table(table)
    if not all(finding.ok for finding in findings):
        raise click.exceptions.Exit(1)
