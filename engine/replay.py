"""A bucket's state out of what the lake has on record: rows of accepted messages in, state as the job had it out. Pure.

Stage: beside the job, when a checkpoint is lost (`anabranch state rebuild`). `engine.history` reads the rows,
`streaming.rebuild` puts the state into a new checkpoint. Messages go through the job's own intake. Decisions and holds
are taken over as they are on record, not taken again: what a decision saw of suppressed samples is in no table. Each
one is held against the replayed state instead (`engine.agreement`).
"""

from __future__ import annotations

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
from engine.autoscale.policies import EffectivePolicy
from engine.autoscale.samples import Samples
from engine.autoscale.topics import ConfiguredPolicy, TopicState
from engine.kernel.bucket import Intake
from engine.kernel.packed import Part, StoredPart
from engine.kernel.records import Output, RawRecord
from engine.kernel.settings import EngineSettings
from schemas.ids import decision_id
from schemas.version import ENGINE_VERSION

RecordedRow = Mapping[str, Any]
_EVERY_CHANGE = -1.0
"""As a change threshold: what was accepted once is accepted again, whatever the threshold was then."""


class RebuildError(RuntimeError):
    """The lake does not lead to the state that its own decisions and holds were taken on; the message says where."""


@dataclass(frozen=True)
class RecordedBatch:
    """What a micro-batch of the job has accepted and said of one bucket."""

    now: int
    """The batch's time, milliseconds."""
    is_complete: bool
    """Whether all tables hold it: the job may have died between two of its commits."""
    events: Sequence[RawRecord]
    samples: Samples | None
    decisions: Sequence[RecordedRow]
    """Rows of the table; instants do not matter here."""
    holds: Sequence[RecordedRow]


class Due(NamedTuple):
    """Which topics are to be evaluated at the end of a batch."""

    is_tick: bool
    """All of them."""
    by_tick: Set[str]
    by_event: Set[str]


class BucketReplay:
    """One bucket, batch after batch, in the order in which the job ran them."""

    def __init__(
        self, settings: EngineSettings, configured: ConfiguredPolicy, doubts: list[str] | None = None, *,
        every_version: bool = False, begun: Mapping[str, StoredPart] = MappingProxyType({}),
        of_older: Collection[str] = (),
    ) -> None:  # fmt: skip
        """`configured`: the job's policy now, for records of releases that did not put it in the stream. `doubts`: what
        does not agree is put there, and is no error. `every_version`: what other versions of the engine have said has
        to agree too. `begun` and `of_older`: what a replay of all that was before has left, to go on from; raises
        `StateError`."""
        self._doubts, self._every_version = doubts, every_version
        of_all = replace(settings, change_threshold=_EVERY_CHANGE)
        self._known = AUTOSCALE.opener(of_all)(begun)
        self._intake = Intake((AUTOSCALE,))
        if self._known.topics.configured is None:
            self._known.topics.set_configured(configured)
        self.state, self.loads, self._policies = self._known.topics, self._known.loads, self._known.policies
        self._due = Due(False, frozenset(), frozenset())
        self._policies_told = set[tuple[str | None, str]]()
        self.of_older = set(of_older)
        """Topics that another version of the engine has decided on: what it led to is not held against this one's."""

    def take(self, batch: RecordedBatch) -> None:
        """Takes a batch in; raises `RebuildError`."""
        self.take_in(batch)
        self.take_over(batch)

    def take_in(self, batch: RecordedBatch) -> Due:
        """Takes in what a batch accepted, up to where it would be evaluated. Raises `RebuildError`."""
        output = Output()
        samples = {} if batch.samples is None else {AUTOSCALE.columns.kind: batch.samples}
        begun = [self._known.begin(batch.now, output)]
        is_tick = self._intake.take(begun, batch.events, samples, batch.now, output)
        if is_tick:
            self._known.set_back(batch.now)
        for letter in output.dead_letters:
            place = "{kafka_topic}-{kafka_partition} at offset {kafka_offset}".format_map(letter)
            self._doubt(f"an event that was accepted then is not now: {place}: {letter['detail']}")
        self._due = Due(is_tick, *begun[0].due)
        return self._due

    def take_over(self, batch: RecordedBatch) -> None:
        """Takes over what a batch said that was taken in. Raises `RebuildError`."""
        held = [(row, self._evaluated(row, batch, "hold")) for row in batch.holds]
        decided = [(row, self._evaluated(row, batch, "decision")) for row in batch.decisions]
        evaluation = self._known.evaluation(batch.now, Output())
        # A tick that finds something new of a hot key mostly puts a row of its topic on record; ticks may be left out.
        said = {row["subject"] for row in (*batch.holds, *batch.decisions) if row["trigger"] == "tick"}
        evaluation.remember(evaluation.hot_keys(self._due.is_tick, self._due.by_tick | said))
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
                    self._doubt(f"{_which('decision', row, batch)} has the id {row['decision_id']}, not {identity}")
                *before, this = topic.all_open
                topic.set_open([*before, replace(this, decision_id=row["decision_id"])])

    def _doubt(self, said: str) -> None:
        """Something does not agree."""
        if self._doubts is None:
            raise RebuildError(said)
        self._doubts.append(said)

    @property
    def view(self) -> FleetView:
        """All topics in columns, as the job evaluates them."""
        return self._known.view

    def seen_by(self, topic: TopicState, now: int, trigger: str) -> tuple[TopicSnapshot, EffectivePolicy]:
        """What an evaluation of a topic sees whose layout is known, and its policy."""
        policy = self._policies.of(self.state, topic)
        return snapshot_of(topic, self.loads, policy, now, trigger), policy

    @property
    def parts(self) -> Mapping[str, Part]:
        """The state as the state store holds it."""
        return self._known.parts

    def snapshot(self, name: str, now: int) -> TopicSnapshot | None:
        """What a tick at `now` (milliseconds) would see of a topic; None: its layout is not known."""
        topic = self.state.topics.get(name)
        if topic is None or topic.known is None:
            return None
        return snapshot_of(topic, self.loads, self._policies.of(self.state, topic), now, "tick")

    def policy(self, name: str) -> Policy | None:
        """The policy that a topic has; None: nothing is known of it."""
        topic = self.state.topics.get(name)
        return None if topic is None else self._policies.of(self.state, topic).policy

    def _evaluated(self, row: RecordedRow, batch: RecordedBatch, kind: str) -> TopicState:
        """The topic of a decision or hold, found to be as it was when that was taken."""
        name = row["subject"]
        if self._has_to_agree(row, batch):
            topic = self.state.topics.get(name)
            if topic is None or topic.known is None:
                self._doubt(f"{_which(kind, row, batch)} is of a topic without a layout in `events`")
                return self.state.touch(name)
            policy = self._policies.of(self.state, topic)
            same_policy = policy.digest == row["policy_digest"]
            if self._every_version and not same_policy and row["engine_version"] == ENGINE_VERSION:
                # Other versions have other fields in a policy, and so other digests of it.
                self._policy_differs(_which(kind, row, batch), row["policy_digest"], policy.digest)
            replayed = snapshot_of(topic, self.loads, policy, batch.now, row["trigger"])
            differing: list[Difference] = []
            if row["inputs"] is not None:
                try:
                    differing = inputs_differ(row["inputs"], replayed, same_policy)
                except ValueError as error:
                    self._doubt(
                        f"{_which(kind, row, batch)} has inputs that cannot be read: {str(error).splitlines()[0]}"
                    )
            elif same_policy and row["layout_digest"] is not None:
                differing = hold_differs(row, replayed)
            if differing:
                told = "; ".join(f"{field} was {_cut(then)}, is now {_cut(now)}" for field, then, now in differing)
                self._doubt(f"{_which(kind, row, batch)} was taken on another state: {told}")
        return self.state.touch(name)

    def _policy_differs(self, which: str, then: str | None, now: str) -> None:
        """Told once of each two policies: many rows are taken on one."""
        if (then, now) not in self._policies_told:
            self._policies_told.add((then, now))
            self._doubt(f"{which} was taken on another policy: policy_digest was {then}, is now {now}")

    def _next(self, kind: str, row: RecordedRow, expected: int, batch: RecordedBatch) -> int:
        if self._has_to_agree(row, batch) and row["seq"] != expected:
            self._doubt(f"{_which(kind, row, batch)} should be number {expected}: one is missing or there twice")
        seq: int = row["seq"]
        return seq

    def _has_to_agree(self, row: RecordedRow, batch: RecordedBatch) -> bool:
        """Whether a row has to be what the replayed state leads to."""
        if row["engine_version"] != ENGINE_VERSION and not self._every_version:
            self.of_older.add(row["subject"])
        return batch.is_complete and row["subject"] not in self.of_older


def _which(kind: str, row: RecordedRow, batch: RecordedBatch) -> str:
    at = datetime.fromtimestamp(batch.now / 1000, timezone.utc)
    return f"{kind} {row['seq']} of {row['subject']} at {at:%F %T} UTC"


def _cut(value: object) -> str:
    text = str(value)
    return text if len(text) < 300 else f"{text[:300]}…"
