"""State of a switch for an operator: phases, remaining work, failed ledgers and the next command.

Stage: under `anabranch.cli.commands.bookies`; pure, text out of answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from anabranch.bookkeeper.term import CurrentOrchestrator
from anabranch.history.switches import SwitchHistory
from anabranch.query.wording import instant
from decisions.bookkeeper.advice import advice
from decisions.bookkeeper.cleanup import has_passed
from decisions.bookkeeper.decide import command_of
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
        f"  {one.status:10}  {printable(one.name)}  {printable(one.metadata_service_uri)}{_reached(snapshot, one.name)}"
        for one in sorted(snapshot.clusters, key=lambda one: (one.status, one.name))
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
    found = [("failed", one.ledger, one.object, one.reason) for one in answer.failed_ledgers]
    found += [
        ("not known", one.ledger, one.object, one.reason or "")
        for one in answer.attributions
        if one.how == "corruption"
    ]
    lines = []
    for what, ledger, where, reason in found[:MAX_LINES]:
        lines.append(f"  {what}: ledger {ledger} of {printable(where)}: {printable(reason)}")
        lines.append(f"    {printable(advice(ledger, reason, source, target))}")
    if len(found) > MAX_LINES:
        lines.append(f"  and {len(found) - MAX_LINES:,} more; --output json has all")
    return lines


def _troubles(answer: BookieAnswer, source: str, target: str) -> list[str]:
    lines = failures_text(answer, source, target)
    said = [
        *(f"not promoted: {one}: its record changed during every try" for one in answer.not_promoted),
        *(f"rolled over: {one}: its new ledger is on {target}" for one in answer.promoted_via_rollover_fallback),
    ]
    lines += [f"  {printable(one)}" for one in said[:MAX_LINES]]
    return lines + ([f"  and {len(said) - MAX_LINES:,} more; --output json has all"] if len(said) > MAX_LINES else [])


def _headline(snapshot: BookieSnapshot, answer: BookieAnswer) -> str:
    directive, name = snapshot.directive, printable(snapshot.cluster)
    if directive is None:
        return f"{name}: {answer.phase}"
    what = f"{directive.kind} from {printable(directive.source)} to {printable(directive.target)}"
    return (
        f"{name}: {what}, epoch {directive.epoch}, attempt {directive.attempt}, asked for at {instant(directive.ts)}"
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
        at = next((one.eligible_at for one in answer.readings if one.eligible_at is not None and not one.passed), None)
        window = f" from {instant(at)} on" if at else ""
        return f"anabranch bookies cleanup{window}; until then a rollback is possible (anabranch bookies rollback)"
    if answer.action == "hold":
        return printable(answer.reason or answer.gate or "")
    if held is not None:
        return "wait; this command shows how far it is"
    return printable(f"{command_of(directive)} goes on where it was")


def _cleanup_command(snapshot: BookieSnapshot) -> str:
    """Return the command that continues a cleanup.

    It is forced if the window is open, as the earlier cleanup was.
    """
    [source, *_] = snapshot.progress.deleting
    other = "" if snapshot.directive is not None and source == snapshot.directive.source else f" --src-cluster {source}"
    forced = "" if has_passed(snapshot) else " --force"
    return f"anabranch bookies cleanup{other}{forced} --no-dry-run"


def _reached(snapshot: BookieSnapshot, name: str) -> str:
    found = snapshot.generators.get(name)
    return "" if found is None or found.reachable else f"  NOT REACHED: {printable(found.error or '')}"


def _bar(done: int, total: int) -> str:
    full = _WIDTH if total == 0 else done * _WIDTH // total
    return "█" * full + "░" * (_WIDTH - full)


def shown_steps(answer: BookieAnswer) -> Iterator[str]:
    """Yield a line with the number of steps for each action and kind."""
    counts: dict[tuple[str, str], int] = {}
    for one in answer.steps:
        counts[one.action, one.kind] = counts.get((one.action, one.kind), 0) + 1
    for (action, kind), count in counts.items():
        yield f"  {count:>8,} {action} ({kind})"


def history_text(found: Sequence[SwitchHistory]) -> str:
    """Switches with their phases, the newest first."""
    lines = []
    for one in found:
        counts = one.counts
        lines.append(
            f"{printable(one.cluster)}: {printable(one.name)}, {one.begun_at:%F %T} to {one.last_at:%F %T} UTC: "
            f"{counts['copied']:,} ledgers copied ({counts['bytes'] / 1e6:,.1f} MB), {counts['promoted']:,} records "
            f"promoted, {counts['deleted']:,} old copies deleted"
        )
        for span in one.phases:
            troubles = [
                f"{number:,} {what}"
                for number, what in (
                    (span.failed, "failed"),
                    (span.superseded, "too late"),
                    (span.open, "under way"),
                )
                if number
            ]
            lines.append(
                f"  {span.since:%F %T}  {span.phase:16}  attempt {span.attempt}  {span.steps:>7,} steps in "
                f"{span.seconds:,.0f} s{'  ' if troubles else ''}{', '.join(troubles)}"
            )
        for failure in one.failures[:MAX_LINES]:
            lines.append(
                f"  failed: ledger {failure.ledger} of {printable(failure.object)}: {printable(failure.reason)}"
            )
            lines.append(f"    {printable(advice(failure.ledger, failure.reason, one.source, one.target))}")
    return "\n".join(lines)


def history_json(found: Sequence[SwitchHistory]) -> list[dict[str, Any]]:
    """Return the histories of switches as JSON values."""
    plain: list[dict[str, Any]] = json.loads(json.dumps([asdict(one) for one in found], default=str))
    return plain
