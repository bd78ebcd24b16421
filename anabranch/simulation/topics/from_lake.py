"""Demand from the lake: every accepted load, laid over the hashes of its segment, and every consumer.

Stage: builds the lines that `recorded` replays. A load that moved by less than the filter's band is not on record, so
demand is known to within that band. A backtest measures the share of the time that rests on assumptions.
"""

from collections import defaultdict
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow.compute as pc

from anabranch.query.wording import millis
from anabranch.simulation.shadow.lives import LifeOf, NameLives, read_layout
from anabranch.simulation.topics.recorded import ConsumersLine, DemandError, RangeLine
from lake.forgotten import Retained
from lake.tables import stream_columns
from schemas.kafka.messages import ConsumerEvent, LayoutEvent
from schemas.tables.rows import EVENTS, SEGMENT_LOAD

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_RATE_COLUMNS = ("msg_rate_in", "bytes_rate_in", "msg_rate_out", "bytes_rate_out")
_LOAD_COLUMNS = ("topic", "segment_id", *_RATE_COLUMNS, "accepted_at", "kafka_partition", "kafka_offset")


def lines_of_lake(
    lake: str, since: datetime | None = None, until: datetime | None = None
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
    begin, end = millis(since or retained.everywhere or _EPOCH), None if until is None else millis(until)
    begins: dict[str, int] = {}

    def begin_of(topic: str) -> int:
        """Return the instant from which a topic counts: only its newest rows remain from before that."""
        if topic not in begins:
            begins[topic] = max(begin, millis(retained.of(topic) or _EPOCH))
        return begins[topic]

    rows_by_time: list[tuple[int, int, int, int, LayoutEvent | ConsumerEvent | tuple[Any, ...]]] = []
    of_events = pc.field("type").isin(["layout", "consumer"])
    columns = ("type", "body", "accepted_at", "kafka_partition", "kafka_offset")
    for rows in stream_columns(lake, EVENTS, columns, 1024, of_events):
        for kind, body, accepted_at, partition, offset in zip(
            *(rows[name].to_pylist() for name in columns), strict=True
        ):
            event = (LayoutEvent if kind == "layout" else ConsumerEvent).model_validate_json(body)
            rows_by_time.append((millis(accepted_at), 0, partition, offset, event))
    for rows in stream_columns(lake, SEGMENT_LOAD, _LOAD_COLUMNS, 65_536):
        for row in zip(*(rows[name].to_pylist() for name in _LOAD_COLUMNS), strict=True):
            rows_by_time.append((millis(row[6]), 1, row[7], row[8], row))
    rows_by_time = sorted(
        (ordered for ordered in rows_by_time if end is None or ordered[0] < end), key=lambda ordered: ordered[:4]
    )
    if rows_by_time and begin > rows_by_time[-1][0]:
        last = _EPOCH + timedelta(milliseconds=rows_by_time[-1][0])
        raise DemandError(f"the loads and events on record in {lake} end at {last:%F %T} UTC, before --since")
    ranges: dict[str, dict[int, tuple[int, int]]] = {}
    subscriptions: dict[str, dict[str, ConsumersLine]] = {}
    initial: dict[str, int] = {}
    lines: list[RangeLine | ConsumersLine] = []
    lives: defaultdict[str, NameLives] = defaultdict(NameLives)
    for accepted_at, _, _, _, content in rows_by_time:
        if _is_late(content, lives):
            continue
        if isinstance(content, LayoutEvent) and content.cause == "deleted":
            # Nobody wants anything of it until it is made again.
            ranges.pop(content.topic, None)
            lines.append(RangeLine(topic=content.topic, at=max(accepted_at, begin_of(content.topic)), msg_rate_in=0.0))
            lines += (
                line.model_copy(update={"at": max(accepted_at, begin_of(content.topic)), "consumers": 0})
                for line in subscriptions.pop(content.topic, {}).values()
            )
        elif isinstance(content, LayoutEvent):
            active = [segment for segment in content.layout.segments.values() if segment.state == "ACTIVE"]
            ranges.setdefault(content.topic, {}).update(
                (segment.segment_id, (segment.hash_range.start, segment.hash_range.end))
                for segment in content.layout.segments.values()
            )
            if accepted_at <= begin_of(content.topic) or content.topic not in initial:
                initial[content.topic] = len(active)
        elif isinstance(content, ConsumerEvent):
            line = ConsumersLine(
                topic=content.topic,
                at=max(accepted_at, begin_of(content.topic)),
                subscription=content.subscription,
                type=content.type,
                consumers=0 if content.event == "deleted" else content.consumers,
            )
            subscriptions.setdefault(content.topic, {})[content.subscription] = line
            lines.append(line)
        elif (ends := ranges.get(content[0], {}).get(content[1])) is not None:
            rates = dict(zip(_RATE_COLUMNS, content[2:6], strict=True))
            lines.append(
                RangeLine(
                    topic=content[0], at=max(accepted_at, begin_of(content[0])), start=ends[0], end=ends[1], **rates
                )
            )
    if not any(isinstance(line, RangeLine) for line in lines):
        raise DemandError(f"no load is on record in {lake}: is the job running, with [lake] path there?")
    return lines, initial


def _is_late(content: LayoutEvent | ConsumerEvent | tuple[Any, ...], lives: defaultdict[str, NameLives]) -> bool:
    """Apply an announcement; return True if it is of an earlier life of its topic, and counts for nothing."""
    if isinstance(content, LayoutEvent):
        layout = read_layout(content)
        about = {} if layout is None else layout.segments, content.topic_created_at, content.at
        if content.cause == "deleted":
            return not lives[content.topic].follow_deletion(*about)
        return lives[content.topic].follow_layout(*about) is LifeOf.EARLIER
    if isinstance(content, ConsumerEvent):
        return not lives[content.topic].has_consumers(content.topic_created_at, content.at)
    return False
