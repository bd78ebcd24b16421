"""State of a switch for an operator: phases, remaining work, failed ledgers and the next command.

Stage: under `anabranch.cli.commands.bookies`; pure, text out of answers.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from anabranch.bookkeeper.term import CurrentOrchestrator
from anabranch.history.switches import SwitchHistory
from anabranch.query.wording import instant
from decisions.bookkeeper.cleanup import has_passed
from decisions.bookkeeper.decide import command_of
from decisions.bookkeeper.gates import ledger_advice
from schemas.bookie_answers import BookieAnswer
from schemas.bookies import BookieSnapshot
from schemas.printable import printable

MAX_LINES = 50
"""Ledgers that are shown; JSON has all."""
_WIDTH = 24
_FIRST = (
    "registered",
    "ledgers-listed",
    "target-client",
    "instance-id",
    "ids-apart",
    "brokers-follow",
    "brokers-route",
)
"""Gates that have to pass before anything else is worth a try."""


def status_text(snapshot: BookieSnapshot, answer: BookieAnswer, held: CurrentOrchestrator | None) -> str:
    """All that `status` says."""
    directive = snapshot.directive
    lines = [_headline(snapshot, answer)]
    lines += [
        f"  {cluster.status:10}  {printable(cluster.name)}  {printable(cluster.metadata_service_uri)}"
        f"{_reached(snapshot, cluster.name)}"
        for cluster in sorted(snapshot.clusters, key=lambda cluster: (cluster.status, cluster.name))
    ]
    if directive is None:
        lines.append(
            "no switch was asked for. Next: anabranch bookies "
            + ("precheck --name TARGET" if len(snapshot.clusters) > 1 else "register --name NAME …")
        )
        return "\n".join(lines)
    counts = answer.counts
    there = counts.get("onTarget", 0)
    total = counts.get("onSource", 0) + there + counts.get("leftBehind", 0)
    lines.append(
        f"schemas and cursors  {_bar(there, total)} {there:,} of {total:,} on {printable(directive.target)}"
        + "".join(
            f", {counts[name]:,} {words}"
            for name, words in (
                ("toCopy", "to copy"),
                ("toVerify", "to compare"),
                ("toPromote", "to promote"),
                ("failed", "failed"),
                ("lost", "not promoted"),
                ("leftBehind", "left by an earlier switch"),
                ("notKnown", "not known"),
            )
            if counts.get(name)
        )
    )
    if counts.get("dataLedgersOnSource"):
        lines.append(
            f"topics' data         {counts['dataLedgersOnSource']:,} ledgers are on {printable(directive.source)}: "
            "they are read there, and age out by retention"
        )
    if counts.get("oldCopies"):
        lines.append(f"old copies           {counts['oldCopies']:,} on {printable(directive.source)}")
    lines.append(f"carried out by       {printable(held.holder) + f', term {held.term}' if held else 'nobody now'}")
    lines += _troubles(answer, directive.source, directive.target)
    lines.append(f"next: {_next(snapshot, answer, held)}")
    return "\n".join(lines)


def failures_text(answer: BookieAnswer, source: str, target: str) -> list[str]:
    """Every ledger that failed, or of which nobody knows where it is: why, and what can be done about it."""
    failures = [("failed", failed.ledger, failed.object, failed.reason) for failed in answer.failed_ledgers]
    failures += [
        ("not known", attribution.ledger, attribution.object, attribution.reason or "")
        for attribution in answer.attributions
        if attribution.how == "corruption"
    ]
    lines = []
    for state, ledger, where, reason in failures[:MAX_LINES]:
        lines.append(f"  {state}: ledger {ledger} of {printable(where)}: {printable(reason)}")
        lines.append(f"    {printable(ledger_advice(ledger, reason, source, target))}")
    if len(failures) > MAX_LINES:
        lines.append(f"  and {len(failures) - MAX_LINES:,} more; --output json has all")
    return lines


def _troubles(answer: BookieAnswer, source: str, target: str) -> list[str]:
    lines = failures_text(answer, source, target)
    troubles = [
        *(f"not promoted: {managed}: its record changed during every try" for managed in answer.not_promoted),
        *(
            f"rolled over: {managed}: its new ledger is on {target}"
            for managed in answer.promoted_via_rollover_fallback
        ),
    ]
    lines += [f"  {printable(trouble)}" for trouble in troubles[:MAX_LINES]]
    return lines + (
        [f"  and {len(troubles) - MAX_LINES:,} more; --output json has all"] if len(troubles) > MAX_LINES else []
    )


def _headline(snapshot: BookieSnapshot, answer: BookieAnswer) -> str:
    directive, name = snapshot.directive, printable(snapshot.cluster)
    if directive is None:
        return f"{name}: {answer.phase}"
    directive_words = f"{directive.kind} from {printable(directive.source)} to {printable(directive.target)}"
    return (
        f"{name}: {directive_words}, epoch {directive.epoch}, attempt {directive.attempt}, asked for at "
        f"{instant(directive.ts)}"
        f"{f' by {printable(directive.origin)}' if directive.origin else ''}: {answer.phase}"
    )


def _next(snapshot: BookieSnapshot, answer: BookieAnswer, held: CurrentOrchestrator | None) -> str:
    directive = snapshot.directive
    assert directive is not None
    if answer.gate in _FIRST:
        return printable(f"{answer.reason}; then {command_of(directive)}")
    if answer.retry:
        return printable(answer.retry)
    if snapshot.progress.deleting and answer.action != "steps":
        return printable(f"{_cleanup_command(snapshot)} goes on where it was")
    if answer.phase in ("DONE", "ROLLED_BACK"):
        return "nothing; everything is done"
    if answer.phase == "CLEANUP":
        eligible_at = next(
            (
                reading.eligible_at
                for reading in answer.readings
                if reading.eligible_at is not None and not reading.passed
            ),
            None,
        )
        window = f" from {instant(eligible_at)} on" if eligible_at else ""
        return f"anabranch bookies cleanup{window}; until then a rollback is possible (anabranch bookies rollback)"
    if answer.action == "hold":
        return printable(answer.reason or answer.gate or "")
    if held is not None:
        return "wait; this command shows how far it is"
    return printable(f"{command_of(directive)} goes on where it was")


def _cleanup_command(snapshot: BookieSnapshot) -> str:
    """Return the command that continues a cleanup, forced if the window is open, as the earlier one was."""
    [source, *_] = snapshot.progress.deleting
    other = "" if snapshot.directive is not None and source == snapshot.directive.source else f" --src-cluster {source}"
    forced = "" if has_passed(snapshot) else " --force"
    return f"anabranch bookies cleanup{other}{forced} --no-dry-run"


def _reached(snapshot: BookieSnapshot, name: str) -> str:
    generator = snapshot.generators.get(name)
    return "" if generator is None or generator.reachable else f"  NOT REACHED: {printable(generator.error or '')}"


def _bar(done: int, total: int) -> str:
    full = _WIDTH if total == 0 else done * _WIDTH // total
    return "█" * full + "░" * (_WIDTH - full)


def shown_steps(answer: BookieAnswer) -> Iterator[str]:
    """Yield a line with the number of steps for each action and kind."""
    counts: dict[tuple[str, str], int] = {}
    for step in answer.steps:
        counts[step.action, step.kind] = counts.get((step.action, step.kind), 0) + 1
    for (action, kind), count in counts.items():
        yield f"  {count:>8,} {action} ({kind})"


def history_text(switches: Sequence[SwitchHistory]) -> str:
    """Switches with their phases, the newest first."""
    lines = []
    for switch in switches:
        counts = switch.counts
        lines.append(
            f"{printable(switch.cluster)}: {printable(switch.name)}, {switch.begun_at:%F %T} to {switch.last_at:%F %T} "
            f"UTC: "
            f"{counts['copied']:,} ledgers copied ({counts['bytes'] / 1e6:,.1f} MB), {counts['promoted']:,} records "
            f"promoted, {counts['deleted']:,} old copies deleted"
        )
        for span in switch.phases:
            troubles = [
                f"{number:,} {unit}"
                for number, unit in ((span.failed, "failed"), (span.superseded, "too late"), (span.open, "under way"))
                if number
            ]
            lines.append(
                f"  {span.since:%F %T}  {span.phase:16}  attempt {span.attempt}  {span.steps:>7,} steps in "
                f"{span.seconds:,.0f} s{'  ' if troubles else ''}{', '.join(troubles)}"
            )
        for failure in switch.failures[:MAX_LINES]:
            lines.append(
                f"  failed: ledger {failure.ledger} of {printable(failure.object)}: {printable(failure.reason)}"
            )
            lines.append(
                f"    {printable(ledger_advice(failure.ledger, failure.reason, switch.source, switch.target))}"
            )
    return "\n".join(lines)


def history_json(switches: Sequence[SwitchHistory]) -> list[dict[str, Any]]:
    """Return the histories of switches as JSON values."""
    plain: list[dict[str, Any]] = json.loads(json.dumps([asdict(switch) for switch in switches], default=str))
    return plain
