"""`anabranch reset`: forgets the state of the local run."""

from __future__ import annotations

import click

from anabranch.context import Context


@click.command("reset")
@click.pass_obj
def command(context: Context) -> None:
    """Forget all state of the local run: lake, broker data, layouts, checkpoints. Refused while a run is alive."""
    from lab.java_home import SetupError
    from lab.reset import reset

    try:
        removed = reset(context.settings)
    except SetupError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"forgot {len(removed)} files and folders of earlier runs" if removed else "nothing to forget")
