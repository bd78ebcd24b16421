"""The Delta tables: one row model per table, and what the tables are made with (design "Tables").

Append-only, change data feed on, plain protocol features, so that both delta-spark and delta-rs read and write them.
The physical schema is derived (`schemas.arrow`). Times are UTC instants in microseconds; `day` is the
UTC date of the row's own time and the partition column.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict

from schemas.messages import RejectReason
from schemas.snapshot import Trigger

Family = Literal["autoscale", "bundles", "bookies"]
"""Which kind of decision a row is about (design "Families"); the families share the tables."""

Action = Literal["split", "merge", "rebucket"]


class TableRow(BaseModel):
    """A row of a Delta table: snake_case columns, strict, frozen, nothing unknown."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", use_attribute_docstrings=True)


class DecisionRow(TableRow):
    """One action to take."""

    decision_id: str
    """Digest of subject, layout epoch, action, arguments, attempt and when the segments were made: the same in every
    replay, and never that of a topic of the same name which was deleted."""
    family: str
    subject: str
    """What is decided about: of the family `autoscale` a scalable topic."""
    action: str
    """One of the family's actions: `split` or `merge`."""
    arguments: str
    """JSON, by action: `{"segments":[3]}` for a split, `{"segments":[4,5]}` for a merge."""
    reason: str
    trigger: str
    """`consumer` or `tick`."""
    layout_epoch: int | None
    """Epoch of the layout that was decided on; None: the family's subjects have no layout."""
    policy_digest: str
    decided_at: datetime
    """The batch's time, which `decide` saw as `now`."""
    inputs: str
    """The whole snapshot that was decided on, JSON."""
    gates: str
    """JSON array of the gates that were looked at."""
    engine_version: str
    batch_id: int
    seq: int
    """Number of this decision among those of its subject: 1, 2, 3, … without gaps."""
    day: date


class HoldRow(TableRow):
    """A change of the binding reason for not acting."""

    family: str
    subject: str
    gate: str
    """Code of the binding gate."""
    measured: float | None
    limit: float | None
    margin: float | None
    eligible_at: datetime | None
    """When the gate could next pass by time alone."""
    trigger: str
    since: datetime
    """Time of the evaluation that found it: of its batch."""
    layout_epoch: int | None
    policy_digest: str | None
    inputs: str | None
    """The whole snapshot, JSON, as older releases wrote it; None: `anabranch explain` works it out from what is on
    record."""
    gates: str | None
    """JSON array of the gates that were looked at; None as above."""
    engine_version: str
    batch_id: int
    seq: int
    """Number of this hold among those of its subject: 1, 2, 3, … without gaps."""
    day: date
    layout_digest: str | None
    """Digest of the layout that it was found on, as that was announced; None: the family's subjects have no layout, or
    an older release wrote the row."""


class SegmentLoadRow(TableRow):
    """One accepted (significant) load record; rates are per second."""

    topic: str
    segment_id: int
    msg_rate_in: float
    bytes_rate_in: float
    msg_rate_out: float
    bytes_rate_out: float
    reporter: str
    sampled_at: datetime
    accepted_at: datetime
    """The batch's time."""
    cause: str
    """`first`, `changed` (moved by more than the band) or `crossed` (crossed a policy threshold)."""
    kafka_partition: int
    kafka_offset: int
    kafka_timestamp: datetime | None
    """When Kafka took the message, which bounds what its reporter's clock is believed; None: Kafka did not say, or an
    older release wrote the row."""
    batch_id: int
    day: date


class EventRow(TableRow):
    """One accepted consumer or control event, ticks included."""

    subject: str
    """The scalable topic, or `*` for what concerns every topic."""
    type: str
    """`consumer`, `layout`, `policy`, `tick`, `outcome` or `delivery`."""
    cause: str | None
    """The event's own kind: registered, split, …; for an outcome its status."""
    body: str
    """The message as it came, JSON."""
    at: datetime
    """When it happened, by its producer's clock."""
    kafka_topic: str
    kafka_partition: int
    kafka_offset: int
    kafka_timestamp: datetime
    accepted_at: datetime
    """The batch's time."""
    batch_id: int
    day: date
    in_columns: bool | None = None
    """True: what `body` says stands in the columns behind as well, for those who ask in SQL; None: an older release
    wrote the row."""
    life: int | None = None
    """Of a layout or of consumers: when their topic was created, milliseconds since 1970; None: it was not said."""
    epoch: int | None = None
    """Of a layout."""
    active_segments: int | None = None
    """Of a layout: how many of its segments are active."""
    decision_id: str | None = None
    """Of a layout: the decision that led to it, if one did and it was said; of an outcome: its decision."""
    subscription: str | None = None
    """Of consumers."""
    subscription_type: str | None = None
    """Of consumers: `STREAM`, `CHECKPOINT` or `QUEUE`."""
    consumers: int | None = None
    """Of consumers: how many there are after it."""


class DeadLetterRow(TableRow):
    """One message that was not accepted, or one sample of a message in columns whose others may be."""

    reason: str
    """A `RejectReason`."""
    detail: str
    """Where and what was wrong, for a person."""
    key: bytes | None
    """The Kafka key, cut at 4 KiB."""
    raw: bytes | None
    """The Kafka value, cut at 4 KiB (releases before: at 64 KiB); of a sample: the sample, as JSON."""
    raw_size: int
    """Length of the whole value in bytes; -1 when there was none. Of a sample: of its message's value."""
    kafka_topic: str
    kafka_partition: int
    kafka_offset: int
    kafka_timestamp: datetime
    rejected_at: datetime
    batch_id: int
    day: date
    raw_sha256: str | None
    """SHA-256 of the whole value, hex; None: there was none, or an older release wrote the row."""
    sample: int | None = None
    """Which sample of its message (`SegmentStatsColumns`) it is, by its place in the columns, from 0; None: the message
    as a whole."""


class BatchRow(TableRow):
    """One micro-batch that read something: what became of every message and every sample in it.

    Summed over all rows: `messages` is every Kafka record that the job ever read, each exactly once, and
    `messages = messages_accepted + messages_suppressed + dead_letters`, and
    `samples = samples_accepted + samples_insignificant + samples_stale`.
    """

    batch_id: int
    generation: str
    """Identity of the checkpoint: batch ids start again with a new one."""
    batch_at: datetime
    """The batch's time, `now` of everything in it."""
    messages: int
    messages_accepted: int
    """Every accepted event, every stats message of one topic with at least one significant sample, and every one in
    columns: its samples go many ways."""
    messages_suppressed: int
    """Stats messages of one topic in which nothing was significant."""
    dead_letters: int
    """Messages that were refused as a whole."""
    samples: int
    """Segment samples in accepted and suppressed stats messages."""
    samples_accepted: int
    samples_insignificant: int
    samples_stale: int
    """Out of order, repeated, of a sealed segment, or beyond the limit for segments that no layout names (yet)."""
    events: int
    decisions: int
    holds: int
    evaluations: int
    """Topics evaluated."""
    operator_ms: float
    """Time spent in the stateful operator's Python, milliseconds, summed over buckets."""
    committed_at: datetime
    """Wall clock after the other tables' commits."""
    day: date
    samples_refused: int | None = None
    """Samples of messages in columns that are dead letters of their own; None: an older release wrote the row."""
    layouts_unknown: int | None = None
    """Layouts that were repeated by digests that are not those of the known ones; None: an older release wrote the
    row."""


class OutcomeRow(TableRow):
    """One step of applying a decision."""

    decision_id: str
    family: str
    subject: str
    status: str
    """`intent`, `applied`, `superseded`, `rejected`, `failed`, or `observed`."""
    attempt: int
    """Calls made for this decision so far, from 0."""
    at: datetime
    layout_epoch: int | None
    """Epoch of the layout that was seen at this step; None: none was seen, or the family's subjects have none."""
    seen: str
    """JSON: what was seen (segments, states, children) when this was judged."""
    error: str | None
    executor: str
    """Which executor process wrote this: host, process and fencing token."""
    mode: str
    """`act`, `approve` or `observe`."""
    day: date


class BrakeRow(TableRow):
    """One act on the executor's brakes, of a person or of the executor itself; the newest one counts."""

    number: int
    """1, 2, 3, … without gaps: the order of the acts, each made knowing those before it."""
    act: str
    """`approve` or `reject` (a decision), `pause` or `resume` (a subject, a namespace, all), or `stop` (all, by the
    executor after too many failures; a `resume` of all ends it)."""
    subject: str
    """What it is about: the subject of the decision, or a subject, a namespace (`tenant/namespace`), or `*` for all."""
    decision_id: str | None
    """Of `approve` and `reject`."""
    reason: str
    until: datetime | None
    """When a pause ends by itself; None: it needs a `resume`."""
    actor: str
    """Who: a person's name, or the executor process."""
    at: datetime
    """By the clock of who did it."""
    day: date


class WaitRow(TableRow):
    """A change of the brake that holds an open decision back.

    A decision waits as its newest row here says, unless a row of `outcomes` that is as new or newer says otherwise.
    """

    decision_id: str
    family: str
    subject: str
    brake: str
    """`stop`, `pause`, `window`, `approval` or `rate`: the first of them, in that order, that holds it."""
    reason: str
    """In words: who paused it and why, which limit, what to do."""
    until: datetime | None
    """When that brake could end by time alone."""
    at: datetime
    executor: str
    """Which executor process wrote this."""
    day: date


class AlertRow(TableRow):
    """An alert that came to another status, or a notice of one: due at a destination, and what became of it there."""

    alert: str
    """The rule's name."""
    subject: str
    """The topic that it is about, by its label `topic` or `subject`; `*`: it is about none."""
    status: str
    """Of the alert: `pending`, `firing`, `resolved`, or `inactive` (it was pending only). Of a notice: `due`,
    `told`, `rejected` (by the destination, for good), or `untold` (given up)."""
    at: datetime
    summary: str
    labels: str
    """JSON object of the labels that tell the alerts of a rule apart."""
    day: date
    alert_id: str | None = None
    """Digest of rule, labels and beginning: of one alert from its beginning to its end, and of its notices."""
    since: datetime | None = None
    """When the row that the rule answers was first there."""
    value: float | None = None
    severity: str | None = None
    destination: str | None = None
    """Of a notice: where it is told."""
    notice: str | None = None
    """Of a notice: the status of which it tells, `firing` or `resolved`."""
    error: str | None = None
    """Of a `rejected` or `untold` notice: the last fault."""


class HorizonRow(TableRow):
    """What a rebuild knows of some topics at the beginning of a day, so that it needs no older row."""

    topics: bytes
    """A stored part as the job's state store has it, of these topics alone; policies are in each row."""
    loads: bytes
    about: str
    """JSON: the generation that it is of, and where a rebuild reads Kafka on."""
    made_at: datetime
    engine_version: str
    day: date
    """All batches before it are in, by their time (UTC)."""
    clusters: bytes | None = None
    """All clusters with bundles, in one of the rows of a horizon; null in the others."""


@dataclass(frozen=True)
class Table:
    """One Delta table: its name, which is also its folder, row model, partition column and who writes it."""

    name: str
    row: type[TableRow]
    written_by: str
    partition_by: tuple[str, ...] = ("day",)
    log_hours: int = 30 * 24
    """How long the log knows a commit: for those who follow the table. A busy job makes four a second."""
    former_log_hours: int = 30 * 24
    """The same of a table that an older release made."""

    @property
    def properties(self) -> dict[str, str]:
        """Delta table properties: append-only with a change data feed, and no feature that delta-rs cannot write.

        Every checkpoint of the log names each file that was replaced, for `deletedFileRetentionDuration`. The files
        themselves stay longer (`file_hours`).
        """
        return {
            "delta.appendOnly": "true",
            "delta.enableChangeDataFeed": "true",
            "delta.logRetentionDuration": f"interval {self.log_hours} hours",
            "delta.deletedFileRetentionDuration": "interval 1 hours",
            "delta.checkpointInterval": "50",
        }

    @property
    def file_hours(self) -> int:
        """How old a file is, at least, when it is deleted that no row is in any more: some may still read it."""
        return min(max(self.log_hours, 24), 7 * 24)

    @property
    def former_properties(self) -> dict[str, str]:
        """What older releases made it with, where that was something else."""
        return {
            "delta.logRetentionDuration": f"interval {self.former_log_hours // 24} days",
            "delta.deletedFileRetentionDuration": "interval 7 days",
        }


DECISIONS = Table("decisions", DecisionRow, "streaming")
HOLDS = Table("holds", HoldRow, "streaming", log_hours=7 * 24)
SEGMENT_LOAD = Table("segment_load", SegmentLoadRow, "streaming", log_hours=2, former_log_hours=2 * 24)
EVENTS = Table("events", EventRow, "streaming", log_hours=24, former_log_hours=7 * 24)
DEAD_LETTERS = Table("dead_letters", DeadLetterRow, "streaming", log_hours=24, former_log_hours=7 * 24)
BATCHES = Table("batches", BatchRow, "streaming", log_hours=2, former_log_hours=2 * 24)
OUTCOMES = Table("outcomes", OutcomeRow, "executor")
BRAKES = Table("brakes", BrakeRow, "people and executor")
WAITS = Table("waits", WaitRow, "executor")
ALERTS = Table("alerts", AlertRow, "ledger")
HORIZONS = Table("horizons", HorizonRow, "people")
"""Made by `anabranch lake retain`; not among `TABLES`, as nobody asks it in SQL."""

TABLES = {
    table.name: table
    for table in (DECISIONS, HOLDS, SEGMENT_LOAD, EVENTS, DEAD_LETTERS, BATCHES, OUTCOMES, BRAKES, WAITS, ALERTS)
}

__all__ = [
    "ALERTS", "BATCHES", "BRAKES", "DEAD_LETTERS", "DECISIONS", "EVENTS", "HOLDS", "HORIZONS", "OUTCOMES",
    "SEGMENT_LOAD", "TABLES", "WAITS", "Action", "AlertRow", "BatchRow", "BrakeRow", "DeadLetterRow", "DecisionRow",
    "EventRow", "Family", "HoldRow", "HorizonRow", "OutcomeRow", "RejectReason", "SegmentLoadRow", "Table",
    "TableRow", "Trigger", "WaitRow",
]  # fmt: skip
