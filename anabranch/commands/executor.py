"""`anabranch executor`: applies decisions in the foreground."""

from __future__ import annotations

import click

from anabranch.context import Context


@click.command("executor")
@click.option("--mode", type=click.Choice(["act", "observe"]), help="Instead of [executor] mode of the settings.")
@click.pass_obj
def command(context: Context, mode: str | None) -> None:
    """Apply decisions until told to stop (Ctrl-C, SIGTERM: running calls get a few seconds to end).

    \b
    Tails the table decisions of [lake] path, calls the admin REST interface at [controller] url, writes the table
    outcomes and tells Kafka ([kafka] bootstrap). May be killed and started again at any moment: it finishes what it
    began and does nothing twice. One at a time: a newly started one takes over, the older one stops.
    With --mode observe it writes what it would do, and touches nothing.
    """
    context.start_logging("executor")
    settings = context.settings
    if mode is not None:
        chosen = settings.executor.model_copy(update={"mode": mode})
        settings = settings.model_copy(update={"executor": chosen})
    from executor.process import StartError, run_executor
    from lake.lease import LeaseLost

    try:
        run_executor(settings, click.echo)
    except (StartError, LeaseLost) as error:
        raise click.ClickException(str(error)) from error
