"""Report of a local run, as a JSON object and as a page of text, computed from the lake afterwards.

Stage: the end of `anabranch run --local --report FILE`. Counts come from the Delta tables, the number of sent
messages comes from Kafka's end offsets. What cannot be known is null.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from confluent_kafka import KafkaException

from anabranch.history.balance import balance_lines, build_balance
from anabranch.history.narrative import tell_run
from anabranch.history.summary import summarize
from anabranch.local.offsets import end_offsets, unread_ticks
from anabranch.local.processes import PartState
from anabranch.local.pulsar.traffic import COUNTS_FILE
from anabranch.local.traffic import COUNTERS_FILE
from lake.integrity import check_integrity
from lake.rows import WholeTables
from schemas.printable import printable
from schemas.settings.root import Settings
from schemas.snapshot import ENGINE_VERSION
from schemas.tables.rows import BATCHES, DEAD_LETTERS, DECISIONS, EVENTS, HOLDS, OUTCOMES

CLIENTS_FILE = "clients.json"
"""Counts of real clients, in the folder of the local run."""


def build_report(
    settings: Settings,
    parts: Sequence[PartState],
    started_at: datetime,
    stopped_at: datetime,
    events: Iterable[Any] = (),
    executor_stopped_at: datetime | None = None,
) -> dict[str, Any]:
    """Build the report of the run from `started_at` to `stopped_at` (aware instants).

    Call it while the broker still runs.

    `events`: what the supervisor wants on record (starts, deaths, restarts); kept as it is given, if JSON can hold it.
    A row belongs to the run when its own time is in it; the integrity checks look at the whole lake. Keys:

    - `run`: `startedAt`, `stoppedAt` (ISO 8601), `seconds`, `engineVersion`
    - `parts`: a list of `name`, `state`, `restarts`, `lastExit`, `detail`; `restarts`: all of them
    - `partEvents`: `events` as given
    - `traffic`: the generator's own counters (`starts`, `sent`, `delivered`, `failed`, `garbage`), or null
    - `clients`: of a run with real clients, messages `produced`, `consumed`, `lost`, `outOfOrder`, `repeated` (delivery
      is at least once) and `failed`, or null
    - `load`: of a run with Pulsar, what its client counted (`anabranch.local.pulsar.load`), or null
    - `batches`: `count`, and `milliseconds` and `operatorMilliseconds` as distributions
    - `messages`: `total`, `accepted`, `suppressed`, `deadLetters`
    - `samples`: `in`, which are `accepted`, `insignificant` or `stale`; beside them `refused`, of messages in columns
    - `events`: accepted events by type; `evaluations`: topics evaluated
    - `decisions`: `total`, `byAction`, `byReason`, `byTrigger`
    - `outcomes`: decisions by the last step that was written (`notBegun` when there is none)
    - `applied`: applied decisions by what led to them: `split:consumer-count`, `split:load`, `merge`
    - `holds`, `deadLetters`: by gate, by reason
    - `latencies`: milliseconds, each a distribution; of decisions that a consumer event triggered: `eventToKafka`,
      `kafkaToBatch`, `batchToCommitted`, `eventToCommitted`, `eventToApplied`; of all decisions: `committedToIntent`,
      `committedToApplied`
    - `balance`: how every decision ended and why, and the topics that stayed over a threshold
      (`anabranch.history.balance.build_balance`); `executor_stopped_at`: decisions committed later cannot have been
      applied
    - `narrative`: the run in sentences (`anabranch.history.narrative.tell_run`)
    - `layouts`: by topic, its `epoch` and `segments` (`id`, `start`, `end` of the active ones)
    - `integrity`: `appliedTwice` (decision ids), `sequenceGaps`, `tornLayouts`, `unbalancedBatches`, `countedTwice`
      (Kafka records), each a list that must be empty; `kafka`: `endOffsets` by topic, `counted`, `lag` (messages that
      were not read, but for `ticks`, which the job writes itself until it stops), or null when the broker did not
      answer; `ok`: whether all of that holds

    A distribution is `n`, `p50`, `p95`, `max`; the last three are null when there is nothing to measure.
    """
    lake = WholeTables(settings.lake_path)
    has_pulsar = any(part.name == "pulsar" for part in parts)
    has_clients = not has_pulsar and settings.traffic.load == "clients"
    return {
        "run": {
            "startedAt": started_at.isoformat(),
            "stoppedAt": stopped_at.isoformat(),
            "seconds": round((stopped_at - started_at).total_seconds(), 3),
            "engineVersion": ENGINE_VERSION,
        },
        "parts": [
            {
                "name": part.name,
                "state": part.state,
                "restarts": part.restarts,
                "lastExit": part.last_exit,
                "detail": part.detail,
            }
            for part in parts
        ],
        "partEvents": json.loads(json.dumps(list(events), default=str)),
        "restarts": sum(part.restarts for part in parts),
        "traffic": None if has_clients else _counters(settings, COUNTERS_FILE),
        "clients": _counters(settings, CLIENTS_FILE) if has_clients else None,
        "load": _counters(settings, COUNTS_FILE) if has_pulsar else None,
        **summarize(lake, started_at, stopped_at),
        "balance": build_balance(lake, started_at, stopped_at, executor_stopped_at),
        "narrative": tell_run(lake, started_at, stopped_at),
        "integrity": _integrity(settings, lake),
    }


def _integrity(settings: Settings, lake: WholeTables) -> dict[str, Any]:
    events, dead_letters = lake.rows(EVENTS), lake.rows(DEAD_LETTERS)
    checks = check_integrity(
        lake.rows(BATCHES),
        lake.rows(DECISIONS),
        lake.rows(HOLDS),
        lake.rows(OUTCOMES),
        events,
        dead_letters,
        end_offsets(settings.kafka_connection()),
    )
    kafka = checks["kafka"]
    if kafka is not None and kafka["lag"] > 0:
        with suppress(KafkaException):
            kafka["ticks"] = unread_ticks(settings.kafka_connection(), [*events, *dead_letters])
            kafka["lag"] -= kafka["ticks"]
    return checks


def report_text(report: Mapping[str, Any]) -> str:
    """The report as a page of text: what happened, how fast, and whether everything that must hold did."""
    run, messages, samples, checks = report["run"], report["messages"], report["samples"], report["integrity"]
    lines = [
        f"ran {run['seconds']:.0f} s, {report['batches']['count']} batches, {report['restarts']} restarts of parts",
        f"messages     {messages['total']}: {messages['accepted']} accepted, {messages['suppressed']} not significant, "
        f"{messages['deadLetters']} dead letters",
        f"samples      {samples['in']}, {samples['accepted']} significant; {samples['refused']} refused",
        *_load_lines(report.get("load")),
        f"events       {_listed(report['events'])}",
        f"decisions    {report['decisions']['total']}: {_listed(report['decisions']['byReason'])}",
        f"applied      {_listed(report['applied'])}",
        f"outcomes     {_listed(report['outcomes'])}",
        f"holds        {_listed(report['holds'])}",
        f"dead letters {_listed(report['deadLetters'])}",
        "",
        f"{'milliseconds':<28}{'n':>6}{'p50':>9}{'p95':>9}{'max':>9}",
        *(
            f"{words:<28}{figures['n']:>6}{_figure(figures['p50'])}{_figure(figures['p95'])}{_figure(figures['max'])}"
            for words, figures in (
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
            f"{printable(name)}: epoch {layout['epoch']}, {len(layout['segments'])} segments"
            for name, layout in report["layouts"].items()
        ),
        "",
        *balance_lines(report["balance"]),
        "",
        "what happened:",
        *(f"  {printable(sentence)}" for sentence in report["narrative"]),
        "",
        _integrity_line(checks),
        *([clients_line(report["clients"])] if report.get("clients") else []),
    ]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def clients_line(counts: Mapping[str, int]) -> str:
    """Return the counts of real clients in a line."""
    words = ("produced", "consumed", "lost", "outOfOrder", "repeated", "failed")
    named = {"outOfOrder": "out of order", "repeated": "received again", "failed": "not stored"}
    return ", ".join(
        f"{counts[word]:,} {named.get(word, word)}" for word in words if counts[word] or word not in words[4:]
    )


def _load_lines(load: Mapping[str, Any] | None) -> list[str]:
    if not load or "acknowledged" not in load:
        return []
    return [
        f"load         {load['acknowledged']} messages acknowledged by Pulsar, {load['missing']} of them not received, "
        f"{load['resent']} received again, {load['inversions']} out of the order of their key; "
        f"{len(load['segments'])} segments"
    ]


def _integrity_line(checks: Mapping[str, Any]) -> str:
    wrong = [f"{name}: {len(errors)}" for name, errors in checks.items() if isinstance(errors, list) and errors]
    kafka = checks["kafka"]
    lag = (
        "Kafka did not answer" if kafka is None else f"{kafka['counted']} messages counted, {kafka['lag']} not read yet"
    )
    return f"integrity    {'ok' if checks['ok'] else 'BROKEN: ' + ', '.join(wrong or [lag])} ({lag})"


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {printable(name)}" for name, count in counts.items()) or "none"


def _figure(value: float | None) -> str:
    return f"{'-' if value is None else format(value, '.0f'):>9}"


def _counters(settings: Settings, file: str) -> dict[str, Any] | None:
    try:
        counters = json.loads((settings.path(settings.local.folder) / file).read_text())
    except (OSError, ValueError):
        return None
    return counters if isinstance(counters, dict) else None
