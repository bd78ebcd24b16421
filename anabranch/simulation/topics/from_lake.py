"""Demand from the lake: every accepted load, laid over the hashes of its segment, and every consumer.

Stage: builds the lines that `recorded` replays. A load that moved by less than the filter's band is not on record, so
demand is known to within that band. A backtest measures the share of the time that rests on assumptions.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow.compute as pc

from anabranch.simulation.topics.recorded import ConsumersLine, DemandError, RangeLine
from lake.forgotten import Retained
from lake.tables import stream_columns
from schemas.kafka.messages import ConsumerEvent, LayoutEvent
from schemas.tables.rows import EVENTS, SEGMENT_LOAD

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_RATE_COLUMNS = ("msg_rate_in", "bytes_rate_in", "msg_rate_out", "bytes_rate_out")
_LOAD_COLUMNS = ("topic", "segment_id", *_RATE_COLUMNS, "accepted_at", "kafka_partition", "kafka_offset")


def lines_of_lake(
    lake: str, since: datetime | None = None, topics: Collection[str] | None = None, until: datetime | None = None
) -> tuple[list[RangeLine | ConsumersLine], dict[str, int]]:
    """Return the demand from `since` to before `until`, and the segments of each topic at `since`.

    Instants are aware; None: all. Demand that began before and still holds counts from `since`. All of it is in memory.
    Raises `DemandError` when nothing is on record then, and what Delta raises.
    """
    retained = Retained(lake)
    if since is not None and retained.everywhere is not None and since < retained.everywhere:
        raise DemandError(
            f"rows before {retained.everywhere:%F} are forgotten (`anabranch lake retain`): say a later --since"
        )
    begin, end = _millis(since or retained.everywhere or _EPOCH), None if until is None else _millis(until)
    begins: dict[str, int] = {}

    def begin_of(topic: str) -> int:
        """Return the instant from which a topic counts: only its newest rows remain from before that."""
        if topic not in begins:
            begins[topic] = max(begin, _millis(retained.of(topic) or _EPOCH))
        return begins[topic]

    told: list[tuple[int, int, int, int, LayoutEvent | ConsumerEvent | tuple[Any, ...]]] = []
    of_events = pc.field("type").isin(["layout", "consumer"])
    of_loads = None
    if topics is not None:
        of_events = of_events & pc.field("subject").isin(list(topics))
        of_loads = pc.field("topic").isin(list(topics))
    columns = ("type", "body", "accepted_at", "kafka_partition", "kafka_offset")
    for rows in stream_columns(lake, EVENTS, columns, 1024, of_events):
        for kind, body, at, partition, offset in zip(*(rows[name].to_pylist() for name in columns), strict=True):
            event = (LayoutEvent if kind == "layout" else ConsumerEvent).model_validate_json(body)
            told.append((_millis(at), 0, partition, offset, event))
    for rows in stream_columns(lake, SEGMENT_LOAD, _LOAD_COLUMNS, 65_536, of_loads):
        for row in zip(*(rows[name].to_pylist() for name in _LOAD_COLUMNS), strict=True):
            told.append((_millis(row[6]), 1, row[7], row[8], row))
    told = sorted((one for one in told if end is None or one[0] < end), key=lambda one: one[:4])
    if told and begin > told[-1][0]:
        last = _EPOCH + timedelta(milliseconds=told[-1][0])
        raise DemandError(f"the loads and events on record in {lake} end at {last:%F %T} UTC, before --since")
    ranges: dict[str, dict[int, tuple[int, int]]] = {}
    subscriptions: dict[str, dict[str, ConsumersLine]] = {}
    initial: dict[str, int] = {}
    found: list[RangeLine | ConsumersLine] = []
    for at, _, _, _, what in told:
        if isinstance(what, LayoutEvent) and what.cause == "deleted":
            # Nobody wants anything of it until it is made again.
            ranges.pop(what.topic, None)
            found.append(RangeLine(topic=what.topic, at=max(at, begin_of(what.topic)), msg_rate_in=0.0))
            found += (
                line.model_copy(update={"at": max(at, begin_of(what.topic)), "consumers": 0})
                for line in subscriptions.pop(what.topic, {}).values()
            )
        elif isinstance(what, LayoutEvent):
            active = [one for one in what.layout.segments.values() if one.state == "ACTIVE"]
            ranges.setdefault(what.topic, {}).update(
                (one.segment_id, (one.hash_range.start, one.hash_range.end)) for one in what.layout.segments.values()
            )
            if at <= begin_of(what.topic) or what.topic not in initial:
                initial[what.topic] = len(active)
        elif isinstance(what, ConsumerEvent):
            line = ConsumersLine(
                topic=what.topic,
                at=max(at, begin_of(what.topic)),
                subscription=what.subscription,
                type=what.type,
                consumers=0 if what.event == "deleted" else what.consumers,
            )
            subscriptions.setdefault(what.topic, {})[what.subscription] = line
            found.append(line)
        elif (ends := ranges.get(what[0], {}).get(what[1])) is not None:
            rates = dict(zip(_RATE_COLUMNS, what[2:6], strict=True))
            found.append(RangeLine(topic=what[0], at=max(at, begin_of(what[0])), start=ends[0], end=ends[1], **rates))
    if not any(isinstance(line, RangeLine) for line in found):
        raise DemandError(f"no load is on record in {lake}: is the job running, with [lake] path there?")
    return found, initial


def _millis(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(milliseconds=1)
