"""The history of topics out of the lake: loads once through into a file for each part of the topics, all else part by
part, so that memory holds one part.

Stage: under `running`. A part is what one process works on at a time. The instants are those of the job's batches.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from decisions.topic.layout import LayoutError, SegmentLayout
from engine.autoscale.topics import ConfiguredPolicy
from lake.horizons import retained_from
from lake.tables import read_columns, stream_columns
from ledger.backtest.demand import Loads
from ledger.backtest.lives import Announced, spans_of
from ledger.backtest.spilling import (
    ROWS,
    Progress,
    as_arrow,
    instant,
    loads_of,
    millis,
    part_topics,
    said_of,
    spill,
)  # fmt: skip
from ledger.simulate.run import CHANGE_THRESHOLD
from ledger.simulate.timeline import ConsumersFrom, step_for
from ledger.topics import topics_on_record
from schemas.ids import EVERY_TOPIC, topic_parts
from schemas.messages import ConsumerEvent, LayoutEvent, PolicyEvent
from schemas.metadata import AutoScalePolicyOverride
from schemas.tables import BATCHES, DECISIONS, EVENTS, HOLDS, OUTCOMES

OUTAGE_TICKS = 3
"""No batch for longer than this: the job was down, or nobody reported."""
_FEW_TICKS = 10
UNKNOWN_GATES = ("load-missing", "load-stale")
_SAID_EPOCH = re.compile(r'"layout"\s*:\s*\{.*?"epoch"\s*:\s*(\d+)', re.DOTALL)


class NoHistory(LookupError):
    """There is nothing to backtest; the message says what is missing and what to do."""


@dataclass(frozen=True)
class TopicRecord:
    """What is on record of a topic for the time for which it was there."""

    name: str
    began_at: int
    ends_at: int
    announced: Sequence[Announced]
    """The first holds at the beginning."""
    loads: Loads
    consumers: Sequence[ConsumersFrom]
    held: Sequence[tuple[int, str]] = ()
    """From when on by which gate; an action in between ends it."""
    decided: Sequence[tuple[int, str, tuple[int, ...], str | None]] = ()
    """When, what, of which segments, and how it ended when it was not applied."""


@dataclass(frozen=True)
class History:
    """What of a lake is backtested; cheap to send to another process."""

    lake: str
    folder: str
    """Where the loads of each part are."""
    parts: Sequence[Sequence[str]]
    """Topics."""
    began_at: int
    ends_at: int
    outages: Sequence[tuple[int, int]]
    """When no batch was written."""
    ran: ConfiguredPolicy
    """The cluster's policy that ran for most of the time."""
    other_policy: Sequence[tuple[int, int]] = ()
    """When another one ran."""
    namespaces: dict[str, str] = field(default_factory=dict)
    """Overrides of namespaces at the end, JSON."""
    tick_ms: int = 60_000
    """Period of the job's ticks, as on record."""
    phase_ms: int = 0
    """When ticks came, after whole multiples of their period."""
    change_threshold: float = CHANGE_THRESHOLD
    """Part by which a load may move without a record (`[stream] change_threshold`)."""
    loads: int = 0
    asked_from: int | None = None

    @property
    def step_ms(self) -> int:
        """Step of simulations of this history."""
        return step_for(self.tick_ms)

    @property
    def outage_ms(self) -> int:
        """Longest time without a batch, or without the first load of a topic, that is no gap."""
        return OUTAGE_TICKS * self.tick_ms

    @property
    def topics(self) -> int:
        """How many there are."""
        return sum(len(part) for part in self.parts)

    def part(self, number: int) -> list[TopicRecord]:
        """What is on record of the topics of a part, by name. Raises what Delta raises."""
        names = list(self.parts[number])
        layouts, consumers = _events(self.lake, names, self.ends_at)
        held, decided = _held(self.lake, names), _decided(self.lake, names)
        first = sum(len(part) for part in self.parts[:number])
        loads = loads_of(Path(self.folder) / f"{number}.arrow", first, len(names))
        found: list[TopicRecord] = []
        for place, name in enumerate(names):
            for born, begin, end, announced in self._spans(name, layouts.get(name, [])):
                mine = consumers.get(name, [])
                before = {one.subscription: one for one in mine if one.at <= begin}
                found.append(TopicRecord(
                    name, begin, end, announced, _between(loads[place], born, end),
                    [*(one._replace(at=begin) for one in before.values()),
                     *(one for one in mine if begin < one.at < end)],
                    held.get(name, []), decided.get(name, []),
                ))  # fmt: skip
        return found

    def _spans(
        self, name: str, told: Sequence[tuple[Announced, str]]
    ) -> Iterator[tuple[int, int, int, list[Announced]]]:  # fmt: skip
        spans: list[list[Announced]] = []
        lived: list[Announced] = []
        deleted = [one.at for one, cause in told if cause == "deleted"]
        for one, cause in told:
            if cause != "deleted":
                lived.append(one)
            else:
                spans += spans_of(lived)
                lived = []
        spans += spans_of(lived)
        override = self.namespaces.get(topic_parts(name).full_namespace)
        for place, span in enumerate(spans):
            following = spans[place + 1][0].at if place + 1 < len(spans) else self.ends_at
            end = min([following, self.ends_at, *(at for at in deleted if at >= span[-1].at)])
            begin = max(self.began_at, (span[0].at - self.phase_ms) // self.step_ms * self.step_ms + self.phase_ms)
            end = begin + (end - begin) // self.step_ms * self.step_ms
            if end <= begin:
                continue
            known = [one for one in span if one.at <= max(begin, span[0].at)][-1]
            later = [one for one in span if one.at > known.at and one.at < end]
            announced = [known._replace(at=begin), *later]
            if override is not None:
                announced = [one._replace(layout=_with(one.layout, override)) for one in announced]
            yield (span[0].at if place else 0), begin, end, announced


def open_history(
    lake: str, folder: Path, since: datetime | None, until: datetime | None, topics: str | None,
    configured: ConfiguredPolicy, tick_ms: int = 60_000, progress: Progress = lambda *_: None,
    change_threshold: float = CHANGE_THRESHOLD,
) -> History:  # fmt: skip
    """What is on record between two instants (aware; None: all) of the topics whose names fit `topics` (as a shell's
    file names; with or without `topic://`).

    `configured`: the policy that is taken to have run when none is on record; `tick_ms` likewise. Raises `NoHistory`,
    and what Delta raises.
    """
    batches = read_columns(lake, BATCHES, ("batch_at",))["batch_at"]
    if not len(batches):
        raise NoHistory(f"no batch of the job is on record in {lake}: is the job running, with [lake] path there?")
    at = np.unique(millis(batches))
    first, last = int(at[0]), int(at[-1])
    if (retained := retained_from(lake)) is not None:
        first = max(first, instant(retained))
    begin = first if since is None else max(first, instant(since))
    end = last if until is None else min(last, instant(until))
    tick_ms, phase = _ticks(lake, begin, end, tick_ms)
    step_ms = step_for(tick_ms)
    begin = -(-(begin - phase) // step_ms) * step_ms + phase
    end = (end - phase) // step_ms * step_ms + phase
    if begin >= end:
        raise NoHistory(
            f"nothing is on record between {'the beginning' if since is None else said_of(instant(since))} and "
            f"{'now' if until is None else said_of(instant(until))}: the record goes from "
            f"{said_of(first)} to {said_of(last)}; say --since and --until within it"
        )
    known = topics_on_record(lake)
    names = known if topics is None else [one for one in known if _fits(one, topics)]
    if not names:
        if not known:
            raise NoHistory(f"no layout of any topic is on record in {lake}: does something announce layouts?")
        near = ", ".join(known[:5])
        raise NoHistory(f"no topic on record fits --topics {topics}; there are {len(known)}, as {near}")
    size = part_topics(lake, len(known))
    parts = [names[place : place + size] for place in range(0, len(names), size)]
    folder.mkdir(parents=True, exist_ok=True)
    loads = spill(lake, folder, parts, begin, end, progress)
    if not loads:
        raise NoHistory(
            f"no load of {len(names)} topics is on record between {said_of(begin)} and {said_of(end)}: do brokers "
            "report, and are their segments those of the layouts?"
        )
    inside = np.r_[begin, at[(at > begin) & (at < end)], end]
    quiet = np.flatnonzero(np.diff(inside) > OUTAGE_TICKS * tick_ms)
    outages = [(int(inside[one]), int(inside[one + 1])) for one in quiet]
    ran, other, namespaces = _policies(lake, begin, end, configured)
    asked = None if since is None else instant(since)
    return History(
        lake, str(folder), parts, begin, end, outages, ran, other, namespaces, tick_ms, phase, change_threshold, loads,
        asked if asked is not None and first - asked > OUTAGE_TICKS * tick_ms else None,
    )  # fmt: skip


def _ticks(lake: str, begin: int, end: int, configured_ms: int) -> tuple[int, int]:
    """Return the period of the ticks of all topics, and when they came after whole multiples of it.

    The period is the median on record, in whole seconds; `configured_ms` where that is about the same, or few came.
    """
    where = (
        (pc.field("type") == "tick") & (pc.field("subject") == EVERY_TOPIC) & (pc.field("accepted_at") < as_arrow(end))
    )
    found = [millis(rows["accepted_at"]) for rows in stream_columns(lake, EVENTS, ("accepted_at",), ROWS, where)]
    at = np.concatenate([np.zeros(0, np.int64), *found])
    at = np.unique(at[at >= begin])
    if not len(at):
        return configured_ms, 0
    tick_ms = configured_ms
    if len(at) > _FEW_TICKS:
        median = float(np.median(np.diff(at)))
        if abs(median - configured_ms) > configured_ms / 10:
            tick_ms = max(1_000, round(median / 1_000) * 1_000)
    # On a circle: 59 s and 1 s are two seconds apart.
    turned = np.exp(2j * np.pi * (at % tick_ms) / tick_ms).mean()
    return tick_ms, round(float(np.angle(turned)) / (2 * np.pi) * tick_ms) % tick_ms


def _between(loads: Loads, born: int, end: int) -> Loads:
    """Those of a topic that was there first at `born`: what came before was of another of its name."""
    mine = slice(*np.searchsorted(loads.at, (born, end)))
    return Loads(loads.at[mine], loads.segment[mine], loads.rates[mine])


def _events(
    lake: str, names: Sequence[str], end: int
) -> tuple[dict[str, list[tuple[Announced, str]]], dict[str, list[ConsumersFrom]]]:  # fmt: skip
    """Layouts (with what they came of) and consumers of topics, ascending."""
    columns = ("subject", "type", "cause", "body", "accepted_at", "kafka_partition", "kafka_offset")
    where = (
        pc.field("type").isin(["layout", "consumer"])
        & pc.field("subject").isin(names) & (pc.field("accepted_at") < as_arrow(end))
    )  # fmt: skip
    told: list[tuple[int, int, int, str, str, str, str]] = []
    repeated: dict[tuple[str, str], tuple[int, int, int, str, str, str, str]] = {}
    for rows in stream_columns(lake, EVENTS, columns, 4096, where):
        of_rows = [rows[name].to_pylist() for name in columns if name != "accepted_at"]
        for name, kind, cause, body, partition, offset, at in zip(
            *of_rows, millis(rows["accepted_at"]).tolist(), strict=True
        ):
            one = (at, partition, offset, name, kind, cause or "", body)
            epoch = _SAID_EPOCH.search(body) if cause == "snapshot" and kind == "layout" else None
            if epoch is None:
                told.append(one)
            else:
                # A snapshot says again and again what is known: the first of an epoch is enough.
                key = name, epoch.group(1)
                repeated[key] = min(one, repeated.get(key, one))
    told += repeated.values()
    told.sort(key=lambda one: one[:3])
    layouts: dict[str, list[tuple[Announced, str]]] = {}
    consumers: dict[str, list[ConsumersFrom]] = {}
    for at, _, _, name, kind, cause, body in told:
        if kind == "consumer":
            event = ConsumerEvent.model_validate_json(body)
            sessions = 0 if event.event == "deleted" else event.consumers
            consumers.setdefault(name, []).append(ConsumersFrom(at, event.subscription, event.type, sessions))
            continue
        said = LayoutEvent.model_validate_json(body)
        try:
            announced = Announced(at, SegmentLayout.from_metadata(said.layout), said.decision_id)
        except LayoutError:
            continue
        layouts.setdefault(name, []).append((announced, cause))
    return layouts, consumers


def _held(lake: str, names: Sequence[str]) -> dict[str, list[tuple[int, str]]]:
    found: dict[str, list[tuple[int, str]]] = {}
    for rows in stream_columns(lake, HOLDS, ("subject", "gate", "since"), ROWS, pc.field("subject").isin(names)):
        for name, gate, at in zip(
            rows["subject"].to_pylist(), rows["gate"].to_pylist(), millis(rows["since"]).tolist(), strict=True
        ):
            found.setdefault(name, []).append((at, gate))
    return {name: sorted(held) for name, held in found.items()}


def _decided(lake: str, names: Sequence[str]) -> dict[str, list[tuple[int, str, tuple[int, ...], str | None]]]:
    mine = pc.field("subject").isin(names)
    failed: dict[str, str] = {}
    for rows in stream_columns(lake, OUTCOMES, ("decision_id", "status"), ROWS, mine):
        for which, status in zip(rows["decision_id"].to_pylist(), rows["status"].to_pylist(), strict=True):
            if status in ("rejected", "failed", "superseded"):
                failed[which] = status
    found: dict[str, list[tuple[int, str, tuple[int, ...], str | None]]] = {}
    columns = ("subject", "decision_id", "action", "arguments")
    for rows in stream_columns(lake, DECISIONS, (*columns, "decided_at"), ROWS, mine):
        for name, which, action, arguments, at in zip(
            *(rows[name].to_pylist() for name in columns), millis(rows["decided_at"]).tolist(), strict=True
        ):
            segments = tuple(json.loads(arguments)["segments"])
            found.setdefault(name, []).append((at, action, segments, failed.get(which)))
    return {name: sorted(decided, key=lambda one: one[0]) for name, decided in found.items()}


def _policies(
    lake: str, begin: int, end: int, configured: ConfiguredPolicy
) -> tuple[ConfiguredPolicy, list[tuple[int, int]], dict[str, str]]:  # fmt: skip
    """The cluster's policy that ran longest, when another one ran, and the last overrides of namespaces."""
    told: list[tuple[int, int, PolicyEvent]] = []
    where = (pc.field("type") == "policy") & (pc.field("accepted_at") < as_arrow(end))
    for rows in stream_columns(lake, EVENTS, ("body", "accepted_at", "kafka_offset"), ROWS, where):
        told += zip(
            millis(rows["accepted_at"]).tolist(), rows["kafka_offset"].to_pylist(),
            map(PolicyEvent.model_validate_json, rows["body"].to_pylist()), strict=True,
        )  # fmt: skip
    told.sort(key=lambda one: one[:2])
    own, over = configured, None
    namespaces: dict[str, str] = {}
    spans: list[tuple[int, ConfiguredPolicy]] = []
    for at, _, event in told:
        said = None if event.policy is None else event.policy.known_json()
        if event.scope == "namespace":
            namespaces.pop(event.name or "", None)
            if said is not None:
                namespaces[event.name or ""] = said
            continue
        if event.profile is not None:
            own = ConfiguredPolicy(event.profile, said)
        else:
            over = said
        now = own if over is None else ConfiguredPolicy(own.profile, over)
        # What the job says at its start is what had been running when it began to be recorded.
        spans.append((at if spans else min(at, begin), now))
    if not spans:
        return configured, [], namespaces
    lasted: dict[ConfiguredPolicy, list[tuple[int, int]]] = {}
    for (at, policy), following in zip(spans, [*(at for at, _ in spans[1:]), end], strict=True):
        from_, to = max(at, begin), min(following, end)
        if from_ < to:
            lasted.setdefault(policy, []).append((from_, to))
    ran = max(lasted, key=lambda one: sum(to - from_ for from_, to in lasted[one]))
    other = sorted(span for policy, of in lasted.items() if policy != ran for span in of)
    return ran, other, namespaces


def _with(layout: SegmentLayout, namespace: str) -> SegmentLayout:
    """With the override of the namespace under the topic's own."""
    own = layout.auto_scale_policy
    under = json.loads(namespace)
    if own is not None:
        under |= json.loads(own.known_json())
    return layout.with_policy(AutoScalePolicyOverride.model_validate_json(json.dumps(under)))


def _fits(name: str, glob: str) -> bool:
    short = name.removeprefix("topic://")
    return any(fnmatchcase(one, glob) for one in (name, short, short.rpartition("/")[2]))
