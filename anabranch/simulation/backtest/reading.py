"""History of topics from the lake: each table in one pass into a file, then read part by part.

Stage: under `running`. A part is the unit of work of one process, and memory holds one part. Instants are those of the
job's batches.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.query.topics import topics_on_record
from anabranch.simulation.backtest.demand import Loads
from anabranch.simulation.backtest.incarnations import Announced, Told, ToldConsumers, TopicLife, topic_lives
from anabranch.simulation.backtest.loads import Progress, loads_of_part, spill_loads
from anabranch.simulation.backtest.record import batch_instants, recorded_delay, recorded_policies, recorded_ticks
from anabranch.simulation.backtest.spilling import (
    TOPIC_INDEX,
    as_arrow,
    instant,
    part_topics,
    read_part,
    spill_table,
    utc_text,
)
from anabranch.simulation.topics.run import CHANGE_THRESHOLD, delay_in_steps
from anabranch.simulation.topics.timeline import ConsumersFrom, step_for
from decisions.topic.layout import LayoutError, SegmentLayout
from engine.autoscale.topics import ConfiguredPolicy
from lake.forgotten import Retained, namespace_of
from schemas.ids import topic_parts
from schemas.kafka.messages import ConsumerEvent, LayoutEvent
from schemas.metadata import AutoScalePolicyOverride
from schemas.tables.rows import DECISIONS, EVENTS, HOLDS, OUTCOMES

WARM_TICKS = 120
"""Of the time before a part of a record that is simulated and not counted: two hours, at a tick a minute.

What the job remembers of returned loads and regretted merges is in no table, and lasts for an hour or so.
"""
OUTAGE_TICKS = 3
"""No batch for longer than this: the job was down, or nobody reported."""
UNKNOWN_GATES = ("load-missing", "load-stale")
_EVENT_COLUMNS = ("type", "body", "accepted_at", "kafka_partition", "kafka_offset")
_OF_SENDING = re.compile(r'"(?:at|sender)"\s*:\s*\d+')
"""Fields that differ between an announcement and its repetition."""


class NoHistory(LookupError):
    """Nothing to backtest; the message says what is missing and what to do."""


@dataclass(frozen=True)
class TopicHistory:
    """Record of a topic for the time of its existence."""

    name: str
    began_at: int
    """Beginning of what is simulated."""
    ends_at: int
    counted_from: int
    """Beginning of what is counted."""
    announced: Sequence[Announced]
    """The first holds at the beginning."""
    loads: Loads
    consumers: Sequence[ConsumersFrom]
    held: Sequence[tuple[int, str]] = ()
    """Beginning and gate of each hold; an action in between ends it."""
    decided: Sequence[tuple[int, str, tuple[int, ...], str | None]] = ()
    """Instant, action and segments of each decision, and its outcome if it was not applied."""


@dataclass(frozen=True)
class History:
    """Backtested history of a lake; cheap to send to another process."""

    folder: str
    """Folder with the rows of all parts."""
    parts: Sequence[Sequence[str]]
    """Topics."""
    recorded_from: int
    """Beginning of what is in the files, loads but for those that held then."""
    began_at: int
    ends_at: int
    outages: Sequence[tuple[int, int]]
    """Intervals without a batch."""
    ran: ConfiguredPolicy
    """The cluster's policy that ran for most of the time."""
    other_policy: Sequence[tuple[int, int]] = ()
    """Intervals in which another one ran."""
    namespaces: dict[str, str] = field(default_factory=dict)
    """Overrides of namespaces at the end, JSON."""
    tick_ms: int = 60_000
    """Period of the job's ticks, as on record."""
    phase_ms: int = 0
    """Offset of the ticks from whole multiples of their period."""
    change_threshold: float = CHANGE_THRESHOLD
    """Part by which a load may move without a record (`[stream] change_threshold`)."""
    loads: int = 0
    asked_from: int | None = None
    kept_from: dict[str, int] = field(default_factory=dict)
    """By namespace, from when on its rows are kept, where older ones are forgotten."""
    recorded_delay_ms: int | None = None
    """From a decision to its layout, the median on record; None: no decision was carried out."""

    @property
    def step_ms(self) -> int:
        """Return the step of simulations of this history."""
        return step_for(self.tick_ms)

    @property
    def delay_ms(self) -> int:
        """Return the simulated time from a decision to its layout."""
        return delay_in_steps(self.recorded_delay_ms or 0, self.step_ms) * self.step_ms

    @property
    def outage_ms(self) -> int:
        """Return the longest time without a batch, or without the first load of a topic, that is no gap."""
        return OUTAGE_TICKS * self.tick_ms

    @property
    def simulated_from(self) -> int:
        """Return the beginning of simulations; time before `began_at` is not counted."""
        return max(self.recorded_from, self.began_at - WARM_TICKS * self.tick_ms // self.step_ms * self.step_ms)

    @property
    def topics(self) -> int:
        """Return the number of topics."""
        return sum(len(part) for part in self.parts)

    def between(self, begin: int, end: int) -> "History":
        """Return the history of a part of the time; both instants are whole steps of this one."""

        return replace(self, began_at=begin, ends_at=end)

    def part(self, number: int) -> list[TopicHistory]:
        """Return the records of a part's topics, by name. Raises what Delta raises."""
        folder, names = Path(self.folder), self.parts[number]
        first = sum(len(part) for part in self.parts[:number])
        layouts, consumers = _events(read_part(folder, EVENTS, number), first)
        held = _held(read_part(folder, HOLDS, number), first)
        decided = _decided(read_part(folder, DECISIONS, number), read_part(folder, OUTCOMES, number), first)
        loads = loads_of_part(folder, number, first, len(names))
        records: list[TopicHistory] = []
        for index, name in enumerate(names):
            for life in topic_lives(layouts.get(index, [])):
                if (span := self._span(name, life)) is None:
                    continue
                begin, end, announced = span
                counted_from = max(begin, self.began_at)
                mine = life.consumers(consumers.get(index, []))
                before = {change.subscription: change for change in mine if change.at <= begin}
                records.append(
                    TopicHistory(
                        name,
                        begin,
                        end,
                        counted_from,
                        announced,
                        _between(loads[index], life, end),
                        [
                            *(change._replace(at=begin) for change in before.values()),
                            *(change for change in mine if begin < change.at < end),
                        ],
                        held.get(index, []),
                        decided.get(index, []),
                    )
                )
        return records

    def _span(self, name: str, life: TopicLife) -> tuple[int, int, list[Announced]] | None:
        """Return a topic's lifetime in whole steps, and its layouts then; None: it is not in the counted time."""
        namespace = topic_parts(name).full_namespace
        simulated_from = max(self.simulated_from, self.kept_from.get(namespace, 0))
        first, step = life.layouts[0].at, self.step_ms
        begin = max(simulated_from, (first - self.phase_ms) // step * step + self.phase_ms)
        end = self.ends_at if life.ends is None else min(life.ends, self.ends_at)
        end = begin + (end - begin) // step * step
        if end <= max(begin, self.began_at):
            return None
        current = [shown for shown in life.layouts if shown.at <= max(begin, first)][-1]
        later = [shown for shown in life.layouts if current.at < shown.at < end]
        announced = [current._replace(at=begin), *later]
        if (override := self.namespaces.get(namespace)) is not None:
            announced = [shown._replace(layout=_with(shown.layout, override)) for shown in announced]
        return begin, end, announced


def open_history(
    lake: str,
    folder: Path,
    since: datetime | None,
    until: datetime | None,
    topics: str | None,
    configured: ConfiguredPolicy,
    tick_ms: int = 60_000,
    progress: Progress = lambda *_: None,
    change_threshold: float = CHANGE_THRESHOLD,
    draw: Callable[[Sequence[str]], Sequence[str]] = lambda names: names,
) -> History:
    """Return the recorded history between two instants (aware; None: all).

    `topics`: a pattern of names, as of files in a shell, with or without `topic://`; None: all. `draw` may leave some
    of the matching names out. `configured`,
    `tick_ms`: the policy and the tick that are assumed where none is on record. Raises `NoHistory`, and what Delta
    raises.
    """
    committed_at = batch_instants(lake)
    if not len(committed_at):
        raise NoHistory(f"no batch of the job is on record in {lake}: is the job running, with [lake] path there?")
    first, last = int(committed_at[0]), int(committed_at[-1])
    retained = Retained(lake)
    if retained.everywhere is not None:
        first = max(first, instant(retained.everywhere))
    begin = first if since is None else max(first, instant(since))
    end = last if until is None else min(last, instant(until))
    tick_ms, phase = recorded_ticks(lake, begin, end, tick_ms)
    step_ms = step_for(tick_ms)
    begin = -(-(begin - phase) // step_ms) * step_ms + phase
    end = (end - phase) // step_ms * step_ms + phase
    window = (first if since is None else instant(since)), (last if until is None else instant(until))
    if begin >= end and first <= window[0] < window[1] <= last:
        raise NoHistory(
            f"the record is read in steps of {step_ms / 1000:g} s, and no whole one lies between {utc_text(window[0])} "
            f"and {utc_text(window[1])}; choose a longer window"
        )
    if begin >= end:
        raise NoHistory(
            f"nothing is on record between {'the beginning' if since is None else utc_text(instant(since))} and "
            f"{'now' if until is None else utc_text(instant(until))}: the record goes from "
            f"{utc_text(first)} to {utc_text(last)}; say --since and --until within it"
        )
    on_record = topics_on_record(lake)
    names = on_record if topics is None else [name for name in on_record if _fits(name, topics)]
    if not names:
        if not on_record:
            raise NoHistory(f"no layout of any topic is on record in {lake}: does something announce layouts?")
        near = ", ".join(on_record[:5])
        raise NoHistory(f"no topic on record fits --topics {topics}; there are {len(on_record)}, as {near}")
    names = list(draw(names))
    size = part_topics(lake, len(on_record))
    parts = [names[first_name : first_name + size] for first_name in range(0, len(names), size)]
    folder.mkdir(parents=True, exist_ok=True)
    recorded_from = max(
        -(-(first - phase) // step_ms) * step_ms + phase, begin - WARM_TICKS * tick_ms // step_ms * step_ms
    )
    if not (loads := _spill(lake, folder, parts, recorded_from, end, progress)):
        raise NoHistory(
            f"no load of {len(names)} topics is on record between {utc_text(begin)} and {utc_text(end)}: do brokers "
            "report, and are their segments those of the layouts?"
        )
    inside = np.r_[recorded_from, committed_at[(committed_at > recorded_from) & (committed_at < end)], end]
    quiet = np.flatnonzero(np.diff(inside) > OUTAGE_TICKS * tick_ms)
    outages = [(int(inside[index]), int(inside[index + 1])) for index in quiet]
    ran, other, namespaces = recorded_policies(lake, begin, end, configured)
    asked = None if since is None else instant(since)
    kept_from = {
        namespace: retained_from
        for namespace in map(namespace_of, names)
        if namespace and (retained_from := retained.of_namespace(namespace))
    }
    return History(
        str(folder),
        parts,
        recorded_from,
        begin,
        end,
        outages,
        ran,
        other,
        namespaces,
        tick_ms,
        phase,
        change_threshold,
        loads,
        asked if asked is not None and first - asked > OUTAGE_TICKS * tick_ms else None,
        {
            name: -(-(instant(retained_from) - phase) // step_ms) * step_ms + phase
            for name, retained_from in kept_from.items()
        },
        recorded_delay(lake, recorded_from, end),
    )


def _spill(lake: str, folder: Path, parts: Sequence[Sequence[str]], begin: int, end: int, progress: Progress) -> int:
    """Write the rows of all topics to files, each table in one pass; return the number of loads."""
    is_before_end = pc.field("accepted_at") < as_arrow(end)
    of_topics = pc.field("type").isin(["layout", "consumer"]) & is_before_end
    for table, topic, columns, where in (
        (EVENTS, "subject", _EVENT_COLUMNS, of_topics),
        (HOLDS, "subject", ("gate", "since"), None),
        (DECISIONS, "subject", ("decision_id", "action", "arguments", "decided_at"), None),
        (OUTCOMES, "subject", ("decision_id", "status"), None),
    ):
        progress(f"reading {table.name}", 0.0)
        spill_table(lake, folder, table, topic, columns, parts, where)
    return spill_loads(lake, folder, parts, begin, end, progress)


def _between(loads: Loads, life: TopicLife, end: int) -> Loads:
    """Return the loads of a life: earlier ones belong to another topic of its name."""
    begin = life.layouts[0].at if life.after else 0
    mine = slice(*np.searchsorted(loads.at, (begin, end)))
    return Loads(loads.at[mine], loads.segment[mine], loads.rates[mine])


def _events(rows: pa.Table, first: int) -> tuple[dict[int, list[Told]], dict[int, list[ToldConsumers]]]:
    """Return layouts and consumers by the position of their topic in its part, ascending."""
    rows = rows.sort_by([(name, "ascending") for name in ("accepted_at", "kafka_partition", "kafka_offset")])
    layouts: dict[int, list[Told]] = {}
    consumers: dict[int, list[ToldConsumers]] = {}
    newest: dict[int, str] = {}
    for batch in rows.to_batches(4_096):
        for topic_index, kind, body, accepted_at in zip(
            *(batch[name].to_pylist() for name in (TOPIC_INDEX, "type", "body", "accepted_at")), strict=True
        ):
            if kind == "consumer":
                event = ConsumerEvent.model_validate_json(body)
                sessions = 0 if event.event == "deleted" else event.consumers
                change = ConsumersFrom(accepted_at, event.subscription, event.type, sessions)
                consumers.setdefault(topic_index - first, []).append(
                    ToldConsumers(change, event.at, event.topic_created_at)
                )
                continue
            text = _OF_SENDING.sub("", body)
            if newest.get(topic_index) == text:
                # Older releases recorded every repetition.
                continue
            newest[topic_index] = text
            layout_event = LayoutEvent.model_validate_json(body)
            try:
                announced = Announced(
                    accepted_at, SegmentLayout.from_metadata(layout_event.layout), layout_event.decision_id
                )
            except LayoutError:
                continue
            layouts.setdefault(topic_index - first, []).append(
                Told(announced, layout_event.cause == "deleted", layout_event.at, layout_event.topic_created_at)
            )
    return layouts, consumers


def _held(rows: pa.Table, first: int) -> dict[int, list[tuple[int, str]]]:
    """Return instants and gates of holds, by the position of the topic."""
    by_topic: dict[int, list[tuple[int, str]]] = {}
    for topic_index, gate, held_since in zip(
        *(rows[name].to_pylist() for name in (TOPIC_INDEX, "gate", "since")), strict=True
    ):
        by_topic.setdefault(topic_index - first, []).append((held_since, gate))
    return {topic_index: sorted(held) for topic_index, held in by_topic.items()}


def _decided(
    rows: pa.Table, outcomes: pa.Table, first: int
) -> dict[int, list[tuple[int, str, tuple[int, ...], str | None]]]:
    """Return decisions by the position of the topic, with the outcome of those that were not applied."""
    ended = outcomes.filter(pc.field("status").isin(["rejected", "failed", "superseded"]))
    failed = dict(zip(ended["decision_id"].to_pylist(), ended["status"].to_pylist(), strict=True))
    by_topic: dict[int, list[tuple[int, str, tuple[int, ...], str | None]]] = {}
    columns = (TOPIC_INDEX, "decision_id", "action", "arguments", "decided_at")
    for topic_index, which, action, arguments, decided_at in zip(
        *(rows[name].to_pylist() for name in columns), strict=True
    ):
        segments = tuple(json.loads(arguments)["segments"])
        by_topic.setdefault(topic_index - first, []).append((decided_at, action, segments, failed.get(which)))
    return {topic_index: sorted(decided, key=lambda row: row[0]) for topic_index, decided in by_topic.items()}


def _with(layout: SegmentLayout, namespace: str) -> SegmentLayout:
    """Return the layout with the override of the namespace under the topic's own."""
    own = layout.auto_scale_policy
    under = json.loads(namespace)
    if own is not None:
        under |= json.loads(own.known_json())
    return layout.with_policy(AutoScalePolicyOverride.model_validate_json(json.dumps(under)))


def _fits(name: str, glob: str) -> bool:
    short = name.removeprefix("topic://")
    return any(fnmatchcase(form, glob) for form in (name, short, short.rpartition("/")[2]))
