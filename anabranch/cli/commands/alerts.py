"""`anabranch serve alerts`: rules on the lake, evaluated as it grows, and told to people.

No Spark, no JVM.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anabranch.cli.context import Context
from anabranch.cli.exits import Unreachable, failing_on
from anabranch.cli.instants import INSTANT
from anabranch.cli.reports import reading_lake
from schemas.printable import printable

if TYPE_CHECKING:
    from anabranch.alerts.rules import Rules
    from anabranch.alerts.states import Alert

_OUTPUT = click.option("--output", type=click.Choice(["text", "json"]), default="text", show_default=True)


@click.group("alerts", invoke_without_command=True)
@click.option("--once", is_flag=True, help="Evaluate all rules once, tell what changed, and end.")
@click.pass_context
def alerts_command(ctx: click.Context, once: bool) -> None:
    """Evaluate the alert rules until told to stop (Ctrl-C, SIGTERM).

    \b
    Asks the lake ([lake] path) by the rules of [alerts] rules, and tells Alertmanager, Slack, webhooks or the log.
    What every alert came to is in the table alerts, and gone on from after a restart: it may be killed at any moment.
    One at a time: a second one takes over, and the first one ends. How rules are written: docs/alerts.md.
    """
    if ctx.invoked_subcommand is not None:
        return
    context: Context = ctx.obj
    context.start_logging("alerts")
    from anabranch.alerts.process import evaluate_alerts
    from runtime.telemetry.serving import MetricsError

    with _errors(context), failing_on(MetricsError):
        evaluator = evaluate_alerts(context.settings, click.echo, once=once)
    if once and (shortfall := evaluator.shortfall):
        raise click.ClickException(shortfall)


@alerts_command.command("list")
@click.option("--all", "everything", is_flag=True, help="What is over too, and what was told to whom.")
@_OUTPUT
@click.pass_obj
def list_alerts(context: Context, everything: bool, output: str) -> None:
    """Show the alerts that fire or are pending."""
    from anabranch.alerts.record import live_alerts, recorded_alerts

    with _errors(context):
        rows = recorded_alerts(context.settings.lake_path)
    if everything:
        shown: list[dict[str, Any]] = [
            {name: value for name, value in row.items() if name != "day" and value is not None} for row in rows
        ]
    else:
        shown = [_shown(alert) for alert in live_alerts(rows)]
    if output == "json":
        click.echo(json.dumps(shown, default=_said))
        return
    for row in shown:
        notice = f" -> {row['destination']} ({row['notice']})" if "destination" in row else ""
        since = row.get("at") or row["since"]
        click.echo(printable(f"{_said(since)}  {row['status']:<8}  {row['alert']}{notice}: {row['summary']}"))
    if not shown:
        click.echo("no alerts on record" if everything else "no alert fires or is pending")


@alerts_command.command("check")
@_OUTPUT
@click.pass_obj
def check_rules(context: Context, output: str) -> None:
    """Check the file of rules, every rule's statement on the lake, and the destinations' secrets.

    Nothing is sent.

    Exit code 1: something is wrong; 3: the lake cannot be read.
    """
    from anabranch.alerts.asking import AskError, Asking, LakeUnreadable
    from anabranch.alerts.evaluator import utc_now
    from anabranch.alerts.process import notifiers_of

    problems = {}
    with _errors(context):
        rules = _read_rules(context)
        notifiers_of(rules)
        asking = Asking(context.settings.lake_path, utc_now())
        for rule in rules.rules:
            try:
                asking.matches(rule)
            except LakeUnreadable:
                raise
            except AskError as error:
                problems[rule.name] = str(error)
    if output == "json":
        click.echo(json.dumps({"rules": len(rules.rules), "problems": problems}))
    else:
        for name, problem in problems.items():
            click.echo(printable(f"{name}: {problem}"))
        destinations = ", ".join(rules.destinations) or "nobody"
        click.echo(f"{len(rules.rules)} rules, {len(problems)} of them wrong; told to {destinations}")
    if problems:
        raise click.exceptions.Exit(1)


@alerts_command.command("test")
@click.argument("rule", metavar="RULE")
@click.option(
    "--at", "at", type=INSTANT, metavar="TIME", help="As 14:05, 2026-11-22T14:05:00Z or '2h ago', UTC; without it, now."
)
@_OUTPUT
@click.pass_obj
def test_rule(context: Context, rule: str, at: datetime | None, output: str) -> None:
    """Say what RULE would have said at a time, from rows as they were on record then.

    Nothing is sent or recorded.

    Exit code 0: nothing; 1: it would have fired.
    """
    from anabranch.alerts.asking import rehearse
    from anabranch.alerts.evaluator import utc_now

    now, lake = at or utc_now(), context.settings.lake_path
    with _errors(context):
        rules = _read_rules(context)
        if (chosen := next((candidate for candidate in rules.rules if candidate.name == rule), None)) is None:
            names = ", ".join(candidate.name for candidate in rules.rules)
            raise click.UsageError(f"no rule is called {rule!r}; there are: {names}")
        alerts = rehearse(lake, chosen, rules.interval_seconds(lake), now)
    if output == "json":
        shown = [_shown(alert) for alert in alerts]
        click.echo(json.dumps({"rule": rule, "at": _said(now), "alerts": shown}, default=_said))
    else:
        for alert in alerts:
            ago = f", for {(now - alert.since).total_seconds():.0f} s" if chosen.for_ else ""
            click.echo(printable(f"{alert.status}{ago}: {alert.summary}"))
        if not alerts:
            click.echo(f"{rule} says nothing at {_said(now)}")
    if any(alert.status == "firing" for alert in alerts):
        raise click.exceptions.Exit(1)


def _shown(alert: Alert) -> dict[str, Any]:
    return {
        "status": alert.status,
        "alert": alert.rule,
        "since": alert.since,
        "value": alert.value,
        "labels": dict(alert.labels),
        "summary": alert.summary,
    }


def _read_rules(context: Context) -> Rules:
    from anabranch.alerts.rules import read_rules

    return read_rules(Path(context.settings.path(context.settings.alerts.rules)))


@contextmanager
def _errors(context: Context) -> Iterator[None]:
    from anabranch.alerts.asking import AskError, LakeUnreadable
    from lake.lease import LeaseLost

    with reading_lake(context.settings.lake_path, LeaseLost, AskError, action="used"):
        try:
            yield
        except LakeUnreadable as error:
            raise Unreachable(printable(str(error).partition("\n")[0])) from error


def _said(value: object) -> str:
    return value.strftime("%Y-%m-%dT%H:%M:%SZ") if isinstance(value, datetime) else str(value)
