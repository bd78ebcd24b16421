"""`anabranch bookies`: switch a broker cluster to another BookKeeper cluster, on record (PIP-477)."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from anabranch.cli.context import Context
from schemas.printable import printable

if TYPE_CHECKING:
    from anabranch.cli.bookies.clusters import Bookies
    from schemas.bookie_answers import BookieAnswer
    from schemas.bookies import Operation, Request


@click.group("bookies")
def bookies_command() -> None:
    """Move a broker cluster to another BookKeeper cluster, step by step and on record (PIP-477).

    \b
    1  register --name old …; register --name new …    the clusters, the first is ACTIVE
    2  precheck --name new                             whether its ledger ids are free
    3  switch --target new                             what would be done; --no-dry-run does it
    4  status                                          how far it is, what failed, what to do next
    5  check                                           the invariants, over all records and ledgers
    6  cleanup, or rollback                            the old copies go, or everything goes back

    Ledgers of schemas and subscriptions are copied under their ids and attributed to the new cluster. Those of topics'
    messages are never copied: they are read where they are until they age out, which takes brokers with PIP-477. A
    broker of today that is pointed at the new cluster REMOVES the data ledgers that it does not find (docs/bookies.md).
    """


def with_cluster_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command `--metadata`, `--brokers` and `--output`, and call it with what they open."""

    @functools.wraps(function)
    def run(context: Context, metadata: str | None, brokers: str | None, output: str, **arguments: Any) -> None:
        from anabranch.cli.bookies.clusters import opened_bookies

        with opened_bookies(context, metadata, brokers) as bookies:
            function(bookies=bookies, output=output, **arguments)

    metadata = click.option(
        "--metadata", metavar="HOST:PORT,…", help="Pulsar's metadata store, instead of [bookies] metadata."
    )
    brokers = click.option(
        "--brokers",
        type=click.Choice(["stock", "attribution", "stopped"]),
        help="What the brokers do, instead of [bookies] brokers: know one cluster only, go by attributions "
        "(PIP-477), or are stopped.",
    )
    output = click.option("--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
    passed: Callable[..., None] = click.pass_obj(run)
    return metadata(brokers(output(passed)))


@bookies_command.command("list")
@with_cluster_options
def list_clusters(bookies: Bookies, output: str) -> None:
    """List the registered BookKeeper clusters, and whether they can be reached."""
    from decisions.bookkeeper.decide import decide

    snapshot = bookies.read_snapshot("status", "ids")
    if output == "json":
        click.echo(json.dumps([cluster.model_dump(mode="json", by_alias=True) for cluster in snapshot.clusters]))
        return
    for cluster in sorted(snapshot.clusters, key=lambda cluster: (cluster.status, cluster.name)):
        ids = snapshot.generators[cluster.name]
        state = (
            f"next id {ids.short if ids.long is None else ids.long:,}" if ids.reachable else printable(ids.error or "")
        )
        click.echo(
            f"{cluster.status:10}  {printable(cluster.name)}  {printable(cluster.metadata_service_uri)}  {state}"
        )
    if not snapshot.clusters:
        click.echo(f"no cluster is registered ({decide(snapshot).phase}): anabranch bookies register", err=True)


@bookies_command.command("register")
@click.option("--name", required=True, help="Of the BookKeeper cluster; what is attributed to it carries this name.")
@click.option("--metadata-service-uri", metavar="URI", help="zk+hierarchical://HOST:PORT/ledgers")
@click.option("--status", type=click.Choice(["ACTIVE", "STANDBY", "DEPRECATED"]), help="The first one is ACTIVE.")
@click.option("--dry-run", is_flag=True, help="Say only what would be registered, or why not.")
@with_cluster_options
def register_cluster(
    bookies: Bookies, output: str, name: str, metadata_service_uri: str | None, status: str | None, dry_run: bool
) -> None:
    """Register a BookKeeper cluster: first the one that brokers use, as ACTIVE; others are STANDBY."""
    from schemas.bookies import Request

    request = Request(name=name, metadata_service_uri=metadata_service_uri, status=status)  # type: ignore[arg-type]
    _write_registry(bookies, "register", request, output, f"{printable(name)} is registered", dry_run)


@bookies_command.command("unregister")
@click.option("--name", required=True)
@click.option("--dry-run", is_flag=True, help="Say only whether it could be forgotten, or why not.")
@with_cluster_options
def unregister_cluster(bookies: Bookies, output: str, name: str, dry_run: bool) -> None:
    """Forget a cluster that nothing on record is attributed to any more."""
    from schemas.bookies import Request

    done = f"{printable(name)} is not registered any more"
    _write_registry(bookies, "unregister", Request(name=name), output, done, dry_run)


@bookies_command.command("precheck")
@click.option("--name", required=True, help="The cluster to switch to.")
@click.option(
    "--advance", is_flag=True, help="Raise the target's next ledger id beyond all of the source. Writes there."
)
@click.option("--dry-run", is_flag=True, help="With --advance: say only to which id it would be raised.")
@with_cluster_options
def precheck_cluster(bookies: Bookies, output: str, name: str, advance: bool, dry_run: bool) -> None:
    """Say whether a cluster can be switched to.

    It has to be reachable, and its next ledger id beyond every id of the ACTIVE cluster.

    Both generators of ids are looked at, and all ledgers. With --advance the target's next id is raised, which running
    clients obey at once; what has written to the target before keeps to short ids until it is restarted.
    """
    from decisions.bookkeeper.decide import decide
    from schemas.bookies import Request

    snapshot = bookies.read_snapshot("precheck", "ids", Request(target=name))
    answer = decide(snapshot)
    checked = answer.precheck
    if advance and answer.gate != "instance-id" and checked is not None and checked.source_max_ledger_id is not None:
        [uri] = [cluster.metadata_service_uri for cluster in snapshot.clusters if cluster.name == name]
        # The next upper half: what the source still makes until then stays far below.
        used = max(checked.source_max_ledger_id, checked.source_next_ledger_id or 0, 0) | 0xFFFF_FFFF
        if dry_run:
            click.echo(f"the next id of {printable(name)} would be beyond {used}; nothing was written", err=True)
            return
        bookies.ids(uri).advance(used)
        click.echo(f"{printable(name)}: the next id is raised; restart what has written to it before", err=True)
        answer = decide(bookies.read_snapshot("precheck", "ids", Request(target=name)))
        checked = answer.precheck
    if checked is not None and output == "text" and checked.target_next_ledger_id is not None:
        click.echo(
            f"{printable(checked.source_cluster_name or '?')} has used ids up to {checked.source_max_ledger_id}, "
            f"{printable(name)} gives ids from {checked.target_next_ledger_id} on"
        )
    _print_answer(answer, output, f"{printable(name)} is ready")


@bookies_command.command("switch")
@click.option("--target", required=True, metavar="NAME")
@click.option("--dry-run/--no-dry-run", default=True, show_default=True, help="Say only what would be done.")
@with_cluster_options
def switch_cluster(bookies: Bookies, output: str, target: str, dry_run: bool) -> None:
    """Make NAME the ACTIVE cluster, and copy the ledgers of schemas and subscriptions there.

    The copies are then attributed to NAME.

    The command may be stopped and killed at any moment; run again, it goes on where it was and retries what failed.
    Started twice, the second one waits, and takes over when the first one is gone.
    """
    from anabranch.cli.bookies import switch as bookie_switch
    from schemas.bookies import Request

    request = Request(target=target, origin=_who(), dry_run=dry_run)
    if dry_run:
        bookie_switch.rehearse_switch(bookies, "switch", request, output)
    else:
        bookie_switch.carry_out(bookies, "switch", request, output)


@bookies_command.command("rollback")
@click.option("--dry-run/--no-dry-run", default=True, show_default=True, help="Say only what would be done, and lost.")
@click.option("--force", is_flag=True, help="Also when the window has passed.")
@click.option("--accept-loss", is_flag=True, help="Also when something stays behind.")
@with_cluster_options
def roll_back_switch(bookies: Bookies, output: str, dry_run: bool, force: bool, accept_loss: bool) -> None:
    """Attribute everything to the cluster before the last switch again.

    Ledgers written since then are copied back.
    """
    from anabranch.cli.bookies import switch as bookie_switch
    from schemas.bookies import Request

    request = Request(origin=_who(), dry_run=dry_run, force=force, accept_loss=accept_loss)
    if dry_run:
        bookie_switch.rehearse_switch(bookies, "rollback", request, output)
    else:
        bookie_switch.carry_out(bookies, "rollback", request, output)


@bookies_command.command("status")
@with_cluster_options
def show_status(bookies: Bookies, output: str) -> None:
    """Show the state of a switch: phase, remaining work, failed ledgers with reasons, and the next step."""
    from anabranch.cli.bookies.report import status_text
    from decisions.bookkeeper.decide import decide

    snapshot = bookies.read_snapshot("status", "whole")
    answer, held = decide(snapshot), bookies.term().holder()
    if output == "json":
        holder = None if held is None else {"holder": held.holder, "term": held.term}
        click.echo(json.dumps({**json.loads(_json(answer)), "orchestrator": holder}))
        return
    click.echo(status_text(snapshot, answer, held))


@bookies_command.command("cleanup")
@click.option("--dry-run/--no-dry-run", default=True, show_default=True, help="Say only what would be deleted.")
@click.option("--src-cluster", metavar="NAME", help="Delete from this cluster, instead of the last switch's source.")
@click.option("--max-deletions", type=click.IntRange(min=0), default=0, show_default=True, help="0 = all.")
@click.option("--force", is_flag=True, help="Before the window has passed. What a record names is never deleted.")
@with_cluster_options
def clean_up_copies(
    bookies: Bookies, output: str, dry_run: bool, src_cluster: str | None, max_deletions: int, force: bool
) -> None:
    """Delete the old copies of ledgers whose every record leads to an equal copy elsewhere.

    The copies are compared again first.
    """
    from anabranch.cli.bookies import switch as bookie_switch
    from schemas.bookies import Request

    request = Request(dry_run=dry_run, src_cluster_filter=src_cluster, max_deletions=max_deletions, force=force)
    bookie_switch.clean_up(bookies, request, output)


@bookies_command.command("check")
@click.option("--contents", is_flag=True, help="Read every entry of the ledgers of schemas and subscriptions, too.")
@with_cluster_options
def check_invariants(bookies: Bookies, output: str, contents: bool) -> None:
    """Check the invariants I1 to I17 over all records and ledgers, and say which cannot be seen from here.

    Exit code 1 when one does not hold.
    """
    from anabranch.cli.bookies.check import check_invariants as run

    run(bookies, contents, output)


@bookies_command.command("history")
@click.option("--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.pass_obj
def show_history(context: Context, output: str) -> None:
    """Show all switches on record, phase by phase, and the ledgers that failed. Reads the lake only."""
    from anabranch.cli.bookies.report import history_json, history_text
    from anabranch.cli.reports import reading_lake
    from anabranch.history.switches import switches
    from anabranch.query.sql import SqlError

    with reading_lake(context.settings.lake_path, SqlError):
        recorded = switches(context.settings.lake_path)
    if output == "json":
        click.echo(json.dumps(history_json(recorded)))
        return
    click.echo(history_text(recorded) if recorded else "no switch is on record")


def _write_registry(
    bookies: Bookies, operation: Operation, request: Request, output: str, done: str, dry_run: bool
) -> None:
    from anabranch.bookkeeper.metadata import MetadataChanged
    from decisions.bookkeeper.decide import decide

    registry = bookies.store.read()
    depth = "whole" if operation == "unregister" else "identity"
    snapshot = bookies.reader.read_snapshot(operation, depth, request, bookies.progress(registry), registry)  # type: ignore[arg-type]
    answer = decide(snapshot)
    if answer.code == 200 and dry_run:
        done = "it would be done; nothing was written"
    elif answer.code == 200 and answer.action != "done":
        try:
            bookies.store.write(answer, registry)
        except MetadataChanged as error:
            raise click.ClickException("the registry has changed meanwhile: run the command again") from error
    _print_answer(answer, output, done)


def _print_answer(answer: BookieAnswer, output: str, done: str) -> None:
    if output == "json":
        click.echo(_json(answer))
    elif answer.code == 200 and answer.gate is None:
        click.echo(done if answer.reason is None else printable(answer.reason))
    if answer.code != 200 or answer.gate is not None:
        raise click.ClickException(f"{answer.gate}: {printable(answer.reason or '')}")


def _json(answer: BookieAnswer) -> str:
    return answer.model_dump_json(by_alias=True, exclude_none=True)


def _who() -> str:
    from anabranch.safeguards.commands import whoami

    return whoami()
