"""`anabranch bookies switch`, `rollback` and `cleanup`: rehearse without writing, or carry out.

Stage: under `anabranch.cli.commands.bookies`, over `anabranch.bookkeeper.orchestrator`, which runs the steps.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, Literal

import click

from anabranch.bookkeeper.guard import Unsafe
from anabranch.bookkeeper.metadata import MetadataChanged, ZnodeWrite
from anabranch.bookkeeper.orchestrator import Progressed, SwitchOrchestrator
from anabranch.bookkeeper.registry import Registry
from anabranch.bookkeeper.sidecar import DELETES_WITHIN_S
from anabranch.bookkeeper.steps import Steps, TermLost
from anabranch.bookkeeper.term import SwitchTerm
from anabranch.cli.bookies.clusters import Bookies
from anabranch.cli.bookies.report import MAX_LINES, shown_steps, status_text
from anabranch.cli.exits import failing_on
from decisions.bookkeeper.decide import decide, plan_steps
from decisions.bookkeeper.gates import ledger_advice
from schemas.bookie_answers import BookieAnswer
from schemas.bookies import BookieSnapshot, Progress, Request
from schemas.printable import printable

_PROGRESS_SECONDS = 10.0
_TAKE_SECONDS = 0.5
SwitchOperation = Literal["switch", "rollback"]


def rehearse_switch(bookies: Bookies, operation: SwitchOperation, request: Request, output: str) -> None:
    """Print the planned steps and the problems to expect. Exit code 1 if it would be refused."""
    snapshot = bookies.read_snapshot(operation, "whole", request)
    answer = decide(snapshot)
    planned = answer if operation == "rollback" else _plan_switch(snapshot, answer)
    if output == "json":
        shown = answer.model_copy(update={"steps": planned.steps, "failed_ledgers": planned.failed_ledgers})
        click.echo(shown.model_dump_json(by_alias=True, exclude_none=True))
    else:
        for line in _rehearsal(snapshot, answer, planned):
            click.echo(line)
    if _is_held(answer) and answer.code != 200:
        raise _refusal(answer)
    click.echo(
        printable(answer.reason or "") if _is_held(answer) else "nothing was written; --no-dry-run does it", err=True
    )


def carry_out(bookies: Bookies, operation: SwitchOperation, request: Request, output: str) -> None:
    """Request the operation and work until nothing is left. Exit code 1 if something failed."""
    with _meter(bookies) as meter, _term(bookies) as term, _progress_bar() as watch:
        orchestrator = _orchestrator(bookies, term.expectation, lambda now: (meter(now), watch(now)))
        with _stopped_by_signals(orchestrator):
            # Write a directive only in our term, and when no deletion of the previous orchestrator is under way.
            registry, snapshot, answer = _read_request(bookies, operation, request)
            is_resumed = answer.action == "retry" and not answer.failed_ledgers and not answer.not_promoted
            if answer.directive is not None and not is_resumed:
                if _wait_for_deletions(term):
                    registry, snapshot, answer = _read_request(bookies, operation, request)
                try:
                    bookies.store.write(answer, registry, (term.expectation,))
                except MetadataChanged as error:
                    raise click.ClickException("the registry has changed meanwhile: run the command again") from error
            orchestrator.run(snapshot)
    assert orchestrator.seen is not None
    _print_end(orchestrator.seen, output)


def clean_up(bookies: Bookies, request: Request, output: str) -> None:
    """Print the deletions of a cleanup, or carry them out."""
    if request.dry_run:
        _print_cleanup(decide(bookies.read_snapshot("cleanup", "whole", request)), output)
        return
    with _meter(bookies) as meter, _term(bookies) as term, _progress_bar() as watch:
        orchestrator = _orchestrator(bookies, term.expectation, lambda now: (meter(now), watch(now)))
        _wait_for_deletions(term)
        with _stopped_by_signals(orchestrator):
            answer, missed = orchestrator.cleanup(request, decide)
    _print_cleanup(answer, output)
    if missed:
        raise click.ClickException(f"{missed} ledgers were not deleted: 'anabranch bookies cleanup' says why")


def _plan_switch(snapshot: BookieSnapshot, answer: BookieAnswer) -> BookieAnswer:
    """Return the plan as if the directive were written and neither ids nor brokers stood in the way."""
    if answer.directive is None:
        settings = snapshot.settings.model_copy(update={"skip_idgen_precheck": True})
        cleared = {"settings": settings, "routing": "stopped", "registered_brokers": None}
        answer = decide(snapshot.model_copy(update=cleared))
    if (directive := answer.directive) is None:
        return answer
    progress = snapshot.progress if answer.action == "retry" else Progress(epoch=directive.epoch)
    return plan_steps(
        snapshot.model_copy(
            update={
                "routing": "stopped",
                "registered_brokers": None,
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
    for step in planned.steps if planned is not answer else ():
        if step.action == "fail" and step.ledger is not None:
            yield f"  would fail: ledger {step.ledger} of {printable(step.object)}: {printable(step.reason)}"
            yield f"    {printable(ledger_advice(step.ledger, step.reason, source, target))}"
    for loss in answer.losses:
        yield f"  would stay behind: {printable(loss.object)}: {printable(loss.detail)}"
    unknown = [attribution for attribution in planned.attributions if attribution.how == "corruption"]
    for item in unknown[:MAX_LINES]:
        yield f"  not known: ledger {item.ledger} of {printable(item.object)}: {printable(item.reason or '')}"
        yield f"    {printable(ledger_advice(item.ledger, item.reason or '', source, target))}"


def _print_cleanup(answer: BookieAnswer, output: str) -> None:
    if output == "json":
        click.echo(answer.model_dump_json(by_alias=True, exclude_none=True))
    else:
        for step in answer.steps:
            if step.action != "delete":
                click.echo(f"  kept: ledger {step.ledger} on {printable(str(step.source))}: {printable(step.reason)}")
        click.echo(f"{sum(step.action == 'delete' for step in answer.steps):,} old copies can go")
    if _is_held(answer):
        raise _refusal(answer)
    if answer.gate == "dry-run":
        click.echo("nothing was deleted; --no-dry-run does it", err=True)


def _is_held(answer: BookieAnswer) -> bool:
    return answer.gate not in (None, "dry-run")


def _refusal(answer: BookieAnswer) -> click.ClickException:
    return click.ClickException(f"{answer.gate}: {printable(answer.reason or '')}")


def _print_end(seen: BookieSnapshot, output: str) -> None:
    snapshot = seen.model_copy(update={"operation": "status", "request": Request()})
    answer = decide(snapshot)
    directive = snapshot.directive
    document = answer.model_dump_json(by_alias=True, exclude_none=True)
    click.echo(document if output == "json" else status_text(snapshot, answer, None))
    left = len(answer.failed_ledgers) + len(answer.not_promoted) + answer.counts.get("notKnown", 0)
    if directive is not None and left:
        raise click.ClickException(f"{left} were not moved: 'anabranch bookies status' says why, and what to do")


def _orchestrator(bookies: Bookies, term: ZnodeWrite, watch: Any) -> SwitchOrchestrator:
    def steps(registry: Registry) -> Steps:
        return Steps(bookies.store, bookies.metadata, bookies.sidecar(registry), term, bookies.guard, bookies.owners())

    chosen = bookies.settings.bookies
    return SwitchOrchestrator(bookies.reader, steps, bookies.lake, bookies.name, chosen.migration_concurrency, watch)


def _read_request(
    bookies: Bookies, operation: SwitchOperation, request: Request
) -> tuple[Registry, BookieSnapshot, BookieAnswer]:
    registry = bookies.store.read()
    snapshot = bookies.reader.read_snapshot(operation, "whole", request, bookies.progress(registry), registry)
    answer = decide(snapshot)
    if answer.code != 200:
        raise _refusal(answer)
    return registry, snapshot, answer


@contextmanager
def _term(bookies: Bookies) -> Iterator[SwitchTerm]:
    """Hold the term, the right to act; wait while another process has it."""
    term = bookies.term()
    if not term.take(_TAKE_SECONDS):
        current = term.holder()
        holder = printable(current.holder) if current else "another process"
        click.echo(f"{holder} carries it out; this one takes over when that is gone", err=True)
        term.take(None)
    try:
        yield term
    finally:
        term.leave()


def _wait_for_deletions(term: SwitchTerm) -> bool:
    """Wait until no deletion of the previous orchestrator can be under way; return True after a wait."""
    if not term.is_after_a_crash:
        return False
    click.echo(f"the one before did not leave: this one begins in {DELETES_WITHIN_S:.0f} s", err=True)
    time.sleep(DELETES_WITHIN_S + 1)
    term.settled()
    return True


@contextmanager
def _stopped_by_signals(orchestrator: SwitchOrchestrator) -> Iterator[None]:
    """Stop after the current steps on SIGINT or SIGTERM; report a lost term or unsafe brokers."""

    def stop(*_: object) -> None:
        click.echo("stopping after what is being done; the same command goes on", err=True)
        orchestrator.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except (TermLost, Unsafe) as error:
        raise click.ClickException(str(error)) from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _meter(bookies: Bookies) -> Iterator[Callable[[Progressed], None]]:
    """Serve metrics and probes at [bookies] metrics_port, also while another process has the term."""
    settings = bookies.settings
    if not settings.bookies.metrics_port:
        yield lambda _: None
        return
    from prometheus_client import CollectorRegistry, Gauge

    from runtime.telemetry.serving import MetricsError, serve_metrics

    registry = CollectorRegistry()
    steps = Gauge("anabranch_bookies_steps", "Steps of the current pass.", ["status"], registry=registry)
    moved_at = Gauge("anabranch_bookies_progress_timestamp_seconds", "When steps last ended.", registry=registry)

    def moved(now: Progressed) -> None:
        for status, number in (("done", now.done - now.failed), ("failed", now.failed), ("left", now.of - now.done)):
            steps.labels(status).set(number)
        moved_at.set_to_current_time()

    with failing_on(MetricsError):
        server = serve_metrics(
            registry, settings.bookies.metrics_port, "bookies.metrics_port", settings.metrics, "bookies"
        )
    with closing(server):
        yield moved


@contextmanager
def _progress_bar() -> Iterator[Any]:
    """Provide a progress bar on a terminal, or a line every ten seconds elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _ProgressLines()
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("looking", total=None)

        def moved(now: Progressed) -> None:
            failed = f", {now.failed} failed" if now.failed else ""
            bar.update(task, description=f"{now.phase} {now.action}{failed}", total=now.of, completed=now.done)

        yield moved


class _ProgressLines:
    """Progress as lines, with the time left of the current pass."""

    def __init__(self) -> None:
        self._printed_at, self._pass_began_at, self._done = 0.0, time.monotonic(), 0

    def __call__(self, now: Progressed) -> None:
        instant = time.monotonic()
        if now.done < self._done:
            self._pass_began_at = instant
        self._done = now.done
        if instant - self._printed_at < _PROGRESS_SECONDS and now.done < now.of:
            return
        self._printed_at = instant
        rate = now.done / max(instant - self._pass_began_at, 1e-3)
        left = (now.of - now.done) / max(rate, 1e-3)
        failed = f", {now.failed} failed" if now.failed else ""
        click.echo(f"{now.phase} {now.action}: {now.done:,} of {now.of:,}{failed}; about {left:.0f} s left", err=True)
