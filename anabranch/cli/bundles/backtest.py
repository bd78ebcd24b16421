"""`anabranch whatif backtest --family bundles`: backtest of balancers on a cluster's recorded demand.

The report is text, JSON or a page.
"""

import json
from collections.abc import Sequence
from datetime import datetime

import click

from anabranch.cli.bundles.simulation import settings_of, table_text
from anabranch.cli.reports import counting
from anabranch.query.wording import instant
from anabranch.simulation.bundles.backtest import WITHIN, Backtested, backtest
from anabranch.simulation.bundles.events import clusters_on_record, read
from anabranch.simulation.bundles.recorded import NoRecord
from decisions.bundles.configuration import ConfigurationError
from schemas.printable import printable


def backtest_report(
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
        clusters = clusters_on_record(lake)
        if len(clusters) != 1:
            advice = (
                f"choose one of {printable(', '.join(clusters[:20]))}"
                if clusters
                else f"no cluster is on record in {lake}"
            )
            raise click.UsageError(f"--cluster is missing: {advice}")
        (cluster,) = clusters
    recorded = read(lake, cluster, since, until)
    try:
        results = backtest(
            cluster, recorded, list(dict.fromkeys(policies)), settings_of(settings), counting("balancers")
        )
    except ConfigurationError as error:
        raise click.BadParameter(printable(str(error)), param_hint="--policy or --set") from None
    except NoRecord as error:
        more = "; the extensible manager's reports name the busiest bundles only" if recorded.partial else ""
        raise click.ClickException(printable(f"{cluster}: {error}{more}")) from None
    fleet = results.recorded.fleet
    about = (
        f"{cluster}: {len(fleet.brokers)} brokers, {len(fleet.bundles):,} bundles, "
        f"{instant(results.recorded.began_at)} and {fleet.minutes:,} minutes from there"
    )
    notes = [_agreement_note(results), _fit_note(results)]
    if results.recorded.split:
        notes.append(f"{results.recorded.split} bundles were split meanwhile: they are their parts from the beginning")
    if recorded.policies_changed:
        notes.append("the balancer's settings changed meanwhile: the policy that ran is the last")
    if recorded.policies is None:
        notes.append("what the balancer was told is not on record: the policy that ran is taken for 4.x's defaults")
    if output == "html":
        from anabranch.simulation.bundles.page import page

        return page(results.rows, "; ".join([about, *notes])), about
    if output == "json":
        return json.dumps({"family": "bundles", "cluster": cluster, "notes": notes, **results.to_json()}) + "\n", about
    return "\n".join([printable(about), *table_text(results.rows), "", *notes]) + "\n", about


def _agreement_note(results: Backtested) -> str:
    if not results.moved:
        return "policy that ran, against the record: nothing was moved on record"
    return (
        f"policy that ran, against the record: of {results.moved:,} moves {results.matched:,} were made again within "
        f"{WITHIN} minutes, {results.same_way:,} of them to the same broker"
    )


def _fit_note(results: Backtested) -> str:
    """Return a note on the data: share of minutes reported, and the error of the CPU model."""
    return (
        f"reports held in {results.recorded.known:.1%} of the minutes of bundles; CPU by a line for each broker, "
        f"{results.recorded.cpu_error:.1f} points off on average"
    )
