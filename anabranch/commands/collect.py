"""`anabranch collect`: what a cluster does, from its REST interface into Kafka."""

from __future__ import annotations

import click

from anabranch.context import Context


@click.group("collect")
def command() -> None:
    """Read a cluster's load, layouts, consumers and policies into Kafka, where the job takes them."""


@command.command("pulsar")
@click.option("--once", is_flag=True, help="Read everything once, send it, say what was seen, and end.")
@click.option("--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.pass_obj
def pulsar(context: Context, once: bool, output: str) -> None:
    """Collect a Pulsar 5 cluster until told to stop (Ctrl-C, SIGTERM).

    \b
    Asks the brokers of the cluster at [controller] url, with the token of ANABRANCH_CONTROLLER_TOKEN if there is one,
    and writes to Kafka ([kafka] bootstrap). It changes nothing in the cluster. It may be killed and started again at
    any moment. What it reads, how often, and with which rights: docs/pulsar.md.
    """
    context.start_logging("collect")
    from collectors.pulsar.process import collect_pulsar
    from collectors.status import describe
    from telemetry.serving import MetricsError

    try:
        status = collect_pulsar(
            context.settings, lambda line: None if output == "json" else click.echo(line), once=once
        )
    except MetricsError as error:
        raise click.ClickException(str(error)) from error
    if once or output == "json":
        click.echo(status.to_json() if output == "json" else describe(status))
    if once and not status.is_complete:
        raise click.exceptions.Exit(1)
