"""`anabranch bookies check`: check the invariants against the clusters and the recorded steps.

It names the invariants that cannot be observed.
"""

import json
from concurrent.futures import ThreadPoolExecutor

import click

from anabranch.bookkeeper.process import SidecarLost
from anabranch.bookkeeper.record import read_before, read_steps, steps_taken, subject_of
from anabranch.bookkeeper.registry import Registry
from anabranch.bookkeeper.sidecar import LedgerRefused
from anabranch.cli.bookies.clusters import Bookies
from decisions.bookkeeper.decide import decide
from decisions.bookkeeper.seen import BookieView
from schemas.bookie_answers import Violation
from schemas.bookies import BookieSnapshot
from schemas.printable import printable


def check_invariants(bookies: Bookies, contents: bool, output: str) -> None:
    """Print the violations; `contents` also reads every entry. Exit code 1 if there are any."""
    registry = bookies.store.read()
    snapshot = bookies.reader.read_snapshot("check", "whole", None, bookies.progress(registry), registry)
    if registry.directive is not None:
        subject = subject_of(bookies.settings.bookies.cluster, registry.directive)
        steps, before = steps_taken(read_steps(bookies.lake, subject)), read_before(bookies.lake, subject)
        snapshot = snapshot.model_copy(update={"steps": steps, "before": before})
    answer = decide(snapshot)
    violations = [*answer.violations, *(_content_violations(bookies, snapshot, registry) if contents else ())]
    if output == "json":
        click.echo(json.dumps([violation.model_dump(mode="json", by_alias=True) for violation in violations]))
    else:
        for violation in violations:
            click.echo(printable(f"{violation.invariant} does not hold: {violation.object}: {violation.detail}"))
    for name, why in answer.unseen.items():
        click.echo(printable(f"{name} is not checked: {why}"), err=output == "json")
    if violations:
        raise click.ClickException(f"{len(violations)} violations")
    if output == "text":
        records = len(snapshot.schemas) + len(snapshot.cursors) + len(snapshot.topics)
        counted = sum(snapshot.data_ledgers.values())
        unchecked = f"; not checked: {', '.join(answer.unseen)}" if answer.unseen else ""
        click.echo(f"{records:,} records and their ledgers, {counted:,} data ledgers: all in order{unchecked}")


def _content_violations(bookies: Bookies, snapshot: BookieSnapshot, registry: Registry) -> list[Violation]:
    """Read schema and cursor ledgers where they are attributed; report unreadable and changed ones."""
    sidecar, seen = bookies.sidecar(registry), BookieView(snapshot)
    digests = {verified.ledger: verified.sha256 for verified in seen.progress.verified}
    wanted = {
        (str(item.cluster), item.ledger, item.object)
        for item in seen.items
        if item.kind != "data" and item.cluster is not None and item.ledger >= 0
    }

    def read(ledger_on_cluster: tuple[str, int, str]) -> Violation | None:
        cluster, ledger, subject = ledger_on_cluster
        try:
            checked = sidecar.verify(cluster, cluster, ledger)
        except (LedgerRefused, SidecarLost) as error:
            return Violation(invariant="I2", object=subject, detail=f"ledger {ledger} on {cluster}: {error}")
        expected = digests.get(ledger)
        if expected and checked.sha256 != expected:
            return Violation(invariant="I8", object=subject, detail=f"ledger {ledger} on {cluster} has other contents")
        return None

    with ThreadPoolExecutor(bookies.settings.bookies.migration_concurrency) as pool:
        return [violation for violation in pool.map(read, sorted(wanted)) if violation is not None]
