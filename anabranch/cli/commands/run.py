"""`anabranch run --local`: run the whole system here, with a screen or a report for scripts."""

import contextlib
import json
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import click

from anabranch.cli.context import DEMONSTRATION, LOCAL, STORY, WITH_CLIENTS, WITH_GENERATED, WITH_PULSAR, Context
from anabranch.cli.instants import DURATION
from anabranch.cli.logs import start_logging


@click.command("run")
@click.option("--local", "is_local", is_flag=True, help="On this machine, in separate processes (the only way so far).")
@click.option("--for", "seconds", type=DURATION, metavar="TIME", help="End by itself after this long (120s, 2m).")
@click.option(
    "--report",
    "report_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write a report of the run as JSON when it ends.",
)
@click.option("--no-screen", is_flag=True, help="Lines instead of the live screen (also without a terminal).")
@click.option(
    "--field", is_flag=True, help="The clocks and thresholds of conf/anabranch.toml, not the demonstration's."
)
@click.option(
    "--demand",
    type=click.Choice(["clients", "generated"]),
    help="Real producers and consumers with segments in Kafka, or made-up load samples. Default: clients; generated "
    "with --field or settings of your own, or without the package anabranch-client.",
)
@click.option(
    "--pulsar",
    is_flag=True,
    help="A real Pulsar 5 with its own client's load and the collector, instead of our controller and made-up traffic.",
)
@click.option(
    "--shadow", is_flag=True, help="With --pulsar: Pulsar's own scaler acts, ours only decides; a report compares them."
)
@click.option(
    "--without",
    multiple=True,
    type=click.Choice(["controller", "collector", "job", "executor", "traffic", "alerts", "page"]),
    help="Leave a part out, to run it yourself.",
)
@click.pass_obj
def run_command(
    context: Context,
    is_local: bool,
    seconds: float | None,
    report_file: Path | None,
    no_screen: bool,
    field: bool,
    demand: str | None,
    pulsar: bool,
    shadow: bool,
    without: tuple[str, ...],
) -> None:
    """Run Kafka, controller, traffic, job, executor and page on this machine until Ctrl-C.

    \b
    Settings of your own (-c) replace conf/demonstration.toml and conf/story.toml: name those first to keep them.
    State is kept: the next run goes on where this one ended; `anabranch local reset` forgets it. Ctrl-C ends it
    cleanly, a second Ctrl-C at once. The first run fetches the jars (once; about a minute). State and logs are in
    var; --pulsar has var/with-pulsar, and without -c --field and --demand generated have var/with-generated. Exit code
    1 when a part was not running at the end.
    """
    if not is_local:
        raise click.UsageError(
            "say --local; on a cluster run `anabranch serve stream`, `executor` and `controller` themselves"
        )
    if shadow and not pulsar:
        raise click.UsageError("--shadow is for --pulsar: our own controller has no scaler of its own")
    if demand and (pulsar or (field and demand == "clients")):
        raise click.UsageError(
            f"--demand {demand} is not for {'--pulsar' if pulsar else '--field'}: leave one of them out"
        )
    has_own = bool(context.own)
    demand = demand or _usual_demand(pulsar or field or has_own)
    context.extra += _layers(demand == "clients", field, pulsar, has_own)
    settings = context.settings
    from anabranch.local.local_run import LocalRun
    from anabranch.local.supervisor import lock_folder
    from runtime.java_home import SetupError

    if report_file is not None and not report_file.absolute().parent.is_dir():
        raise click.UsageError(f"--report {report_file}: there is no folder {report_file.absolute().parent}; make it")
    screen = sys.stdout.isatty() and not no_screen and seconds is None
    start_logging("run", "warning", "text")
    run = LocalRun(
        settings,
        context.files,
        without,
        context.log_level,
        context.log_format,
        lambda line: click.echo(line, err=True),
        pulsar=pulsar,
        shadow=shadow,
    )
    _stop_on_signals(run.stop, run.at_once)
    try:
        with lock_folder(run.folder):
            # A shadow is run for its comparison, which takes in what is still in Kafka as the report does.
            report = _follow_run(run, seconds, screen, wants_report=report_file is not None or not screen or shadow)
    except SetupError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"{error}: is the disk full, or not writable?") from error
    if report is not None:
        _write_report(report, report_file)
        if shadow:
            _compare_sides(run)
    if unhealthy := [f"{state.name} ({state.detail or state.state})" for state in run.unhealthy_at_end]:
        raise click.ClickException(f"not running at the end: {', '.join(unhealthy)}; see the logs in {run.folder}/log")


def _usual_demand(has_other_settings: bool) -> str:
    """Return the demand of a run that is not asked for one."""
    from anabranch.local.setup import has_client_package

    if has_other_settings:
        return "generated"
    if has_client_package():
        return "clients"
    click.echo(
        "the load is made up: real clients need the package anabranch-client (pip install ./clients/python)", err=True
    )
    return "generated"


def _layers(clients: bool, field: bool, pulsar: bool, has_own: bool) -> list[Path]:
    """Return the settings files of a run, below its own."""
    if clients:
        return [LOCAL, DEMONSTRATION, STORY, WITH_CLIENTS]
    clocks = [] if field or has_own else [DEMONSTRATION] if pulsar else [DEMONSTRATION, STORY]
    folders = [WITH_PULSAR] if pulsar else [] if has_own else [WITH_GENERATED]
    return [LOCAL, *clocks, *folders]


def _follow_run(run: Any, seconds: float | None, screen: bool, wants_report: bool) -> dict[str, Any] | None:
    try:
        run.start()
        if seconds is not None:
            clock = threading.Timer(seconds, run.stop.set)
            clock.daemon = True
            clock.start()
        if screen:
            _watch_with_screen(run)
        else:
            if not run.stop.is_set():
                click.echo(f"running; logs in {run.folder}/log, Ctrl-C ends it", err=True)
            run.watch()
    finally:
        report: dict[str, Any] | None = run.finish(wants_report)
    return report


def _watch_with_screen(run: Any) -> None:
    """Watch the run while another thread draws: parts die with the thread that started them, this one."""
    from anabranch.local.screen import run_screen

    start_logging("run", "info", "text", run.folder / "log" / "run.log")
    drawer = threading.Thread(target=run_screen, args=(run.settings, run.states, run.stop), name="screen", daemon=True)
    drawer.start()
    run.watch()
    drawer.join(5)


def _write_report(report: dict[str, Any], file: Path | None) -> None:
    from anabranch.local.report import report_text

    if file is not None:
        file.write_text(json.dumps(report, indent=2) + "\n")
    click.echo(report_text(report))


def _compare_sides(run: Any) -> None:
    """Both sides since the start of the run, as text and as a page."""
    from anabranch.cli.commands.shadow import compare_sides

    page = run.folder / "shadow.html"
    since = {"since": run.started_at}
    click.echo()
    with contextlib.suppress(click.ClickException):
        click.get_current_context().invoke(compare_sides, **since, output="text")
        click.get_current_context().invoke(compare_sides, **since, output="html", file=page)


def _stop_on_signals(stop: threading.Event, at_once: threading.Event) -> None:
    def on_signal(*_: object) -> None:
        if stop.is_set():
            at_once.set()
        stop.set()

    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, on_signal)
