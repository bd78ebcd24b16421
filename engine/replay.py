"""Replay of a bucket: recorded messages in, and the job's state out. Pure.

Stage: above the family, beside the job. It serves `anabranch explain`, `plan`, `decisions replay` and `whatif shadow`,
and rebuilds a lost checkpoint (`anabranch.history.rebuild`). `engine.history` makes batches of the rows. Messages pass
through the job's own intake. Decisions and holds are taken from the record and not decided again, because no table has
the suppressed samples behind them; each is compared with the replayed state instead (`engine.agreement`).
"""

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from types import MappingProxyType
from typing import Any, NamedTuple

import pydantic_core

from decisions.autoscale.policy import Policy
from decisions.autoscale.snapshot import TopicSnapshot
from engine.agreement import Difference, hold_differs, inputs_differ
from engine.autoscale.evaluation import snapshot_of
from engine.autoscale.family import AUTOSCALE
from engine.autoscale.fleet_view import FleetView
from engine.autoscale.policies import ResolvedTopicPolicy
from engine.autoscale.samples import Samples
from engine.autoscale.topics import ConfiguredPolicy, TopicState
from engine.kernel.bucket import Intake
from engine.kernel.packed import Part, StoredPart
from engine.kernel.records import Output, RawRecord
from engine.kernel.settings import EngineSettings
from schemas.ids import decision_id
from schemas.snapshot import ENGINE_VERSION

RecordedRow = Mapping[str, Any]
_EVERY_CHANGE = -1.0
"""Change threshold under which every accepted sample is accepted again, whatever the threshold was."""

AS_RECORDED = EngineSettings(change_threshold=0.0, tick_ms=60_000)
"""Settings of a replay that reads what was accepted and asks for no ticks."""


class RebuildError(RuntimeError):
    """The lake contradicts its own decisions and holds; the message says where."""


@dataclass(frozen=True)
class RecordedBatch:
    """Inputs and results of one micro-batch in one bucket."""

    now: int
    """The batch's time, milliseconds."""
    is_complete: bool
    """True if all tables have it: the job may have died between two commits."""
    events: Sequence[RawRecord]
    samples: Samples | None
    decisions: Sequence[RecordedRow]
    """Rows of the table; their instants are ignored."""
    holds: Sequence[RecordedRow]


class Due(NamedTuple):
    """Topics due at the end of a batch."""

    is_tick: bool
    """True if all topics are due."""
    by_tick: Set[str]
    by_event: Set[str]


class BucketReplay:
    """Replay of one bucket, batch after batch, in the job's order."""

    def __init__(
        self,
        settings: EngineSettings,
        configured: ConfiguredPolicy,
        doubts: list[str] | None = None,
        *,
        every_version: bool = False,
        begun: Mapping[str, StoredPart] = MappingProxyType({}),
        of_older: Collection[str] = (),
    ) -> None:
        """Create a replay.

        `configured`: the job's current policy, for records of releases that did not put it in the stream. `doubts`:
        a list that collects disagreements, which otherwise raise errors. `every_version`: records of other engine
        versions must agree too. `begun` and `of_older`: the result of an earlier replay to continue from; raises
        `StateError`.
        """
        self._doubts, self._every_version = doubts, every_version
        self._known = AUTOSCALE.opener(replace(settings, change_threshold=_EVERY_CHANGE))(begun)
        self._intake = Intake((AUTOSCALE,))
        if self._known.topics.configured is None:
            self._known.topics.set_configured(configured)
        self.state, self.loads, self._policies = self._known.topics, self._known.loads, self._known.policies
        self._due = Due(False, frozenset(), frozenset())
        self._policies_told = set[tuple[str | None, str]]()
        self.of_older = set(of_older)
        """Topics with decisions by another engine version, which are not compared."""

    def take(self, batch: RecordedBatch) -> None:
        """Apply a batch; raises `RebuildError`."""
        self.take_in(batch)
        self.take_over(batch)

    def take_in(self, batch: RecordedBatch) -> Due:
        """Ingest a batch's messages, up to its evaluation. Raises `RebuildError`."""
        output = Output()
        samples = {} if batch.samples is None else {AUTOSCALE.columns.kind: batch.samples}
        begun = [self._known.begin(batch.now, output)]
        if is_tick := self._intake.take(begun, batch.events, samples, batch.now, output):
            self._known.set_back(batch.now)
        for letter in output.dead_letters:
            position = "{kafka_topic}-{kafka_partition} at offset {kafka_offset}".format_map(letter)
            self._doubt(f"an event that was accepted then is not now: {position}: {letter['detail']}")
        self._due = Due(is_tick, *begun[0].due)
        return self._due

    def take_over(self, batch: RecordedBatch) -> None:
        """Apply the recorded results of the batch just ingested. Raises `RebuildError`."""
        held = [(row, self._evaluated(row, batch, "hold")) for row in batch.holds]
        decided = [(row, self._evaluated(row, batch, "decision")) for row in batch.decisions]
        evaluation = self._known.evaluation(batch.now, Output())
        # A tick with new hot keys usually records a row of the topic; the ticks themselves may be left out of the
        # history.
        subjects = {row["subject"] for row in (*batch.holds, *batch.decisions) if row["trigger"] == "tick"}
        evaluation.remember(evaluation.hot_keys(self._due.is_tick, self._due.by_tick | subjects))
        for row, topic in held:
            self.state.hold_at(topic, row["gate"])
            topic.hold_seq = self._next("hold", row, topic.hold_seq, batch)
        for row, topic in decided:
            arguments = pydantic_core.from_json(row["arguments"])
            segments = arguments["segments"]
            identity = topic.decided(row["layout_epoch"], row["action"], arguments, batch.now)
            topic.decision_seq = self._next("decision", row, topic.decision_seq, batch)
            if identity != row["decision_id"]:
                of_older = decision_id(topic.name, row["layout_epoch"], row["action"], segments, topic.attempts)
                if self._has_to_agree(row, batch) and row["decision_id"] != of_older:
                    self._doubt(f"{_name_row('decision', row, batch)} has the id {row['decision_id']}, not {identity}")
                *before, this = topic.all_open
                topic.set_open([*before, replace(this, decision_id=row["decision_id"])])

    def _doubt(self, doubt: str) -> None:
        """Report a disagreement."""
        if self._doubts is None:
            raise RebuildError(doubt)
        self._doubts.append(doubt)

    @property
    def view(self) -> FleetView:
        """All topics in columns, as the job evaluates them."""
        return self._known.view

    def seen_by(self, topic: TopicState, now: int, trigger: str) -> tuple[TopicSnapshot, ResolvedTopicPolicy]:
        """Return the input of an evaluation of a topic with a known layout, and its policy."""
        policy = self._policies.of(self.state, topic)
        return snapshot_of(topic, self.loads, policy, now, trigger), policy

    @property
    def parts(self) -> Mapping[str, Part]:
        """State in the form of the state store."""
        return self._known.parts

    def snapshot(self, name: str, now: int) -> TopicSnapshot | None:
        """Return the snapshot of a topic for a tick at `now` (milliseconds); None without a known layout."""
        topic = self.state.topics.get(name)
        if topic is None or topic.known is None:
            return None
        return snapshot_of(topic, self.loads, self._policies.of(self.state, topic), now, "tick")

    def policy(self, name: str) -> Policy | None:
        """Return the policy of a topic; None if the topic is unknown."""
        topic = self.state.topics.get(name)
        return None if topic is None else self._policies.of(self.state, topic).policy

    def _evaluated(self, row: RecordedRow, batch: RecordedBatch, kind: str) -> TopicState:
        """Return the topic of a decision or hold after comparing the row with the replayed state."""
        name = row["subject"]
        if self._has_to_agree(row, batch):
            topic = self.state.topics.get(name)
            if topic is None or topic.known is None:
                self._doubt(f"{_name_row(kind, row, batch)} is of a topic without a layout in `events`")
                return self.state.touch(name)
            policy = self._policies.of(self.state, topic)
            same_policy = policy.digest == row["policy_digest"]
            if self._every_version and not same_policy and row["engine_version"] == ENGINE_VERSION:
                # Policies of other versions have other fields, and so other digests.
                self._policy_differs(_name_row(kind, row, batch), row["policy_digest"], policy.digest)
            replayed = snapshot_of(topic, self.loads, policy, batch.now, row["trigger"])
            differing: list[Difference] = []
            if row["inputs"] is not None:
                try:
                    differing = inputs_differ(row["inputs"], replayed, same_policy)
                except ValueError as error:
                    self._doubt(
                        f"{_name_row(kind, row, batch)} has inputs that cannot be read: {str(error).splitlines()[0]}"
                    )
            elif same_policy and row["layout_digest"] is not None:
                differing = hold_differs(row, replayed, topic.known.digest)
            if differing:
                changes = "; ".join(
                    f"{field} was {cut_text(then)}, is now {cut_text(now)}" for field, then, now in differing
                )
                self._doubt(f"{_name_row(kind, row, batch)} was taken on another state: {changes}")
        return self.state.touch(name)

    def _policy_differs(self, which: str, then: str | None, now: str) -> None:
        """Report each pair of differing policies once, since many rows share one."""
        if (then, now) not in self._policies_told:
            self._policies_told.add((then, now))
            self._doubt(f"{which} was taken on another policy: policy_digest was {then}, is now {now}")

    def _next(self, kind: str, row: RecordedRow, expected: int, batch: RecordedBatch) -> int:
        if self._has_to_agree(row, batch) and row["seq"] != expected:
            self._doubt(f"{_name_row(kind, row, batch)} should be number {expected}: one is missing or there twice")
        seq: int = row["seq"]
        return seq

    def _has_to_agree(self, row: RecordedRow, batch: RecordedBatch) -> bool:
        """Return whether a row must agree with the replayed state."""
        if row["engine_version"] != ENGINE_VERSION and not self._every_version:
            self.of_older.add(row["subject"])
        return batch.is_complete and row["subject"] not in self.of_older


def _name_row(kind: str, row: RecordedRow, batch: RecordedBatch) -> str:
    batch_at = datetime.fromtimestamp(batch.now / 1000, timezone.utc)
    return f"{kind} {row['seq']} of {row['subject']} at {batch_at:%F %T} UTC"


def cut_text(value: object) -> str:
    """Return a value's text for a message, at most 300 characters of it."""
    text = str(value)
    return text if len(text) < 300 else f"{text[:300]}…"
