"""Both sides out of the lake: what layouts show was done, and what our decisions wanted.

Stage: above `sides`. The job's own state is replayed, batch after batch (`engine.replay`), so that at each action of
the other scaler it can be asked what we would have said at that moment. Actions that we applied ourselves count for
neither side.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

import pyarrow as pa
import pyarrow.compute as pc

from decisions.autoscale.answers import Hold
from decisions.autoscale.decide import decide
from decisions.autoscale.policy import Policy
from decisions.autoscale.rates import overload
from decisions.topic.layout import SegmentLayout
from engine.autoscale.samples import Samples
from engine.autoscale.topics import ConfiguredPolicy
from engine.history import HISTORY_TABLES, columns_of, history_of
from engine.kernel.settings import EngineSettings
from engine.replay import BucketReplay, RecordedBatch
from lake.tables import read_columns, stream_columns
from ledger.shadow.sides import SAME, Both, Done, Ending, Segments, Sides, Wanted, What, actions_in
from schemas.arrow import arrow_schema
from schemas.ids import EVERY_TOPIC
from schemas.messages import LayoutEvent, OutcomeEvent, parse_message
from schemas.tables import BATCHES, DEAD_LETTERS, DECISIONS, EVENTS, SEGMENT_LOAD, Table

_SETTINGS = EngineSettings(change_threshold=0.0, tick_ms=60_000)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_ROWS = 65_536

Progress = Callable[[int, int], None]
"""Told now and then how many batches are done, of how many."""


class NothingOnRecord(LookupError):
    """The lake has nothing to compare; the message says what is missing."""


@dataclass(frozen=True)
class Recorded:
    """What the lake says of both sides."""

    sides: Sides
    topics: int
    """Topics of which a layout is on record."""
    began_at: int
    """The first and the last batch on record, milliseconds since 1970."""
    ended_at: int
    doubts: Sequence[str]
    """What on record does not follow from what is on record before it."""


def read_sides(
    lake: str,
    configured: ConfiguredPolicy,
    until: datetime | None = None,
    wanted: Callable[[str], bool] = lambda _: True,
    progress: Progress = lambda *_: None,
) -> Recorded:
    """Both sides, of the topics that are `wanted`, from the beginning of the record up to `until` (aware).

    `configured`: the job's policy now, for releases that did not put it on record. Raises `NothingOnRecord`, and what
    Delta raises.
    """
    batches = read_columns(lake, BATCHES, (*columns_of(BATCHES), "committed_at"))
    if until is not None:
        batches = batches.filter(pc.less_equal(batches["batch_at"], pa.scalar(until)))
    if not len(batches):
        raise NothingOnRecord(
            f"no batch of the job is on record in {lake}: is the job running, with [lake] path there?"
        )
    tables = {table.name: _rows(lake, table, until) for table in HISTORY_TABLES}
    reasons = read_columns(lake, DECISIONS, ("decision_id", "reason"))
    events = tables[EVENTS.name]
    is_tick = pc.and_(pc.equal(events["type"], "tick"), pc.equal(events["subject"], EVERY_TOPIC))
    looks = _millis(events.filter(is_tick)["accepted_at"])
    history = history_of(batches, tables)
    topics = [topic for topic in history.topics() if wanted(topic)]
    if not topics:
        raise NothingOnRecord(f"no layout of such a topic is on record in {lake}: does a collector announce them?")
    layouts = {name: rows.slice(0, 0) for name, rows in tables.items()}
    layouts[EVENTS.name] = events.filter(pc.equal(events["type"], "layout"))
    reading = _Reading(
        configured,
        _instants_of_actions(history_of(batches, layouts).of_bucket(topics)),
        sorted(looks),
        dict(zip(_millis(batches["batch_at"]), _millis(batches["committed_at"]), strict=True)),
        dict(zip(reasons["decision_id"].to_pylist(), reasons["reason"].to_pylist(), strict=True)),
    )
    total = len(history.times)
    for number, batch in enumerate(history.of_bucket(topics)):
        reading.take(batch)
        progress(number + 1, total)
    instants = _millis(batches["batch_at"])
    return Recorded(reading.end(), len(reading.layouts), min(instants), max(instants), reading.doubts)


def _instants_of_actions(layouts: Iterable[RecordedBatch]) -> list[tuple[int, str, What]]:
    """When, on which topic and what, in order of time: layouts are announced after it, when loads have gone on."""
    known: dict[str, SegmentLayout] = {}
    found: set[tuple[int, str, What]] = set()
    for batch in layouts:
        for event in batch.events:
            message = parse_message(event.source, event.key, event.value)
            if isinstance(message, LayoutEvent) and message.cause != "deleted":
                layout = SegmentLayout.from_metadata(message.layout)
                acted = actions_in(layout, known.get(message.topic))
                found.update((at or message.at, message.topic, (action, of)) for action, of, _, at in acted)
                known[message.topic] = layout
    return sorted(found)


class _Reading:
    """The story so far."""

    def __init__(
        self,
        configured: ConfiguredPolicy,
        actions: Sequence[tuple[int, str, What]],
        looks: Sequence[int],
        committed: Mapping[int, int],
        reasons: Mapping[str, str],
    ) -> None:
        """`actions` as of `_instants_of_actions`; `committed`: when a batch was in the lake, by its time."""
        self.doubts: list[str] = []
        self.layouts: dict[str, SegmentLayout] = {}
        self._replay = BucketReplay(_SETTINGS, configured, self.doubts)
        self._looks, self._committed, self._reasons = looks, committed, reasons
        self._sides = Sides()
        self._shown: dict[str, set[Segments]] = {}
        """By topic: the children of the actions that its layouts have shown."""
        self._open: dict[str, dict[What, Wanted]] = {}
        self._applied: dict[str, set[What]] = {}
        """What we did ourselves."""
        self._asked: dict[str, tuple[str, What]] = {}
        """By decision id: topic, and what it is about."""
        self._hot: dict[tuple[str, int], int] = {}
        self._to_come = deque(actions)
        self._said: dict[tuple[int, str, What], tuple[str | None, int | None]] = {}
        """At the instant of an action: what we would have said, and since when a segment of it was hot."""

    def take(self, batch: RecordedBatch) -> None:
        while self._to_come and self._to_come[0][0] < batch.now:
            at, topic, what = self._to_come.popleft()
            self._said[at, topic, what] = self._answer(topic, what, at), self._hot_since(topic, what[1])
        messages = [parse_message(event.source, event.key, event.value) for event in batch.events]
        for message in messages:
            if isinstance(message, OutcomeEvent) and message.status == "applied":
                topic, what = self._asked.get(message.decision_id, (message.topic, ("", ())))
                self._applied.setdefault(topic, set()).add(what)
                self._open.get(topic, {}).pop(what, None)
        for message in messages:
            if isinstance(message, LayoutEvent):
                self._take_layout(message, batch.now)
        self._replay.take(batch)
        if batch.samples is not None:
            self._take_loads(batch.samples, batch.now)
        for row in batch.holds:
            if row["gate"] != "in-flight":
                self._close(row["subject"], "withdrawn", batch.now)
        for row in batch.decisions:
            topic, segments = row["subject"], tuple(sorted(json.loads(row["arguments"])["segments"]))
            what = row["action"], segments
            self._asked[row["decision_id"]] = topic, what
            at = self._committed.get(batch.now, batch.now)
            decided = Wanted(
                topic, *what, at, self._reasons.get(row["decision_id"], ""), self._hot_since(topic, segments)
            )
            self._open.setdefault(topic, {}).setdefault(what, decided)

    def end(self) -> Sides:
        for topic in list(self._open):
            self._close(topic, "open", None)
        return self._sides

    def _take_layout(self, event: LayoutEvent, now: int) -> None:
        topic = event.topic
        if event.cause == "deleted":
            self._close(topic, "deleted", now)
            self._forget(topic)
            return
        layout = SegmentLayout.from_metadata(event.layout)
        known = self.layouts.get(topic)
        if known is not None and layout.next_segment_id < known.next_segment_id:
            self._close(topic, "deleted", now)
            self._forget(topic)
            known = None
        shown = self._shown.setdefault(topic, set())
        for action, segments, children, at in sorted(actions_in(layout, known), key=lambda one: one[3]):
            self._sides.parents.update(((topic, child), segments) for child in children)
            if children in shown:
                continue
            shown.add(children)
            if known is not None:
                self._take_done(topic, (action, segments), at or event.at)
        self.layouts[topic] = layout
        active = {segment.segment_id for segment in layout.active}
        for what in [what for what in self._open.get(topic, {}) if not active.issuperset(what[1])]:
            wanted = self._open[topic].pop(what)
            self._sides.ours.append(replace(wanted, ending="overtaken", ended_at=now))

    def _take_done(self, topic: str, what: What, at: int) -> None:
        if what in self._applied.get(topic, ()):
            return
        place = bisect_right(self._looks, at)
        looked_at = self._looks[place] if place < len(self._looks) else None
        said = self._said.get((at, topic, what))
        answer, hot_since = said or (self._answer(topic, what, at), self._hot_since(topic, what[1]))
        wanted = self._open.get(topic, {}).pop(what, None)
        if wanted is None:
            self._sides.theirs.append(Done(topic, *what, at, answer, looked_at, hot_since))
        elif wanted.at > at:
            # Decided, but not in the lake before they did it.
            self._sides.theirs.append(Done(topic, *what, at, SAME, wanted.at, hot_since))
        else:
            self._sides.both.append(Both(wanted, Done(topic, *what, at, SAME, looked_at, hot_since)))

    def _answer(self, topic: str, what: What, at: int) -> str | None:
        """What we would have said at an instant, by all that was known to the job then."""
        snapshot = self._replay.snapshot(topic, at)
        if snapshot is None or not {one.segment_id for one in snapshot.layout.active}.issuperset(what[1]):
            return None
        # A decision that waits for its end is no reason against the next one here: nobody acts.
        answer = decide(replace(snapshot, in_flight=None))
        if isinstance(answer, Hold):
            return str(answer.gate.value)
        segments = tuple(sorted(answer.arguments["segments"]))  # type: ignore[call-overload]
        if (answer.action, segments) == what:
            return SAME
        return f"other: {answer.action} {'+'.join(map(str, segments))}"

    def _close(self, topic: str, ending: Ending, at: int | None) -> None:
        for wanted in self._open.pop(topic, {}).values():
            self._sides.ours.append(replace(wanted, ending=ending, ended_at=at))

    def _forget(self, topic: str) -> None:
        for known in (self._shown, self._applied, self.layouts):
            known.pop(topic, None)
        self._hot = {key: since for key, since in self._hot.items() if key[0] != topic}

    def _hot_since(self, topic: str, segments: Segments) -> int | None:
        found = [self._hot[topic, segment] for segment in segments if (topic, segment) in self._hot]
        return min(found, default=None)

    def _take_loads(self, samples: Samples, now: int) -> None:
        policies: dict[str, Policy | None] = {}
        names = samples.topics.to_pylist()
        for place, segment, rates in zip(
            samples.topic.tolist(), samples.segment.tolist(), samples.rates.tolist(), strict=True
        ):
            topic = names[place]
            if topic not in policies:
                policies[topic] = self._replay.policy(topic)
            policy = policies[topic]
            if policy is not None and overload(tuple(rates), policy)[0] > 1.0:
                self._hot.setdefault((topic, segment), now)
            else:
                self._hot.pop((topic, segment), None)


def _rows(lake: str, table: Table, until: datetime | None) -> pa.Table:
    columns = columns_of(table)
    empty = arrow_schema(table.row).empty_table().select(list(columns))
    if table is DEAD_LETTERS:
        return empty
    instant = {EVENTS.name: "accepted_at", SEGMENT_LOAD.name: "accepted_at", DECISIONS.name: "decided_at"}
    where = None if until is None else pc.field(instant.get(table.name, "since")) <= pa.scalar(until)
    return pa.concat_tables([empty, *stream_columns(lake, table, columns, _ROWS, where)])


def _millis(instants: pa.ChunkedArray) -> list[int]:
    return [(one - _EPOCH) // timedelta(milliseconds=1) for one in instants.to_pylist()]
