"""`anabranch controller`: the scalable-topic controller in the foreground."""

from __future__ import annotations

import click

from anabranch.context import Context


@click.command("controller", help="Run the scalable-topic controller until SIGTERM or Ctrl-C.")
@click.pass_obj
def command(context: Context) -> None:
    """Serve `settings.controller`; prints one line with the URL when requests are answered."""
    from controller.errors import StartError
    from controller.server import serve

    settings = context.settings
    context.start_logging("controller")
    try:
        serve(settings, lambda url: click.echo(f"controller ready at {url}"))
    except StartError as error:
        raise click.ClickException(str(error)) from error
