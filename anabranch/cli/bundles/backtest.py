"""`anabranch backtest --family bundles`: backtest of balancers on a cluster's recorded demand.

The report is text, JSON or a page.

Stage: under the command `backtest`, which reads the options.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import datetime

import click

from anabranch.cli.bundles.simulation import settings_of, table_text
from anabranch.query.wording import instant
from anabranch.simulation.bundles.backtest import WITHIN, Backtested, backtest
from anabranch.simulation.bundles.events import clusters_on_record, read
from anabranch.simulation.bundles.recorded import NoRecord
from decisions.bundles.configuration import ConfigurationError
from schemas.printable import printable


def report(
    lake: str,
    cluster: str | None,
    policies: Sequence[str],
    settings: Sequence[str],
    since: datetime | None,
    until: datetime | None,
    output: str,
) -> tuple[str, str]:
    """The report and a line about it. Raises click's errors, and what Delta raises."""
    if cluster is None:
        known = clusters_on_record(lake)
        if len(known) != 1:
            said = (
                f"choose one of {printable(', '.join(known[:20]))}" if known else f"no cluster is on record in {lake}"
            )
            raise click.UsageError(f"--cluster is missing: {said}")
        (cluster,) = known
    recorded = read(lake, cluster, since, until)
    try:
        found = backtest(cluster, recorded, list(dict.fromkeys(policies)), settings_of(settings), _tell)
    except ConfigurationError as error:
        raise click.BadParameter(printable(str(error)), param_hint="--policy or --set") from None
    except NoRecord as error:
        more = "; the extensible manager's reports name the busiest bundles only" if recorded.partial else ""
        raise click.ClickException(printable(f"{cluster}: {error}{more}")) from None
    fleet = found.recorded.fleet
    about = (
        f"{cluster}: {len(fleet.brokers)} brokers, {len(fleet.bundles):,} bundles, {instant(found.recorded.began_at)} "
        f"and {fleet.minutes:,} minutes from there"
    )
    notes = [_agreement(found), _model(found)]
    if found.recorded.split:
        notes.append(f"{found.recorded.split} bundles were split meanwhile: they are their parts from the beginning")
    if recorded.policies_changed:
        notes.append("the balancer's settings changed meanwhile: the policy that ran is the last")
    if recorded.policies is None:
        notes.append("what the balancer was told is not on record: the policy that ran is taken for 4.x's defaults")
    if output == "html":
        from anabranch.simulation.bundles.page import page

        return page(found.rows, "; ".join([about, *notes])), about
    if output == "json":
        return json.dumps({"family": "bundles", "cluster": cluster, "notes": notes, **found.to_json()}) + "\n", about
    return "\n".join([printable(about), *table_text(found.rows), "", *notes]) + "\n", about


def _agreement(found: Backtested) -> str:
    if not found.moved:
        return "policy that ran, against the record: nothing was moved on record"
    return (
        f"policy that ran, against the record: of {found.moved:,} moves {found.matched:,} were made again within "
        f"{WITHIN} minutes, {found.same_way:,} of them to the same broker"
    )


def _model(found: Backtested) -> str:
    return (
        f"reports held in {found.recorded.known:.1%} of the minutes of bundles; CPU by a line for each broker, "
        f"{found.recorded.cpu_error:.1f} points off on average"
    )


def _tell(done: int, total: int) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r{done} of {total} balancers", nl=done >= total, err=True)
