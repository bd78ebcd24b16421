"""How the fleet stands: the processes, what is over its threshold, what is open, and which alerts fire.

Stage: the read end, over the whole lake at once; `anabranch status` prints it. Everything is worked out from the
tables, so it is as right when the controller, Kafka or the job are down, and says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from decisions.autoscale.rates import overload
from lake.tables import LakeError, open_table
from lake.tail import newest_rows
from ledger.acting import scope_words
from ledger.alerts.record import standing_alerts
from ledger.live import LakeReader
from ledger.picture import late_seconds
from ledger.sql import LakeSql
from ledger.words import span
from schemas.printable import printable
from schemas.tables import ALERTS, BATCHES

MAX_ALERTS = 400
"""Newest rows of `alerts` that are looked through."""
SHOWN = 3
"""Topics over their threshold, and alerts, that are printed by name."""
_HELD = "SELECT subject, gate, held_from FROM holds_now WHERE family = 'autoscale'"
_ENDED = (
    "SELECT action, status, count(*) AS decisions FROM decision_outcomes "
    "WHERE family = 'autoscale' AND ended_at > TIMESTAMP '{at}' - INTERVAL '1 hour' GROUP BY action, status"
)


def read_status(lake: str, now: datetime, stuck_seconds: float) -> dict[str, Any]:
    """Return how the fleet stands at `now` (aware), ready for JSON. Raises `LakeError` without
    a lake, `SqlError`, and what Delta raises.

    - `job`: `state` (`running`, `silent`: late by its own pace, `never ran`), `lastBatchAt`, `silentSeconds`,
      `samplesPerSecond`, `batchMilliseconds`
    - `executors`: `name`, `state` (`acting`, `standing by`, `silent`) of each in the register; `stop`: why the executor
      stopped itself, or null; `pauses`: what is paused, by whom and why
    - `topics`, `activeSegments`, `consumersWaiting`: numbers; `held`: topics by gate
    - `overThreshold`: topics with a segment over a split threshold, the worst first: `topic`, `segment`, `overload`
      (largest rate / threshold), `rate` (its name), `gate` and `heldFrom` (null: no gate holds the topic)
    - `decisions`: `open`, `oldestSeconds`, `stuck` (one is older than `stuck_seconds`), `waiting` (by brake)
    - `lastHour`: `ended` by action and status, `undone`, `deadLetters`
    - `alerts`: those that are pending or firing: `alert`, `status`, `subject`, `since`, `summary`
    - `attention`: what needs a person, one sentence each; empty: nothing does
    """
    if open_table(lake, BATCHES) is None:
        raise LakeError("it has no table `batches`: is [lake] path right, and did the job ever run?")
    at = f"{now:%Y-%m-%d %H:%M:%S.%f}"
    ask = _Asking(lake, now)
    (health,) = ask(f"SELECT * FROM fleet_health_at(TIMESTAMP '{at}')")
    held = {row["subject"]: row for row in ask(_HELD)}
    reader = LakeReader(lake)
    view = reader.refresh(now)
    over = []
    for load in ask(f"SELECT * FROM load_at(TIMESTAMP '{at}') WHERE msg_rate_in IS NOT NULL"):
        policy = reader.policy(load["topic"])
        if policy is None:
            continue
        rates = (load["msg_rate_in"], load["bytes_rate_in"], load["msg_rate_out"], load["bytes_rate_out"])
        ratio, rate = overload(rates, policy.policy)
        hold = held.get(load["topic"])
        if ratio > 1:
            over.append({
                "topic": load["topic"], "segment": load["segment_id"], "overload": ratio, "rate": rate,
                "gate": hold["gate"] if hold else None, "heldFrom": hold["held_from"].isoformat() if hold else None,
            })  # fmt: skip
    worst: dict[str, dict[str, Any]] = {}
    for one in sorted(over, key=lambda one: -one["overload"]):
        worst.setdefault(one["topic"], one)
    ended: dict[str, dict[str, int]] = {}
    for row in ask(_ENDED.format(at=at)):
        ended.setdefault(row["action"], {})[row["status"]] = row["decisions"]
    gates: dict[str, int] = {}
    for row in held.values():
        gates[row["gate"]] = gates.get(row["gate"], 0) + 1
    late = late_seconds([row["committed_at"] for row in reader.batches])
    silent, oldest = health["seconds_since_batch"], health["oldest_open_seconds"]
    alerts = open_table(lake, ALERTS)
    status = {
        "at": now.isoformat(),
        "job": {
            "state": "never ran" if silent is None else "silent" if silent > late else "running",
            "lastBatchAt": None if silent is None else health["last_batch_at"].isoformat(),
            "silentSeconds": silent,
            "samplesPerSecond": view.rates.samples,
            "batchMilliseconds": view.rates.batch_ms,
        },
        "executors": [
            {"name": one.name, "state": "silent" if one.is_silent else "acting" if one.shards else "standing by"}
            for one in view.brakes.executors
        ],
        "stop": view.brakes.stop.reason if view.brakes.stop else None,
        "pauses": [f"{scope_words(act.subject)} by {act.actor}: {act.reason}" for act in view.brakes.pauses],
        "topics": health["topics"],
        "activeSegments": health["active_segments"],
        "consumersWaiting": health["consumers_waiting"],
        "held": dict(sorted(gates.items(), key=lambda item: -item[1])),
        "overThreshold": list(worst.values()),
        "decisions": {
            "open": health["decisions_open"],
            "oldestSeconds": oldest,
            "stuck": oldest is not None and oldest > stuck_seconds,
            "waiting": dict(view.brakes.waiting),
        },
        "lastHour": {
            "ended": ended,
            "undone": health["undone_last_hour"],
            "deadLetters": health["dead_letters_last_hour"],
        },
        "alerts": [
            {"alert": row["alert"], "status": row["status"], "subject": row["subject"],
             "since": (row["since"] or row["at"]).isoformat(), "summary": row["summary"]}
            for row in standing_alerts([] if alerts is None else newest_rows(alerts, MAX_ALERTS))
        ],
    }  # fmt: skip
    return {**status, "attention": _attention(status)}


class _Asking:
    def __init__(self, lake: str, now: datetime) -> None:
        self._sql = LakeSql(lake, now)

    def __call__(self, question: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._sql.ask(question).read_all().to_pylist()
        return rows


def _attention(status: Mapping[str, Any]) -> list[str]:
    """Return what needs a person."""
    job, decisions = status["job"], status["decisions"]
    acting = [one for one in status["executors"] if one["state"] == "acting"]
    found = []
    if job["state"] == "never ran":
        found.append("the job has committed nothing yet")
    if job["state"] == "silent":
        found.append(f"the job has committed nothing for {span(job['silentSeconds'])}")
    if not acting:
        found.append("no executor acts")
    if status["stop"]:
        found.append(f"the executor has stopped itself: {status['stop']}")
    if decisions["stuck"]:
        found.append(f"a decision has been open for {span(decisions['oldestSeconds'])}")
    if waiting := decisions["waiting"].get("approval"):
        found.append(f"{waiting} decision{'s wait' if waiting > 1 else ' waits'} for approval")
    firing = [one["alert"] for one in status["alerts"] if one["status"] == "firing"]
    if firing:
        found.append(f"{len(firing)} alert{'s fire' if len(firing) > 1 else ' fires'}")
    return found


def status_lines(status: Mapping[str, Any]) -> list[str]:
    """Return the status as lines of text: at most a dozen."""
    job, decisions, hour = status["job"], status["decisions"], status["lastHour"]
    batch = job["batchMilliseconds"]
    if job["state"] == "running":
        pace = "" if batch is None else f", {job['samplesPerSecond']:.0f} samples/s, {batch:.0f} ms a batch"
        said = f"running, last batch {span(job['silentSeconds'])} ago{pace}"
    elif job["state"] == "silent":
        said = f"SILENT, last batch {span(job['silentSeconds'])} ago, at {job['lastBatchAt'][:19]}"
    else:
        said = "NEVER RAN"
    states = [one["state"] for one in status["executors"]]
    executors = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)) or "NONE in the register"
    lines = [("job", said), ("executors", executors)]
    if status["stop"]:
        lines.append(("", f"STOPPED itself: {status['stop']}"))
    lines += [("", f"paused: {one}") for one in status["pauses"][:SHOWN]]
    held = ", ".join(f"{count} {gate}" for gate, count in list(status["held"].items())[:SHOWN])
    lines.append(("topics", f"{status['topics']:,} with {status['activeSegments']:,} segments"
                            + (f"; held by {held}" if held else "")))  # fmt: skip
    over = status["overThreshold"]
    lines.append(("over", f"{len(over)} over a split threshold" + (", the worst first:" if over else "")))
    lines += [
        ("", f"{one['topic']}, segment {one['segment']}: {one['rate']} {one['overload']:.1f} times the threshold"
             + (f", held by {one['gate']} since {one['heldFrom'][11:19]}" if one["gate"] else ""))
        for one in over[:SHOWN]
    ]  # fmt: skip
    waiting = ", ".join(f"{count} wait for {brake}" for brake, count in decisions["waiting"].items())
    oldest = f", the oldest for {span(decisions['oldestSeconds'])}" if decisions["oldestSeconds"] is not None else ""
    lines += [
        ("consumers", f"{status['consumersWaiting']} wait for a segment of their own"),
        ("decisions", f"{decisions['open']} open{oldest}" + (f"; {waiting}" if waiting else "")),
        ("last hour", ", ".join(
            f"{count} {action}{'s' if count != 1 else ''} {end}"
            for action, ends in hour["ended"].items() for end, count in ends.items()
        ) or "nothing done"),
    ]  # fmt: skip
    lines[-1] = ("last hour", f"{lines[-1][1]}; {hour['undone']} undone, {hour['deadLetters']} messages refused")
    alerts = status["alerts"]
    lines.append(("alerts", f"{len(alerts)} pending or firing" if alerts else "none"))
    lines += [("", f"{one['alert']} {one['status']} since {one['since'][11:19]}: {one['summary']}")
              for one in alerts[:SHOWN]]  # fmt: skip
    return [f"{name:<11}{printable(text)}" for name, text in lines]
