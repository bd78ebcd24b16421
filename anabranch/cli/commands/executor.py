"""`anabranch serve executor`, and `anabranch decisions waiting`, `pause` and `resume`."""

import json
from datetime import datetime, timezone

import click

from anabranch.cli.braking import lake_errors, with_reason_and_actor
from anabranch.cli.connection import encodable_text, policy_subject
from anabranch.cli.context import Context
from anabranch.cli.exits import failing_on
from anabranch.cli.instants import DURATION
from schemas.printable import printable


@click.group("executor", invoke_without_command=True)
@click.option(
    "--mode", type=click.Choice(["act", "approve", "observe"]), help="Instead of [executor] mode of the settings."
)
@click.pass_context
def executor_command(ctx: click.Context, mode: str | None) -> None:
    """Apply decisions until told to stop (Ctrl-C, SIGTERM: running calls get a few seconds to end).

    \b
    Tails the table decisions of [lake] path, calls the admin REST interface at [controller] url, writes the table
    outcomes and tells Kafka ([kafka] bootstrap). May be killed and started again at any moment: it finishes what it
    began and does nothing twice. Several share the topics, or stand by.
    With --mode approve a decision waits for anabranch decisions approve; with --mode observe it writes what it would
    do, and touches nothing. `anabranch decisions pause` holds an executor wherever it runs: pauses are in the lake.
    """
    if ctx.invoked_subcommand is not None:
        return
    context: Context = ctx.obj
    context.start_logging("executor")
    settings = context.settings
    if mode is not None:
        settings = settings.model_copy(update={"executor": settings.executor.model_copy(update={"mode": mode})})
    from anabranch.executor.process import ExecutorStartError, run_executor
    from lake.lease import LeaseLost

    with failing_on(ExecutorStartError, LeaseLost):
        run_executor(settings, click.echo)


def _scope(value: str) -> str:
    """A name without a slash is that of a cluster (family `bundles`)."""
    if value in ("all", "*"):
        return "*"
    return policy_subject(value) if "/" in value else encodable_text(value)


def _name(subject: str) -> str:
    return "everything" if subject == "*" else printable(subject)


def _until(end: datetime | None) -> str:
    from anabranch.safeguards.commands import instant

    return "until it is resumed" if end is None else f"until {instant(end)}"


@executor_command.command("pause", hidden=True)
@click.argument("scope", type=_scope, metavar="TOPIC|NAMESPACE|CLUSTER|all")
@click.option("--for", "duration", type=DURATION, metavar="DURATION", help="Ends by itself after 90s, 2m, 1h, 3d.")
@click.option("--force", is_flag=True, help="Also a name that is on no record yet.")
@with_reason_and_actor
@click.pass_obj
def pause_scope(context: Context, scope: str, duration: float | None, force: bool, reason: str, by: str) -> None:
    """Have no call made for TOPIC, NAMESPACE (tenant/namespace), CLUSTER or all, until it is resumed.

    Decisions wait, and are decided again when that takes too long; a call that is out is finished. A newer pause of the
    same replaces the older one.
    """
    from anabranch.safeguards import commands as acting

    with lake_errors(context) as lake:
        try:
            act, replaced = acting.pause(lake, scope, duration, reason, by, force)
        except acting.UnknownScope as error:
            raise click.ClickException(f"{printable(str(error))}. To pause it all the same: --force") from error
    click.echo(f"paused {_name(scope)} {_until(act.until)}")
    for before in replaced:
        click.echo(f"this replaces the pause {printable(str(before))}")


@executor_command.command("resume", hidden=True)
@click.argument("scope", type=_scope, metavar="TOPIC|NAMESPACE|CLUSTER|all")
@with_reason_and_actor
@click.pass_obj
def resume_scope(context: Context, scope: str, reason: str, by: str) -> None:
    """End the pause of TOPIC, NAMESPACE, CLUSTER or all; of all also a stop after too many failures.

    Each pause is ended by its own name: resume all does not end the pause of a namespace.
    """
    from anabranch.safeguards import commands as acting
    from lake.brakes import ActRefused

    with lake_errors(context) as lake:
        try:
            ended = acting.resume(lake, scope, reason, by)
        except ActRefused as error:
            raise click.ClickException(printable(str(error))) from error
    for act in ended:
        click.echo(f"ended the {act.kind} of {_name(scope)} {printable(str(act))}")


@executor_command.command("status", hidden=True)
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.pass_obj
def show_waiting(context: Context, output: str) -> None:
    """Show which executors act on what, what holds them, and which decisions wait for what.

    Pauses, stops, approvals, counts and waiting decisions are those of the lake; mode, limits and windows those of the
    settings of this command: give it the executor's --config.
    """
    from anabranch.cli.brake_report import brake_report, format_report

    with lake_errors(context) as lake:
        report = brake_report(lake, context.settings.executor, datetime.now(timezone.utc))
    click.echo(json.dumps(report, indent=2) if output == "json" else format_report(report))
