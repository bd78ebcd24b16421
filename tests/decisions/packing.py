"""Snapshots laid out as the columns of a fleet, for comparisons of `decide_fleet` with `decide`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from decisions.autoscale.columns import FAILED_ACTIONS, NEVER, Ints, SnapshotColumns
from decisions.autoscale.merge_pass import settled_at
from decisions.autoscale.policy import Policy
from decisions.autoscale.snapshot import TopicSnapshot


def pack_snapshots(snapshots: Iterable[TopicSnapshot]) -> tuple[SnapshotColumns, Ints]:
    """Return the snapshots in columns, and for each topic of the fleet the index of its snapshot."""
    by_policy: dict[Policy, list[tuple[int, TopicSnapshot]]] = {}
    for index, snapshot in enumerate(snapshots):
        by_policy.setdefault(snapshot.policy, []).append((index, snapshot))
    ordered = [entry for entries in by_policy.values() for entry in entries]
    topics = [_topic_columns(snapshot) for _, snapshot in ordered]
    segments = [row for _, snapshot in ordered for row in _segment_columns(snapshot)]
    counts = [len(snapshot.layout.active) for _, snapshot in ordered]
    sizes = [len(entries) for entries in by_policy.values()]
    topic = _arrays(topics, "i8 ? i8 i8 i8 i8 ? i8 i8 i1 i8 i8")
    segment = _arrays(segments, "i8 ? f8 f8 f8 f8 i8 i8 i8 i8 i8 i8")
    fleet = SnapshotColumns(
        list(by_policy),
        np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64).tolist() if sizes else [],
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        *topic[:10],
        *[*segment[:2], tuple(segment[2:6]), *segment[6:11], *topic[10:], segment[11]],
    )
    return fleet, np.array([index for index, _ in ordered], np.int64)


def _arrays(rows: Sequence[tuple[Any, ...]], types: str) -> list[Any]:
    """Return the columns of rows as arrays of these types."""
    kinds = types.split()
    columns = list(zip(*rows, strict=True)) or [()] * len(kinds)
    return [np.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]


def _topic_columns(snapshot: TopicSnapshot) -> tuple[Any, ...]:
    return (
        snapshot.now,
        snapshot.trigger == "consumer",
        snapshot.required_segments,
        NEVER if snapshot.last_split_at is None else snapshot.last_split_at,
        NEVER if snapshot.last_merge_at is None else snapshot.last_merge_at,
        NEVER if snapshot.in_flight is None else snapshot.in_flight.since,
        snapshot.in_flight is not None and snapshot.in_flight.action == "merge",
        snapshot.failures,
        NEVER if snapshot.failed_at is None else snapshot.failed_at,
        FAILED_ACTIONS[snapshot.failed_action],
        snapshot.sharing_consumers,
        snapshot.unshared_consumers,
    )


def _segment_columns(snapshot: TopicSnapshot) -> Iterable[tuple[Any, ...]]:
    policy, loads = snapshot.policy, snapshot.loads
    for segment in snapshot.layout.active:
        number, is_single_hash = segment.segment_id, segment.start == segment.end
        load = loads.get(number)
        buckets = 0 if segment.entry_bucket_splits is None else segment.bucket_count
        waits = (
            snapshot.merge_depth(number),
            snapshot.shallow_at(number),
            settled_at(snapshot, segment, load),
            buckets,
        )
        if load is None:
            yield (number, is_single_hash, *_NO_RATES, NEVER, NEVER, *waits)
        else:
            yield (number, is_single_hash, *load.rates, load.last_seen_at, load.window_start(policy), *waits)


_NO_RATES = (float("nan"),) * 4
