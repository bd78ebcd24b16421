"""`anabranch bookies switch`, `rollback`, `cleanup`: a rehearsal that writes nothing, or execution.

Stage: under `anabranch.cli.commands.bookies`, over `anabranch.bookkeeper.orchestrator`, which runs the steps.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import click

from anabranch.bookkeeper.guard import Unsafe
from anabranch.bookkeeper.metadata import MetadataChanged
from anabranch.bookkeeper.orchestrator import Progressed, SwitchOrchestrator
from anabranch.bookkeeper.registry import Registry
from anabranch.bookkeeper.sidecar import DELETES_WITHIN_S
from anabranch.bookkeeper.steps import Steps, TermLost
from anabranch.cli.bookies.report import MAX_LINES, shown_steps, status_text
from decisions.bookkeeper.decide import decide, plan_steps
from decisions.bookkeeper.gates import ledger_advice
from schemas.bookie_answers import BookieAnswer
from schemas.bookies import BookieSnapshot, Progress, Request
from schemas.printable import printable

if TYPE_CHECKING:
    from anabranch.bookkeeper.metadata import ZnodeWrite
    from anabranch.bookkeeper.term import SwitchTerm
    from anabranch.cli.bookies.clusters import Bookies

_SAY_SECONDS = 10.0
_TAKE_SECONDS = 0.5
Asked = Literal["switch", "rollback"]


def rehearse_switch(bookies: Bookies, operation: Asked, request: Request, output: str) -> None:
    """Print the steps that would be taken and their faults. Exit code 1: it would be refused."""
    snapshot = bookies.read_snapshot(operation, "whole", request)
    answer = decide(snapshot)
    planned = answer if operation == "rollback" else _plan_switch(snapshot, answer)
    refused = answer.gate is not None and answer.gate != "dry-run"
    if output == "json":
        shown = answer.model_copy(update={"steps": planned.steps, "failed_ledgers": planned.failed_ledgers})
        click.echo(shown.model_dump_json(by_alias=True, exclude_none=True))
    else:
        for line in _rehearsal(snapshot, answer, planned):
            click.echo(line)
    if refused and answer.code != 200:
        raise click.ClickException(f"{answer.gate}: {printable(answer.reason or '')}")
    click.echo("nothing was written; --no-dry-run does it" if not refused else printable(answer.reason or ""), err=True)


def carry_out(bookies: Bookies, operation: Asked, request: Request, output: str) -> None:
    """Request the operation and work until nothing is left. Exit code 1 if something failed."""
    with _term(bookies) as right, _progress_bar() as watch:
        orchestrator = _orchestrator(bookies, right.expectation, watch)
        with _stopped_by_signals(orchestrator):
            # Only who may act writes a directive, and when nothing of the one before is under way.
            registry, snapshot, answer = _read_request(bookies, operation, request)
            goes_on = answer.action == "retry" and not answer.failed_ledgers and not answer.not_promoted
            if answer.directive is not None and not goes_on:
                if _wait_for_deletions(right):
                    registry, snapshot, answer = _read_request(bookies, operation, request)
                try:
                    bookies.store.write(answer, registry, (right.expectation,))
                except MetadataChanged as error:
                    raise click.ClickException("the registry has changed meanwhile: run the command again") from error
            try:
                orchestrator.run(snapshot)
            except (TermLost, Unsafe) as error:
                raise click.ClickException(str(error)) from error
    assert orchestrator.seen is not None
    _print_end(orchestrator.seen, output)


def clean_up(bookies: Bookies, request: Request, output: str) -> None:
    """Print the deletions of a cleanup, or carry them out."""
    if request.dry_run:
        answer = decide(bookies.read_snapshot("cleanup", "whole", request))
        _cleanup_said(answer, output)
        return
    with _term(bookies) as right, _progress_bar() as watch:
        orchestrator = _orchestrator(bookies, right.expectation, watch)
        _wait_for_deletions(right)
        with _stopped_by_signals(orchestrator):
            try:
                answer, missed = orchestrator.cleanup(request, decide)
            except (TermLost, Unsafe) as error:
                raise click.ClickException(str(error)) from error
    _cleanup_said(answer, output)
    if missed:
        raise click.ClickException(f"{missed} ledgers were not deleted: 'anabranch bookies cleanup' says why")


def _plan_switch(snapshot: BookieSnapshot, answer: BookieAnswer) -> BookieAnswer:
    """Return the plan as if the directive were written and neither ids nor brokers were in the way."""
    if answer.directive is None:
        settings = snapshot.settings.model_copy(update={"skip_idgen_precheck": True})
        there = {"settings": settings, "routing": "stopped", "registered_brokers": None}
        answer = decide(snapshot.model_copy(update=there))
    directive = answer.directive
    if directive is None:
        return answer
    snapshot = snapshot.model_copy(update={"routing": "stopped", "registered_brokers": None})
    progress = snapshot.progress if answer.action == "retry" else Progress(epoch=directive.epoch)
    return plan_steps(
        snapshot.model_copy(
            update={
                "operation": "next",
                "clusters": answer.registry or snapshot.clusters,
                "directive": directive,
                "bootstrap": snapshot.bootstrap or answer.bootstrap,
                "progress": progress,
            }
        )
    )


def _rehearsal(snapshot: BookieSnapshot, answer: BookieAnswer, planned: BookieAnswer) -> Iterator[str]:
    source = next((step.source for step in planned.steps if step.source), "")
    target = next((step.target for step in planned.steps if step.target), "")
    precheck = answer.precheck
    if precheck is not None and precheck.target_next_ledger_id is not None:
        yield (
            f"ids: {printable(str(precheck.source_cluster_name))} has used up to {precheck.source_max_ledger_id}, "
            f"{printable(str(precheck.target_cluster_name))} gives from {precheck.target_next_ledger_id} on"
        )
    if answer.registry is not None:
        yield "registry: " + ", ".join(f"{printable(cluster.name)} {cluster.status}" for cluster in answer.registry)
    lengths = {ledger.id: ledger.length for ledger in snapshot.ledgers.get(source, ())}
    copied = [step.ledger for step in planned.steps if step.action == "copy" and step.ledger is not None]
    if planned.steps:
        yield f"steps, as everything is now ({sum(lengths.get(number, 0) for number in copied) / 1e6:,.1f} MB to copy):"
        yield from shown_steps(planned)
    if planned is not answer:
        for failing in planned.steps:
            if failing.action == "fail" and failing.ledger is not None:
                yield (
                    f"  would fail: ledger {failing.ledger} of {printable(failing.object)}: {printable(failing.reason)}"
                )
                yield f"    {printable(ledger_advice(failing.ledger, failing.reason, source, target))}"
    for loss in answer.losses:
        yield f"  would stay behind: {printable(loss.object)}: {printable(loss.detail)}"
    unknown = [attribution for attribution in planned.attributions if attribution.how == "corruption"]
    for item in unknown[:MAX_LINES]:
        yield f"  not known: ledger {item.ledger} of {printable(item.object)}: {printable(item.reason or '')}"
        yield f"    {printable(ledger_advice(item.ledger, item.reason or '', source, target))}"


def _cleanup_said(answer: BookieAnswer, output: str) -> None:
    if output == "json":
        click.echo(answer.model_dump_json(by_alias=True, exclude_none=True))
    else:
        for step in answer.steps:
            if step.action != "delete":
                click.echo(f"  kept: ledger {step.ledger} on {printable(str(step.source))}: {printable(step.reason)}")
        click.echo(f"{sum(step.action == 'delete' for step in answer.steps):,} old copies can go")
    if answer.gate is not None and answer.gate != "dry-run":
        raise click.ClickException(f"{answer.gate}: {printable(answer.reason or '')}")
    if answer.gate == "dry-run":
        click.echo("nothing was deleted; --no-dry-run does it", err=True)


def _print_end(seen: BookieSnapshot, output: str) -> None:
    snapshot = seen.model_copy(update={"operation": "status", "request": Request()})
    answer = decide(snapshot)
    directive = snapshot.directive
    if output == "json":
        click.echo(answer.model_dump_json(by_alias=True, exclude_none=True))
    else:
        click.echo(status_text(snapshot, answer, None))
    left = len(answer.failed_ledgers) + len(answer.not_promoted) + answer.counts.get("notKnown", 0)
    if directive is not None and left:
        raise click.ClickException(f"{left} were not moved: 'anabranch bookies status' says why, and what to do")


def _orchestrator(bookies: Bookies, term: ZnodeWrite, watch: Any) -> SwitchOrchestrator:
    def steps(registry: Registry) -> Steps:
        return Steps(bookies.store, bookies.metadata, bookies.sidecar(registry), term, bookies.guard, bookies.owners())

    chosen = bookies.settings.bookies
    return SwitchOrchestrator(bookies.reader, steps, bookies.lake, bookies.name, chosen.migration_concurrency, watch)


def _read_request(
    bookies: Bookies, operation: Asked, request: Request
) -> tuple[Registry, BookieSnapshot, BookieAnswer]:
    registry = bookies.store.read()
    snapshot = bookies.reader.read_snapshot(operation, "whole", request, bookies.progress(registry), registry)
    answer = decide(snapshot)
    if answer.code != 200:
        raise click.ClickException(f"{answer.gate}: {printable(answer.reason or '')}")
    return registry, snapshot, answer


@contextmanager
def _term(bookies: Bookies) -> Iterator[SwitchTerm]:
    """The right to act; waits for who has it."""
    right = bookies.term()
    if not right.take(_TAKE_SECONDS):
        held = right.holder()
        click.echo(
            f"{printable(held.holder) if held else 'another process'} carries it out; this one takes over when that is "
            "gone",
            err=True,
        )
        right.take(None)
    try:
        yield right
    finally:
        right.leave()


def _wait_for_deletions(right: SwitchTerm) -> bool:
    """Wait until no deletion of the previous orchestrator can be under way; return True after a wait."""
    if not right.is_after_a_crash:
        return False
    click.echo(f"the one before did not leave: this one begins in {DELETES_WITHIN_S:.0f} s", err=True)
    time.sleep(DELETES_WITHIN_S + 1)
    right.settled()
    return True


@contextmanager
def _stopped_by_signals(orchestrator: SwitchOrchestrator) -> Iterator[None]:
    def stop(*_: object) -> None:
        click.echo("stopping after what is being done; the same command goes on", err=True)
        orchestrator.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _progress_bar() -> Iterator[Any]:
    """A bar on a terminal; else a line every ten seconds."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines()
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("looking", total=None)

        def moved(now: Progressed) -> None:
            failed = f", {now.failed} failed" if now.failed else ""
            bar.update(task, description=f"{now.phase} {now.action}{failed}", total=now.of, completed=now.done)

        yield moved


class _Lines:
    def __init__(self) -> None:
        self._at, self._since, self._first = 0.0, time.monotonic(), 0

    def __call__(self, now: Progressed) -> None:
        instant = time.monotonic()
        if now.done < self._first:
            self._since = instant
        self._first = now.done
        if instant - self._at < _SAY_SECONDS and now.done < now.of:
            return
        self._at = instant
        rate = now.done / max(instant - self._since, 1e-3)
        left = (now.of - now.done) / max(rate, 1e-3)
        failed = f", {now.failed} failed" if now.failed else ""
        click.echo(f"{now.phase} {now.action}: {now.done:,} of {now.of:,}{failed}; about {left:.0f} s left", err=True)
