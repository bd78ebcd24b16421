"""Status of the fleet: processes, overloaded topics, open decisions, and alerts.

Stage: the read end, over the whole lake at once; `anabranch status` prints it. Everything is computed from the tables,
so it stays right when the controller, Kafka or the job are down, and reports that.
"""

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from anabranch.alerts.record import standing_alerts
from anabranch.history.attention import Conditions, attention
from anabranch.history.live import LakeReader
from anabranch.history.picture import late_seconds
from anabranch.history.words import span
from anabranch.query.sql import LakeSql
from anabranch.safeguards.commands import scope_words
from decisions.autoscale.rates import segment_overload
from lake.tables import LakeError, open_table
from lake.tail import newest_rows
from schemas.printable import printable
from schemas.tables.rows import ALERTS, BATCHES

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
    """Return the status of the fleet at `now` (aware), ready for JSON.

    Raises `LakeError` without a lake, `SqlError`, and what Delta raises.

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
    - `attention`: conditions that need a person, one sentence each; empty: none
    """
    if open_table(lake, BATCHES) is None:
        raise LakeError(f"the lake {lake} has no table `batches`: is [lake] path right, and did the job ever run?")
    timestamp = f"{now:%Y-%m-%d %H:%M:%S.%f}"
    ask = LakeSql(lake, now).rows

    (health,) = ask(f"SELECT * FROM fleet_health_at(TIMESTAMP '{timestamp}')")
    held = {row["subject"]: row for row in ask(_HELD)}
    reader = LakeReader(lake)
    view = reader.refresh(now)
    over = []
    for load in ask(f"SELECT * FROM load_at(TIMESTAMP '{timestamp}') WHERE msg_rate_in IS NOT NULL"):
        if (policy := reader.policy(load["topic"])) is None:
            continue
        rates = (load["msg_rate_in"], load["bytes_rate_in"], load["msg_rate_out"], load["bytes_rate_out"])
        ratio, rate = segment_overload(rates, policy.policy)
        hold = held.get(load["topic"])
        if ratio > 1:
            over.append(
                {
                    "topic": load["topic"],
                    "segment": load["segment_id"],
                    "overload": ratio,
                    "rate": rate,
                    "gate": hold["gate"] if hold else None,
                    "heldFrom": hold["held_from"].isoformat() if hold else None,
                }
            )
    worst: dict[str, dict[str, Any]] = {}
    for segment in sorted(over, key=lambda segment: -segment["overload"]):
        worst.setdefault(segment["topic"], segment)
    ended: dict[str, dict[str, int]] = {}
    for row in ask(_ENDED.format(at=timestamp)):
        ended.setdefault(row["action"], {})[row["status"]] = row["decisions"]
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
            {
                "name": executor.name,
                "state": "silent" if executor.is_silent else "acting" if executor.shards else "standing by",
            }
            for executor in view.brakes.executors
        ],
        "stop": view.brakes.stop.reason if view.brakes.stop else None,
        "pauses": [f"{scope_words(act.subject)} by {act.actor}: {act.reason}" for act in view.brakes.pauses],
        "topics": health["topics"],
        "activeSegments": health["active_segments"],
        "consumersWaiting": health["consumers_waiting"],
        "held": dict(Counter(row["gate"] for row in held.values()).most_common()),
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
            {
                "alert": row["alert"],
                "status": row["status"],
                "subject": row["subject"],
                "since": (row["since"] or row["at"]).isoformat(),
                "summary": row["summary"],
            }
            for row in standing_alerts([] if alerts is None else newest_rows(alerts, MAX_ALERTS))
        ],
    }
    return {**status, "attention": _attention(status)}


def _attention(status: Mapping[str, Any]) -> list[str]:
    """Return the conditions that need a person."""
    job, decisions = status["job"], status["decisions"]
    conditions = Conditions(
        has_run=job["state"] != "never ran",
        silent_seconds=job["silentSeconds"] if job["state"] == "silent" else None,
        is_acted=any(executor["state"] == "acting" for executor in status["executors"]),
        stop=status["stop"],
        stuck_seconds=decisions["oldestSeconds"] if decisions["stuck"] else None,
        approvals=decisions["waiting"].get("approval", 0),
        firing=tuple(alert["alert"] for alert in status["alerts"] if alert["status"] == "firing"),
    )
    return [reason.sentence for reason in attention(conditions)]


def status_lines(status: Mapping[str, Any]) -> list[str]:
    """Return the status as lines of text: at most a dozen, and three for each list."""
    topics = f"{status['topics']:,} with {status['activeSegments']:,} segments"
    if held := list(status["held"].items())[:SHOWN]:
        topics += f"; held by {', '.join(f'{count} {gate}' for gate, count in held)}"
    over, alerts = status["overThreshold"], status["alerts"]
    states = Counter(executor["state"] for executor in status["executors"])
    lines = [
        ("job", _job_text(status["job"])),
        (
            "executor",
            ", ".join(f"{count} {state.replace('acting', 'at work')}" for state, count in states.items())
            or "NONE in the register",
        ),
        *([("", f"STOPPED itself: {status['stop']}")] if status["stop"] else []),
        *(("", f"paused: {pause}") for pause in status["pauses"][:SHOWN]),
        ("topics", topics),
        ("over", f"{len(over)} over a split threshold" + (", the worst first:" if over else "")),
        *(("", _overload_text(topic)) for topic in over[:SHOWN]),
        ("consumers", f"{status['consumersWaiting']} wait for a segment of their own"),
        ("decisions", _decisions_text(status["decisions"])),
        ("last hour", _hour_text(status["lastHour"])),
        ("alerts", f"{len(alerts)} pending or firing" if alerts else "none"),
        *(
            ("", f"{alert['alert']} {alert['status']} since {alert['since'][11:19]}: {alert['summary']}")
            for alert in alerts[:SHOWN]
        ),
    ]
    return [f"{name:<11}{printable(text)}" for name, text in lines]


def _job_text(job: Mapping[str, Any]) -> str:
    if job["state"] == "never ran":
        return "NEVER RAN"
    age = span(job["silentSeconds"])
    if job["state"] == "silent":
        return f"SILENT, last batch {age} ago, at {job['lastBatchAt'][:19]}"
    batch = job["batchMilliseconds"]
    pace = "" if batch is None else f", {job['samplesPerSecond']:.0f} samples/s, {batch:.0f} ms a batch"
    return f"running, last batch {age} ago{pace}"


def _overload_text(topic: Mapping[str, Any]) -> str:
    hold = f", held by {topic['gate']} since {topic['heldFrom'][11:19]}" if topic["gate"] else ""
    overload = f"{topic['rate']} {topic['overload']:.1f} times the threshold"
    return f"{topic['topic']}, segment {topic['segment']}: {overload}{hold}"


def _decisions_text(decisions: Mapping[str, Any]) -> str:
    oldest = decisions["oldestSeconds"]
    text = f"{decisions['open']} open" + ("" if oldest is None else f", the oldest for {span(oldest)}")
    waiting = ", ".join(f"{count} wait for {brake}" for brake, count in decisions["waiting"].items())
    return f"{text}; {waiting}" if waiting else text


def _hour_text(hour: Mapping[str, Any]) -> str:
    ended = [
        f"{count} {action}{'' if count == 1 else 's'} {status}"
        for action, by_status in hour["ended"].items()
        for status, count in by_status.items()
    ]
    done = ", ".join(ended) or "nothing done"
    return f"{done}; {hour['undone']} undone, {hour['deadLetters']} messages refused"
