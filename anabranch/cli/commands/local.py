"""`anabranch local`: fetch jars, generate load, delete the state of local runs.

Stage: over `anabranch.local.setup`, `traffic` and `reset`. `anabranch run` is in `anabranch.cli.commands.run`.
"""

import contextlib
import os
import threading

import click

from anabranch.cli.context import Context
from anabranch.cli.exits import failing_on
from anabranch.cli.instants import DURATION
from runtime.telemetry.health import call_on_signals


@click.command("setup")
@click.option("--quiet", is_flag=True, help="Say nothing when there is nothing to do.")
@click.option(
    "--pulsar",
    is_flag=True,
    help="Also those of a real Pulsar 5 (220 MB), which nothing else fetches before it is asked for.",
)
@click.pass_obj
def setup(context: Context, quiet: bool, pulsar: bool) -> None:
    """Fetch the jars of conf/jars/ (once, by the Ivy inside pyspark) and check each against its SHA-256.

    Then archive the classes of their JVMs, so that these start more quickly (once, and after an update of Java).
    """
    from anabranch.local.archive import ensure_archive
    from anabranch.local.setup import ensure_jars, ensure_pulsar
    from runtime.java_home import SetupError

    def say(line: str) -> None:
        click.echo(line, err=True)

    # Jars are public, and in an image other accounts use them.
    os.umask(0o022)
    with failing_on(SetupError):
        jars = ensure_jars(context.settings, say)
        if pulsar:
            ensure_pulsar(context.settings, say)
        for name in ("spark", *(["pulsar"] if pulsar else [])):
            ensure_archive(context.settings, name, say)
    if not quiet:
        click.echo(f"jars are in {jars.spark.parent}")


@click.command("traffic")
@click.option("--for", "seconds", type=DURATION, metavar="TIME", help="Stop after this long (90s, 2m); default: never.")
@click.pass_obj
def traffic(context: Context, seconds: float | None) -> None:
    """Generate topics, consumers and load samples until stopped.

    At Ctrl-C or SIGTERM it delivers what it has sent. With [traffic] load = "clients" it runs real producers and
    consumers instead, and at the end reads all that it has produced.

    \b
    Creates its topics at the controller ([controller] url), registers consumers there, and sends segment-stats to
    Kafka ([kafka] bootstrap) for all active segments, as brokers would. [traffic] says how much.
    """
    context.start_logging("traffic")
    settings = context.settings
    from anabranch.local.traffic import run_traffic

    stop = threading.Event()
    call_on_signals(stop.set)
    if seconds is not None:
        clock = threading.Timer(seconds, stop.set)
        clock.daemon = True
        clock.start()
    if settings.traffic.load == "clients":
        _run_clients(context, stop)
        return
    counts = run_traffic(settings, stop).counts
    click.echo(", ".join(f"{name} {counts[name]}" for name in ("sent", "delivered", "failed")), err=True)


def _run_clients(context: Context, stop: threading.Event) -> None:
    from anabranch.local.report import clients_line
    from anabranch.local.setup import check_client_package
    from anabranch.local.traffic import controller_topics
    from runtime.java_home import SetupError

    with failing_on(SetupError):
        check_client_package()
    from anabranch.local.clients.traffic import run_clients

    with contextlib.closing(controller_topics(context.settings)) as topics:
        counts = run_clients(context.settings, topics, stop)
    click.echo(clients_line(counts), err=True)


@click.command("reset")
@click.option("--yes", is_flag=True, help="Delete without asking.")
@click.pass_obj
def reset_command(context: Context, yes: bool) -> None:
    """Forget all state of the local run: lake, broker data, layouts, checkpoint. Lists it and asks first.

    Refused while a run is alive, and for settings whose lake or checkpoint lies outside of the home.
    """
    from anabranch.local.reset import check_is_local, reset, state_of
    from runtime.java_home import SetupError

    with failing_on(SetupError):
        check_is_local(context.settings)
        if not (paths := state_of(context.settings)):
            click.echo("nothing to forget")
            return
        if not yes:
            click.echo("\n".join(map(str, paths)))
            click.confirm("Delete these files and folders? (--yes does not ask)", abort=True)
        removed = reset(context.settings)
    click.echo(f"forgot {len(removed)} files and folders of earlier runs")
