"""`anabranch local reset`: deletes the state of the local run."""

from __future__ import annotations

import click

from anabranch.cli.context import Context


@click.command("reset")
@click.option("--yes", is_flag=True, help="Delete without asking.")
@click.pass_obj
def command(context: Context, yes: bool) -> None:
    """Forget all state of the local run: lake, broker data, layouts, checkpoint. Lists it and asks first.

    Refused while a run is alive, and for settings whose lake or checkpoint lies outside of the home.
    """
    from anabranch.local.reset import check_is_local, reset, state_of
    from runtime.java_home import SetupError

    try:
        check_is_local(context.settings)
        paths = state_of(context.settings)
        if not paths:
            click.echo("nothing to forget")
            return
        if not yes:
            click.echo("\n".join(map(str, paths)))
            click.confirm("Delete these files and folders? (--yes does not ask)", abort=True)
        removed = reset(context.settings)
    except SetupError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"forgot {len(removed)} files and folders of earlier runs")
