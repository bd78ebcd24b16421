"""What a local run did, as one JSON object and as a page of text; computed from the lake after the run.

Stage: the end of `anabranch run --local --report FILE`. Counts come from the Delta tables, the truth about what was
sent from Kafka's end offsets; what cannot be known is null and never invented.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
from deltalake import QueryBuilder

from lab.integrity import check_integrity, end_offsets
from lab.processes import PartState
from lab.traffic import COUNTERS_FILE
from lab.view import action_kind, active_ranges
from lake.tables import open_table
from lake.tail import COMMITTED_AT, Row, cdf_rows
from schemas.settings import Settings
from schemas.tables import BATCHES, DEAD_LETTERS, DECISIONS, EVENTS, HOLDS, OUTCOMES, Table
from schemas.version import ENGINE_VERSION

FINAL = ("applied", "superseded", "rejected", "failed", "observed")
LATENCIES = (
    "eventToKafka", "kafkaToBatch", "batchToCommitted", "eventToCommitted", "committedToIntent", "committedToApplied",
    "eventToApplied",
)  # fmt: skip


def build_report(
    settings: Settings,
    parts: Sequence[PartState],
    started_at: datetime,
    stopped_at: datetime,
    events: Iterable[Any] = (),
) -> dict[str, Any]:
    """The report of the run from `started_at` to `stopped_at` (aware instants). Call it while the broker still runs.

    `events`: what the supervisor wants on record (starts, deaths, restarts); kept as it is given, if JSON can hold it.
    A row belongs to the run when its own time is in it; the integrity checks look at the whole lake. Keys:

    - `run`: `startedAt`, `stoppedAt` (ISO 8601), `seconds`, `engineVersion`
    - `parts`: a list of `name`, `state`, `restarts`, `lastExit`, `detail`; `restarts`: all of them
    - `partEvents`: `events` as given
    - `traffic`: the generator's own counters (`starts`, `sent`, `delivered`, `failed`, `garbage`), or null
    - `batches`: `count`, and `milliseconds` and `operatorMilliseconds` as distributions
    - `messages`: `total`, `accepted`, `suppressed`, `deadLetters`
    - `samples`: `in`, `accepted`, `insignificant`, `stale`
    - `events`: accepted events by type; `evaluations`: topics evaluated
    - `decisions`: `total`, `byAction`, `byReason`, `byTrigger`
    - `outcomes`: decisions by the last step that was written (`notBegun` when there is none)
    - `applied`: applied decisions by what led to them: `split:consumer-count`, `split:load`, `merge`
    - `holds`, `deadLetters`: by gate, by reason
    - `latencies`: milliseconds, each a distribution; of decisions that a consumer event triggered: `eventToKafka`,
      `kafkaToBatch`, `batchToCommitted`, `eventToCommitted`, `eventToApplied`; of all decisions: `committedToIntent`,
      `committedToApplied`
    - `layouts`: by topic, its `epoch` and `segments` (`id`, `start`, `end` of the active ones)
    - `integrity`: `appliedTwice` (decision ids), `sequenceGaps`, `tornLayouts`, `unbalancedBatches`, `countedTwice`
      (Kafka records), each a list that must be empty; `kafka`: `endOffsets` by topic, `counted`, `lag`, or null when
      the broker did not answer; `ok`: whether all of that holds

    A distribution is `n`, `p50`, `p95`, `max`; the last three are null when there is nothing to measure.
    """
    lake = _Lake(settings.lake_path)
    within = _Within(started_at, stopped_at)
    batches = within.rows(lake.rows(BATCHES), "batch_at")
    decisions = lake.committed(DECISIONS)
    outcomes = lake.rows(OUTCOMES)
    ours = within.rows(decisions, "decided_at")
    last_steps = _last_steps(outcomes)
    mine = {row["decision_id"] for row in ours}
    return {
        "run": {
            "startedAt": started_at.isoformat(),
            "stoppedAt": stopped_at.isoformat(),
            "seconds": round((stopped_at - started_at).total_seconds(), 3),
            "engineVersion": ENGINE_VERSION,
        },
        "parts": [
            {
                "name": part.name, "state": part.state, "restarts": part.restarts, "lastExit": part.last_exit,
                "detail": part.detail,
            }
            for part in parts
        ],
        "partEvents": json.loads(json.dumps(list(events), default=str)),
        "restarts": sum(part.restarts for part in parts),
        "traffic": _traffic_counters(settings),
        "batches": {
            "count": len(batches),
            "milliseconds": distribution(_ms(row["batch_at"], row["committed_at"]) for row in batches),
            "operatorMilliseconds": distribution(row["operator_ms"] for row in batches),
        },
        "messages": {
            "total": _sum(batches, "messages"),
            "accepted": _sum(batches, "messages_accepted"),
            "suppressed": _sum(batches, "messages_suppressed"),
            "deadLetters": _sum(batches, "dead_letters"),
        },
        "samples": {
            "in": _sum(batches, "samples"),
            "accepted": _sum(batches, "samples_accepted"),
            "insignificant": _sum(batches, "samples_insignificant"),
            "stale": _sum(batches, "samples_stale"),
        },
        "events": _count(row["type"] for row in within.rows(lake.rows(EVENTS), "accepted_at")),
        "evaluations": _sum(batches, "evaluations"),
        "decisions": {
            "total": len(ours),
            "byAction": _count(row["action"] for row in ours),
            "byReason": _count(row["reason"] for row in ours),
            "byTrigger": _count(row["trigger"] for row in ours),
        },
        "outcomes": _count(last_steps.get(identity, {"status": "notBegun"})["status"] for identity in sorted(mine)),
        "applied": _count(
            action_kind(row) for row in ours if last_steps.get(row["decision_id"], {}).get("status") == "applied"
        ),
        "holds": _count(row["gate"] for row in within.rows(lake.rows(HOLDS), "since")),
        "deadLetters": _count(row["reason"] for row in within.rows(lake.rows(DEAD_LETTERS), "rejected_at")),
        "latencies": latencies(ours, lake.rows(EVENTS), outcomes),
        "layouts": _final_layouts(lake.rows(EVENTS)),
        "integrity": check_integrity(
            lake.rows(BATCHES), decisions, lake.rows(HOLDS), outcomes, lake.rows(EVENTS), lake.rows(DEAD_LETTERS),
            end_offsets(settings.kafka.bootstrap),
        ),
    }  # fmt: skip


def distribution(values: Iterable[float]) -> dict[str, Any]:
    """`n`, and `p50`, `p95` (nearest rank) and `max` of the values, rounded to 0.1; null when there are none."""
    ordered = sorted(values)
    if not ordered:
        return {"n": 0, "p50": None, "p95": None, "max": None}

    def rank(share: float) -> float:
        return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 1)

    return {"n": len(ordered), "p50": rank(0.5), "p95": rank(0.95), "max": round(ordered[-1], 1)}


def latencies(decisions: Iterable[Row], events: Iterable[Row], outcomes: Iterable[Row]) -> dict[str, dict[str, Any]]:
    """Distributions in milliseconds of every stage from a consumer event to the applied decision.

    A decision with the trigger `consumer` belongs to the newest registration or unregistration of its topic in its
    batch; one whose event cannot be found measures nothing. `decisions` carry `COMMITTED_AT`.
    """
    newest: dict[tuple[str, datetime], Row] = {}
    for row in events:
        if row["type"] == "consumer" and row["cause"] in ("registered", "unregistered"):
            key = (row["subject"], row["accepted_at"])
            if key not in newest or row["at"] > newest[key]["at"]:
                newest[key] = row
    first: dict[tuple[str, str], datetime] = {}
    for row in outcomes:
        key_of_step = (row["decision_id"], row["status"])
        first[key_of_step] = min(row["at"], first.get(key_of_step, row["at"]))
    found: dict[str, list[float]] = {name: [] for name in LATENCIES}
    for row in decisions:
        committed = row[COMMITTED_AT]
        intent, applied = (first.get((row["decision_id"], status)) for status in ("intent", "applied"))
        if intent is not None:
            found["committedToIntent"].append(_ms(committed, intent))
        if applied is not None:
            found["committedToApplied"].append(_ms(committed, applied))
        event = newest.get((row["subject"], row["decided_at"])) if row["trigger"] == "consumer" else None
        if event is not None and event["batch_id"] == row["batch_id"]:
            found["eventToKafka"].append(_ms(event["at"], event["kafka_timestamp"]))
            found["kafkaToBatch"].append(_ms(event["kafka_timestamp"], event["accepted_at"]))
            found["batchToCommitted"].append(_ms(row["decided_at"], committed))
            found["eventToCommitted"].append(_ms(event["at"], committed))
            if applied is not None:
                found["eventToApplied"].append(_ms(event["at"], applied))
    return {name: distribution(values) for name, values in found.items()}


def report_text(report: Mapping[str, Any]) -> str:
    """The report as a page of text: what happened, how fast, and whether everything that must hold did."""
    run, messages, samples, checks = report["run"], report["messages"], report["samples"], report["integrity"]
    lines = [
        f"ran {run['seconds']:.0f} s, {report['batches']['count']} batches, {report['restarts']} restarts of parts",
        f"messages     {messages['total']}: {messages['accepted']} accepted, {messages['suppressed']} not significant, "
        f"{messages['deadLetters']} dead letters",
        f"samples      {samples['in']}, {samples['accepted']} significant",
        f"events       {_listed(report['events'])}",
        f"decisions    {report['decisions']['total']}: {_listed(report['decisions']['byReason'])}",
        f"applied      {_listed(report['applied'])}",
        f"outcomes     {_listed(report['outcomes'])}",
        f"holds        {_listed(report['holds'])}",
        f"dead letters {_listed(report['deadLetters'])}",
        "",
        f"{'milliseconds':<28}{'n':>6}{'p50':>9}{'p95':>9}{'max':>9}",
        *(
            f"{words:<28}{found['n']:>6}{_figure(found['p50'])}{_figure(found['p95'])}{_figure(found['max'])}"
            for words, found in (
                ("batch to its commit", report["batches"]["milliseconds"]),
                ("consumer event to Kafka", report["latencies"]["eventToKafka"]),
                ("Kafka to batch", report["latencies"]["kafkaToBatch"]),
                ("batch to decision committed", report["latencies"]["batchToCommitted"]),
                ("event to decision committed", report["latencies"]["eventToCommitted"]),
                ("decision committed to applied", report["latencies"]["committedToApplied"]),
                ("event to applied", report["latencies"]["eventToApplied"]),
            )
        ),
        "",
        *(
            f"{name}: epoch {found['epoch']}, {len(found['segments'])} segments"
            for name, found in report["layouts"].items()
        ),
        "",
        _integrity_line(checks),
    ]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _integrity_line(checks: Mapping[str, Any]) -> str:
    wrong = [f"{name}: {len(found)}" for name, found in checks.items() if isinstance(found, list) and found]
    kafka = checks["kafka"]
    lag = (
        "Kafka did not answer" if kafka is None else f"{kafka['counted']} messages counted, {kafka['lag']} not read yet"
    )
    return f"integrity    {'ok' if checks['ok'] else 'BROKEN: ' + ', '.join(wrong or [lag])} ({lag})"


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"


def _figure(value: float | None) -> str:
    return f"{'-' if value is None else format(value, '.0f'):>9}"


class _Lake:
    """Whole tables, each read once."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._rows: dict[str, list[Row]] = {}

    def rows(self, table: Table) -> list[Row]:
        """All rows of the newest version, in no order; none when the table does not exist."""
        if table.name not in self._rows:
            opened = open_table(self._path, table)
            self._rows[table.name] = (
                []
                if opened is None
                else pa.table(QueryBuilder().register("t", opened).execute("SELECT * FROM t").read_all()).to_pylist()
            )
        return self._rows[table.name]

    def committed(self, table: Table) -> list[Row]:
        """All rows that the log still knows, in commit order, with `COMMITTED_AT`."""
        opened = open_table(self._path, table)
        return [] if opened is None else cdf_rows(opened, 0)


class _Within:
    """The rows whose own time lies in the run."""

    def __init__(self, started_at: datetime, stopped_at: datetime) -> None:
        self._from, self._to = started_at, stopped_at

    def rows(self, rows: Iterable[Row], column: str) -> list[Row]:
        return [row for row in rows if self._from <= row[column] <= self._to]


def _last_steps(outcomes: Iterable[Row]) -> dict[str, Row]:
    """By decision: its final outcome, else its newest step."""
    last: dict[str, Row] = {}
    for row in sorted(outcomes, key=lambda row: (row["status"] in FINAL, row["at"])):
        last[row["decision_id"]] = row
    return last


def _final_layouts(events: Iterable[Row]) -> dict[str, Any]:
    newest: dict[str, Row] = {}
    for row in sorted(events, key=lambda row: (row["accepted_at"], row["kafka_offset"])):
        if row["type"] == "layout":
            newest[row["subject"]] = row
    layouts = {
        topic: json.loads(row["body"])["layout"] for topic, row in sorted(newest.items()) if row["cause"] != "deleted"
    }
    return {
        topic: {
            "epoch": layout["epoch"],
            "segments": [
                {"id": segment, "start": start, "end": end} for segment, (start, end) in active_ranges(layout).items()
            ],
        }
        for topic, layout in layouts.items()
    }


def _traffic_counters(settings: Settings) -> dict[str, Any] | None:
    try:
        found = json.loads((settings.path(settings.local.folder) / COUNTERS_FILE).read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _count(values: Iterable[str]) -> dict[str, int]:
    return dict(Counter(values).most_common())


def _sum(rows: Iterable[Row], column: str) -> int:
    return sum(row[column] for row in rows)


def _ms(earlier: datetime, later: datetime) -> float:
    return (later - earlier).total_seconds() * 1000
