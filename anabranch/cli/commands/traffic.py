"""`anabranch local traffic`: the load generator of the local run, in the foreground."""

from __future__ import annotations

import signal
import threading

import click

from anabranch.cli.context import Context
from anabranch.cli.duration import DURATION


@click.command("traffic")
@click.option("--for", "seconds", type=DURATION, metavar="TIME", help="Stop after this long (90s, 2m); default: never.")
@click.option(
    "--garbage",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    metavar="RATE",
    help="Mix in this many bad messages a second, of every kind.",
)
@click.pass_obj
def command(context: Context, seconds: float | None, garbage: float) -> None:
    """Generate topics, consumers and load samples until stopped.

    At Ctrl-C or SIGTERM it delivers what it has sent.

    \b
    Creates its topics at the controller ([controller] url), registers consumers there, and sends segment-stats to
    Kafka ([kafka] bootstrap) for all active segments, as brokers would. [traffic] says how much.
    """
    context.start_logging("traffic")
    settings = context.settings
    from anabranch.local.traffic import run_traffic

    stop = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: stop.set())
    if seconds is not None:
        clock = threading.Timer(seconds, stop.set)
        clock.daemon = True
        clock.start()
    counts = run_traffic(settings, stop, garbage).counts
    click.echo(", ".join(f"{name} {counts[name]}" for name in ("sent", "delivered", "failed", "garbage")), err=True)
