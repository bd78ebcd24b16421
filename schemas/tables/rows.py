"""The Delta tables: one row model per table, and their properties (design "Tables").

Append-only, change data feed on, plain protocol features, so that both delta-spark and delta-rs read and write them.
The physical schema is derived (`schemas.tables.arrow`). Times are UTC instants in microseconds; `day` is the UTC date
of the row's own time and the partition column. Longer than other modules because every column stands here once.
"""

from dataclasses import dataclass
from datetime import date, datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict

Family = Literal["autoscale", "bundles", "bookies"]
"""Kind of decision that a row is about (design "Families"); the families share the tables."""

Action = Literal["split", "merge", "rebucket"]


class TableRow(BaseModel):
    """A row of a Delta table: snake_case columns, strict, frozen, no unknown fields."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", use_attribute_docstrings=True)


class DecisionRow(TableRow):
    """One action to take."""

    decision_id: str
    """Digest of subject, layout epoch, action, arguments, attempt and creation times of the segments.

    The same in every replay, and never that of a deleted topic of the same name.
    """
    family: str
    subject: str
    """Subject of the decision: for the family `autoscale` a scalable topic."""
    action: str
    """One of the family's actions, such as `split` or `merge`."""
    arguments: str
    """JSON, by action: `{"segments":[3]}` for a split, `{"segments":[4,5]}` for a merge."""
    reason: str
    trigger: str
    """`consumer` or `tick`."""
    layout_epoch: int | None
    """Epoch of the layout evaluated; None: the family's subjects have no layout."""
    policy_digest: str
    decided_at: datetime
    """The batch's time, `now` for `decide`."""
    inputs: str
    """The whole snapshot evaluated, JSON."""
    gates: str
    """JSON array of the gates evaluated."""
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
    """Earliest time at which the gate could pass by time alone."""
    trigger: str
    since: datetime
    """Time of the evaluation that found it: of its batch."""
    layout_epoch: int | None
    policy_digest: str | None
    inputs: str | None
    """The whole snapshot, JSON, in rows of older releases.

    None: `anabranch explain` computes it from the record.
    """
    gates: str | None
    """JSON array of the gates evaluated; None as for `inputs`."""
    engine_version: str
    batch_id: int
    seq: int
    """Number of this hold among those of its subject: 1, 2, 3, … without gaps."""
    day: date
    layout_digest: str | None
    """Digest of the layout evaluated, as announced.

    None: the family's subjects have no layout, or an older release wrote the row.
    """


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
    """Kafka's time of the message, which bounds the trust in its reporter's clock.

    None: Kafka gave none, or an older release wrote the row.
    """
    batch_id: int
    day: date


class EventRow(TableRow):
    """One accepted consumer or control event, ticks included."""

    subject: str
    """The scalable topic, or `*` for every topic."""
    type: str
    """`consumer`, `layout`, `policy`, `tick`, `outcome` or `delivery`."""
    cause: str | None
    """The event's own kind: registered, split, …; for an outcome its status."""
    body: str
    """The message as received, JSON."""
    at: datetime
    """Time of the event, by its producer's clock."""
    kafka_topic: str
    kafka_partition: int
    kafka_offset: int
    kafka_timestamp: datetime
    accepted_at: datetime
    """The batch's time."""
    batch_id: int
    day: date
    in_columns: bool | None = None
    """True: the following columns repeat the contents of `body`, for queries in SQL.

    None: an older release wrote the row.
    """
    life: int | None = None
    """Creation time of the topic, for layouts and consumers, milliseconds since 1970; None: not announced."""
    epoch: int | None = None
    """Epoch of a layout."""
    active_segments: int | None = None
    """Number of active segments of a layout."""
    decision_id: str | None = None
    """Decision that led to a layout, if known; decision of an outcome."""
    subscription: str | None = None
    """Subscription of a consumer event."""
    subscription_type: str | None = None
    """Type of that subscription: `STREAM`, `CHECKPOINT` or `QUEUE`."""
    consumers: int | None = None
    """Number of its consumers after the event."""
    sender: int | None = None
    """Number of the process that announced a layout or consumers, greater for each one that took over.

    None: not announced, or an older release wrote the row.
    """


class DeadLetterRow(TableRow):
    """One refused message, or a refused sample of a message in columns."""

    reason: str
    """A `RejectReason`."""
    detail: str
    """Location and fault, for a person."""
    key: bytes | None
    """The Kafka key, cut at 4 KiB."""
    raw: bytes | None
    """The Kafka value, cut at 4 KiB (older releases: at 64 KiB); of a sample: the sample, as JSON."""
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
    """Index of the sample in the columns of its message (`SegmentStatsColumns`), from 0.

    None: the whole message.
    """


class BatchRow(TableRow):
    """One micro-batch that read something, with counts of its messages and samples by result.

    Summed over all rows: `messages` is every Kafka record that the job ever read, each exactly once, and `messages =
    messages_accepted + messages_suppressed + dead_letters`, and `samples = samples_accepted + samples_insignificant
    + samples_stale`.
    """

    batch_id: int
    generation: str
    """Identity of the checkpoint: batch ids start again with a new one."""
    batch_at: datetime
    """The batch's time, `now` of everything in it."""
    messages: int
    messages_accepted: int
    """Accepted events, stats messages of one topic with a significant sample, and all in columns.

    Those in columns always count, because their samples go to several buckets.
    """
    messages_suppressed: int
    """Stats messages of one topic without a significant sample."""
    dead_letters: int
    """Messages refused as a whole."""
    samples: int
    """Segment samples in accepted and suppressed stats messages."""
    samples_accepted: int
    samples_insignificant: int
    samples_stale: int
    """Stale samples: out of order, repeated, of a sealed segment, or of too many unknown segments.

    Segments are unknown while no layout names them.
    """
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
    """Samples in columns with a dead letter of their own; None: an older release wrote the row."""
    layouts_unknown: int | None = None
    """Repeated digests that differ from the known layouts; None: an older release wrote the row."""
    previous: int | None = None
    """Batch of the row before it, of the same checkpoint; None: the first one, or an older release wrote the row."""
    checksum: int | None = None
    """Digest of the other columns but `day`, for `lake check`; None: an older release wrote the row."""


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
    """Epoch of the layout observed at this step; None: none, or the family's subjects have none."""
    seen: str
    """JSON: the observed state (segments, states, children) behind this step."""
    error: str | None
    executor: str
    """The executor process that wrote this: host, process and fencing token."""
    mode: str
    """`act`, `approve` or `observe`."""
    day: date


class BrakeRow(TableRow):
    """One act on the executor's brakes, by a person or by the executor itself; the newest one counts."""

    number: int
    """1, 2, 3, … without gaps: the order of the acts, each made knowing those before it."""
    act: str
    """`approve` or `reject` (a decision), `pause` or `resume` (a subject, a namespace, all), or `stop`.

    `stop` is the executor's own, for all, after too many failures; a `resume` of all ends it.
    """
    subject: str
    """The subject of the decision, or a subject, a namespace (`tenant/namespace`), or `*` for all."""
    decision_id: str | None
    """Of `approve` and `reject`."""
    reason: str
    until: datetime | None
    """Time at which a pause ends by itself; None: it needs a `resume`."""
    actor: str
    """A person's name, or the executor process."""
    at: datetime
    """By the actor's clock."""
    day: date


class WaitRow(TableRow):
    """A change of the brake that holds an open decision back.

    A decision waits as its newest row here says, unless a row of `outcomes` is as new or newer.
    """

    decision_id: str
    family: str
    subject: str
    brake: str
    """`stop`, `pause`, `window`, `approval` or `rate`: the first of them, in that order, that holds it."""
    reason: str
    """In words: the person and reason of a pause, the limit, what to do."""
    until: datetime | None
    """Time at which that brake could end by time alone."""
    at: datetime
    executor: str
    """The executor process that wrote this."""
    day: date


class AlertRow(TableRow):
    """A change of an alert's status, or of a notice about it, which is due at a destination."""

    alert: str
    """The rule's name."""
    subject: str
    """The topic concerned, from its label `topic` or `subject`; `*`: none."""
    status: str
    """Status of the alert: `pending`, `firing`, `resolved`, or `inactive` (it was pending only).

    Of a notice: `due`, `told`, `rejected` (by the destination, permanently), or `untold` (given up).
    """
    at: datetime
    summary: str
    labels: str
    """JSON object of the labels that distinguish the alerts of a rule."""
    day: date
    alert_id: str | None = None
    """Digest of rule, labels and start: identifies one alert until its end, and its notices."""
    since: datetime | None = None
    """Time at which the row returned by the rule first appeared."""
    value: float | None = None
    severity: str | None = None
    destination: str | None = None
    """Destination of a notice."""
    notice: str | None = None
    """Status that a notice reports, `firing` or `resolved`."""
    error: str | None = None
    """Last error of a `rejected` or `untold` notice."""


class HorizonRow(TableRow):
    """State of some topics at the start of a day, from which a rebuild needs no older rows."""

    topics: bytes
    """A stored part as in the job's state store, of these topics alone; policies are in each row."""
    loads: bytes
    about: str
    """JSON: its generation, and the Kafka offsets for a rebuild."""
    made_at: datetime
    engine_version: str
    day: date
    """Day before which all batches are included, by their time (UTC)."""
    clusters: bytes | None = None
    """All clusters with bundles, in one of the rows of a horizon; null in the others."""


@dataclass(frozen=True)
class Table:
    """A Delta table: its name, which is also its folder, row model, partition column and writer."""

    name: str
    row: type[TableRow]
    written_by: str
    partition_by: tuple[str, ...] = ("day",)
    log_hours: int = 30 * 24
    """Retention of the log, for readers that follow the table. A busy job commits four times per second."""
    former_log_hours: int = 30 * 24
    """Log retention of a table created by an older release."""

    @property
    def properties(self) -> dict[str, str]:
        """Delta table properties: append-only, with a change data feed and no feature unknown to delta-rs.

        Every checkpoint of the log lists each replaced file for `deletedFileRetentionDuration`. The files themselves
        stay longer (`file_hours`).
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
        """Minimum age at which an unreferenced file is deleted: readers may still use it."""
        return min(max(self.log_hours, 24), 7 * 24)

    @property
    def former_properties(self) -> dict[str, str]:
        """Properties that older releases set, where they differ."""
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
ALERTS = Table("alerts", AlertRow, "alerts")
HORIZONS = Table("horizons", HorizonRow, "people")
"""Written by `anabranch lake retain`; not in `TABLES`, because nobody queries it in SQL."""

TABLES = {
    table.name: table
    for table in (DECISIONS, HOLDS, SEGMENT_LOAD, EVENTS, DEAD_LETTERS, BATCHES, OUTCOMES, BRAKES, WAITS, ALERTS)
}
