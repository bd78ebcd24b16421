"""`anabranch decisions waiting`: who acts, and the brakes as they stand, as JSON and in words.

Stage: under `anabranch.cli.commands.executor`; the rules of the brakes are in `anabranch.safeguards`.
"""

import json
from collections import Counter
from datetime import datetime, timedelta
from typing import Any

from anabranch.executor.shards.register import read_members
from anabranch.safeguards.state import read_safeguards
from anabranch.safeguards.windows import may_act, next_change
from lake.brakes import SafeguardAct
from schemas.printable import printable
from schemas.settings.processes import ExecutorSettings

CALLS_SECONDS = 60.0
SHOWN = 50
"""Waiting decisions in the table; the JSON has all."""


def brake_report(lake: str, settings: ExecutorSettings, now: datetime) -> dict[str, Any]:
    """All brakes, ready for JSON; times are ISO 8601. Raises `DeltaError` or `OSError`."""
    limits = settings.brakes
    counted_since = now - timedelta(seconds=limits.failures_seconds)
    brakes = read_safeguards(lake, counted_since, now - timedelta(seconds=CALLS_SECONDS), now)
    resumed = brakes.acts.resumed_at
    return {
        "lake": lake,
        "mode": settings.mode,
        "executors": [
            {
                "executor": member.name,
                "mode": member.mode,
                "shards": list(member.shards),
                "of": member.of,
                "since": _iso(member.since),
                "lastBeatAt": _iso(member.at),
                "isSilent": member.at is not None and (now - member.at).total_seconds() > member.seconds,
            }
            for member in read_members(lake)
        ],
        "stop": None if brakes.acts.stop is None else _act(brakes.acts.stop),
        "pauses": [_act(act) for act in brakes.acts.paused(now)],
        "windows": {
            "configured": len(limits.windows),
            "actingAllowed": may_act(limits.windows, now),
            "nextChange": _iso(next_change(limits.windows, now)),
        },
        "calls": {
            "seconds": CALLS_SECONDS,
            "fleet": len(brakes.calls),
            "limit": limits.actions_per_minute,
            "limitPerNamespace": limits.actions_per_minute_per_namespace,
        },
        "failures": {
            "count": sum(resumed is None or failed_at > resumed for failed_at in brakes.failures),
            "limit": limits.failures,
            "seconds": limits.failures_seconds,
        },
        "open": brakes.open,
        "begun": brakes.begun,
        "waiting": [
            {
                "decisionId": row["decision_id"],
                "subject": row["subject"],
                "action": row["action"],
                "arguments": json.loads(row["arguments"]),
                "cause": row["cause"],
                "decidedAt": _iso(row["decided_at"]),
                "brake": row["brake"],
                "why": row["reason"],
                "since": _iso(row["at"]),
                "until": _iso(row["until"]),
                "approved": row["decision_id"] in brakes.acts.approvals,
            }
            for row in brakes.waiting
        ],
    }


def format_report(report: dict[str, Any]) -> str:
    """The report for people."""
    calls, failures, windows = report["calls"], report["failures"], report["windows"]
    stop, modes = report["stop"], sorted({member["mode"] for member in report["executors"]} - {report["mode"]})
    lines = [
        *[
            f"{'executors' if number == 0 else '':<9} {printable(member['executor'])} in mode {member['mode']}, "
            f"{_shards(member)}, since {member['since']}, last beat {member['lastBeatAt']}"
            + (" (silent: others take over)" if member["isSilent"] else "")
            for number, member in enumerate(report["executors"])
        ],
        *([] if report["executors"] else [f"executors none; the settings read here have mode {report['mode']}"]),
        "stopped   " + ("no" if stop is None else f"since {stop['at']}, {stop['by']}: {printable(stop['reason'])}"),
        *[
            f"{'paused' if number == 0 else '':<9} {_name(act['subject'])} {_until(act['until'])}, "
            f"{printable(act['by'])} at {act['at']}: {printable(act['reason'])}"
            for number, act in enumerate(report["pauses"])
        ],
        *([] if report["pauses"] else ["paused    nothing"]),
        "windows   " + ("none: acting is allowed at any time" if not windows["configured"] else _window(windows)),
        f"calls     {calls['fleet']} in {calls['seconds']:g} s; limits: fleet {calls['limit'] or 'none'}, "
        f"a namespace {calls['limitPerNamespace'] or 'none'}",
        f"failures  {failures['count']} in {failures['seconds']:g} s; stops at {failures['limit'] or 'none'}",
        f"open      {report['open']} decisions, {report['begun']} of them begun",
    ]
    waiting = report["waiting"]
    counts = Counter(row["brake"] for row in waiting)
    held = ", ".join(f"{number} for {brake}" for brake, number in counts.most_common())
    lines.append(f"waiting   {held or 'none'}")
    for row in waiting[:SHOWN]:
        lines += [
            f"  {row['decisionId']}  {row['action']} {json.dumps(row['arguments'], separators=(',', ':'))} of "
            f"{printable(row['subject'])}",
            f"    {row['cause']}, decided {row['decidedAt']}; waits since {row['since']} {_until(row['until'])}: "
            f"{printable(row['why'])}",
        ]
    if len(waiting) > SHOWN:
        lines.append(f"  … and {len(waiting) - SHOWN} more: --output json")
    if modes:
        lines.append(
            f"note      the settings read here have mode {report['mode']}, not {' or '.join(modes)}: their windows "
            "and limits may not be the executor's either; anabranch -c FILE decisions waiting reads its settings"
        )
    return "\n".join(lines)


def _shards(member: dict[str, Any]) -> str:
    held = ", ".join(map(str, member["shards"]))
    return f"shards {held} of {member['of']}" if held else "stands by"


def _act(act: SafeguardAct) -> dict[str, Any]:
    return {
        "subject": act.subject,
        "by": act.actor,
        "at": _iso(act.at),
        "reason": act.reason,
        "until": _iso(act.until),
        "number": act.number,
    }


def _window(windows: dict[str, Any]) -> str:
    state = "acting is allowed" if windows["actingAllowed"] else "acting is not allowed"
    change = windows["nextChange"]
    return f"{state}, " + (f"until {change}" if change else "with no change in two weeks")


def _name(subject: str) -> str:
    return "everything" if subject == "*" else printable(subject)


def _until(end: str | None) -> str:
    return f"until {end}" if end else "without an end"


def _iso(instant: datetime | None) -> str | None:
    return None if instant is None else instant.isoformat(timespec="seconds").replace("+00:00", "Z")
