"""Columns of a bucket's topics: one row, or a run of segments, per topic.

Stage: under `engine.autoscale.fleet_view`, which keeps them between ticks. Only `columns_of` walks topics one by
one, once for each topic that has changed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from decisions.autoscale.clocks import NEVER as NO_INSTANT
from decisions.autoscale.columns import FAILED_ACTIONS, GATES, NEVER, Bools, Ints, SnapshotColumns, segments_of
from decisions.autoscale.next_due import faded_depths, settled_until, shallow_from
from decisions.autoscale.past import regret_window_ms, settle_ms
from decisions.autoscale.policy import MAX_INT
from decisions.autoscale.snapshot import MANAGED, SHARING
from decisions.kernel.readings import MAX_INSTANT_MS
from engine.autoscale.layouts import SEGMENT, KnownLayout
from engine.autoscale.loads import LoadTable
from engine.autoscale.policies import ResolvedTopicPolicy
from engine.autoscale.topics import TopicState
from schemas.metadata import RATES

_GATE_CODE = {gate.value: code for code, gate in enumerate(GATES)}
NO_GATE = -2
"""Code of a topic without a recorded hold: differs from every gate, and from the -1 of an action."""


class Scalar(IntEnum):
    """Numbers of a topic; rows of `FleetColumns.scalars`."""

    REQUIRED = 0
    LAST_SPLIT_AT = 1
    LAST_MERGE_AT = 2
    OPENED_AT = 3
    FAILURES = 4
    FAILED_AT = 5
    FAILED_ACTION = 6
    HOLD_GATE = 7
    HOLD_SEQ = 8
    OBSERVED_AT = 9
    SINCE = 10
    ONLY_MERGES_OPEN = 11
    SHARING = 12
    UNSHARED = 13


_CLOCKS = [
    Scalar.LAST_SPLIT_AT,
    Scalar.LAST_MERGE_AT,
    Scalar.OPENED_AT,
    Scalar.FAILED_AT,
    Scalar.OBSERVED_AT,
    Scalar.SINCE,
]


@dataclass
class FleetColumns:
    """Topics in columns, those with the same policy contiguous."""

    names: list[str]
    layouts: list[KnownLayout]
    policies: list[ResolvedTopicPolicy]
    policy_of: Ints
    """By topic, the index of its policy in `policies`; ascending."""
    scalars: Ints
    """One row per `Scalar`, one column per topic."""
    offsets: Ints
    """Start of each topic's segments, as in `SnapshotColumns`."""
    segments: npt.NDArray[np.void]
    """`SEGMENT` of every active segment."""
    rows: Ints
    """Rows of the load table; -1 where a segment has none."""
    settled_at: Ints
    """By segment, the end of the pause after it was made; `NEVER` for an original segment."""
    made_at: Ints
    """By segment, when it was made; `NEVER` for an original segment."""
    returned_after: Ints
    """By segment, the load-return pause inherited at a split, milliseconds; 0 if the load did not return."""
    regret_window: Ints
    """By segment, how long it must be cold after a reversal, milliseconds; 0 without one."""
    buckets: Ints
    """By segment, its number of entry buckets; 0 where the layout has none."""

    @cached_property
    def places(self) -> dict[str, int]:
        """Index of each topic by name."""
        return {name: index for index, name in enumerate(self.names)}

    def __len__(self) -> int:
        return len(self.names)

    def ahead_of(self, now: int) -> list[str]:
        """Return topics with a clock ahead of `now`."""
        if not len(self):
            return []
        return [self.names[index] for index in np.flatnonzero(self.scalars[_CLOCKS].max(axis=0) > now).tolist()]

    def hot_names(self, loads: LoadTable) -> list[str]:
        """Return topics with a segment above a split threshold whose policy looks for hot keys."""
        limits = np.array(
            [
                policy.policy.split_thresholds if policy.policy.hot_key_splits else (np.inf,) * len(RATES)
                for policy in self.policies
            ]
        ).reshape(-1, len(RATES))
        has_row = np.flatnonzero(self.rows >= 0)
        if not len(has_row) or not np.isfinite(limits).any():
            return []
        topic_of = np.repeat(np.arange(len(self)), np.diff(self.offsets))[has_row]
        hot = (loads.rates[self.rows[has_row]] > limits[self.policy_of[topic_of]]).any(axis=1)
        return [self.names[index] for index in np.unique(topic_of[hot]).tolist()]

    def set_scalars(self, topics: Sequence[TopicState]) -> None:
        """Refresh the scalars of some topics."""
        self.scalars[:, [self.places[topic.name] for topic in topics]] = scalars_of(topics)

    def set_rows(self, indexes: Sequence[int], loads: LoadTable) -> None:
        """Refresh the load-table rows of the topics at some indexes."""
        topics = np.array(indexes, np.int64)
        segments = segments_of(self.offsets, topics)
        offsets = np.concatenate([[0], np.cumsum(np.diff(self.offsets)[topics])])
        names = [self.names[index] for index in indexes]
        self.rows[segments] = rows_of(loads, names, offsets, self.segments["id"][segments])

    def set_held(self, topics: Ints, gates: npt.NDArray[np.int8]) -> None:
        """Set new binding gates for some topics."""
        self.scalars[Scalar.HOLD_GATE, topics] = gates
        self.scalars[Scalar.HOLD_SEQ, topics] += 1
        self.scalars[Scalar.OBSERVED_AT, topics] = NEVER

    def take(self, topics: Ints) -> "FleetColumns":
        """Select topics, in any order that keeps those with the same policy contiguous."""
        segments, indexes = segments_of(self.offsets, topics), topics.tolist()
        counts = np.diff(self.offsets)[topics]
        return FleetColumns(
            [self.names[index] for index in indexes],
            [self.layouts[index] for index in indexes],
            self.policies,
            self.policy_of[topics],
            self.scalars[:, topics],
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            self.segments[segments],
            self.rows[segments],
            self.settled_at[segments],
            self.made_at[segments],
            self.returned_after[segments],
            self.regret_window[segments],
            self.buckets[segments],
        )

    def with_more(self, more: "FleetColumns") -> "FleetColumns":
        """Return these topics together with others."""
        used = [
            (columns, columns.policies[index])
            for columns in (self, more)
            for index in np.unique(columns.policy_of).tolist()
        ]
        policies = {policy.digest: policy for _, policy in used}
        place_of = {digest: index for index, digest in enumerate(policies)}
        codes = [
            np.array([place_of.get(policy.digest, -1) for policy in columns.policies], np.int64)[columns.policy_of]
            for columns in (self, more)
            if len(columns)
        ]
        together = FleetColumns(
            self.names + more.names,
            self.layouts + more.layouts,
            list(policies.values()),
            np.concatenate([np.zeros(0, np.int64), *codes]),
            np.concatenate([self.scalars, more.scalars], axis=1),
            np.concatenate([self.offsets, more.offsets[1:] + self.offsets[-1]]),
            np.concatenate([self.segments, more.segments]),
            np.concatenate([self.rows, more.rows]),
            np.concatenate([self.settled_at, more.settled_at]),
            np.concatenate([self.made_at, more.made_at]),
            np.concatenate([self.returned_after, more.returned_after]),
            np.concatenate([self.regret_window, more.regret_window]),
            np.concatenate([self.buckets, more.buckets]),
        )
        return together.take(np.argsort(together.policy_of, kind="stable"))

    def fleet(self, now: int, loads: LoadTable) -> SnapshotColumns:
        """Build the fleet at `now` (milliseconds) from the columns and the current loads."""
        rows, policies = self.rows, [policy.policy for policy in self.policies]
        policy_of = np.repeat(self.policy_of, np.diff(self.offsets))
        missing: Bools = rows < 0
        if len(loads.modified_at):
            modified_at = np.where(missing, NO_INSTANT, loads.modified_at[rows])
            missing = modified_at == NO_INSTANT
            cold_since, seen_at = np.where(missing, NO_INSTANT, loads.cold_since[rows]), loads.seen_at[rows]
            returns_within = _clipped([policy.returns_within_ms for policy in policies], MAX_INSTANT_MS)
            settled_at = settled_until(
                self.settled_at,
                cold_since,
                self.regret_window,
                (loads.returned_after[rows], self.returned_after),
                returns_within[policy_of],
            )
            by_threshold = np.array([policy.cold_since_threshold for policy in policies], np.bool_)[policy_of]
            since = np.where(by_threshold & (cold_since != NO_INSTANT), cold_since, modified_at)
            rates = [np.where(missing, np.nan, loads.rates[rows, column]) for column in range(len(RATES))]
        else:
            seen_at = since = np.zeros(len(rows), np.int64)
            settled_at = self.settled_at
            rates = [np.full(len(rows), np.nan)] * len(RATES)
        keeps_depth = np.array([policy.explicit_lineage for policy in policies], np.bool_)[policy_of]
        depth_caps = _clipped([policy.max_dag_depth for policy in policies], MAX_INT)[policy_of]
        kept_depths, shown_depths = (self.segments[name].astype(np.int64) for name in ("kept", "shown"))
        required, last_split_at, last_merge_at, opened_at, failures, failed_at, failed_action, *_ = self.scalars
        only_merges_open = self.scalars[Scalar.ONLY_MERGES_OPEN] != 0
        return SnapshotColumns(
            policies,
            np.searchsorted(self.policy_of, np.arange(len(policies))).tolist(),
            self.offsets,
            np.full(len(self), now, np.int64),
            np.zeros(len(self), np.bool_),
            required,
            last_split_at,
            last_merge_at,
            opened_at,
            only_merges_open,
            failures,
            failed_at,
            failed_action.astype(np.int8),
            self.segments["id"],
            self.segments["is_single_hash"],
            (rates[0], rates[1], rates[2], rates[3]),
            np.where(missing, NEVER, seen_at),
            np.where(missing, NEVER, since),
            np.where(keeps_depth, faded_depths(kept_depths, self.made_at, now), shown_depths),
            shallow_from(keeps_depth, kept_depths, shown_depths, self.made_at, depth_caps),
            settled_at,
            self.scalars[Scalar.SHARING],
            self.scalars[Scalar.UNSHARED],
            self.buckets,
        )


def _clipped(values: Sequence[int], most: int) -> Ints:
    """Return values of policies, of broken ones too, that fit."""
    return np.array([max(0, min(value, most)) for value in values], np.int64)


def columns_of(
    topics: Sequence[TopicState],
    layouts: Sequence[KnownLayout],
    policies: Sequence[ResolvedTopicPolicy],
    loads: LoadTable,
) -> FleetColumns:
    """Build the columns of topics from these layouts and policies."""
    distinct = {policy.digest: policy for policy in policies}
    codes = {digest: code for code, digest in enumerate(distinct)}
    policy_codes = np.fromiter((codes[policy.digest] for policy in policies), np.int64, len(policies))
    segments = np.frombuffer(b"".join([layout.segments for layout in layouts]), SEGMENT)
    counts = np.fromiter((len(layout.segments) for layout in layouts), np.int64, len(layouts)) // SEGMENT.itemsize
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    names = [topic.name for topic in topics]
    columns = FleetColumns(
        names,
        list(layouts),
        list(distinct.values()),
        policy_codes,
        scalars_of(topics),
        offsets,
        segments,
        rows_of(loads, names, offsets, segments["id"]),
        *_from_pasts(topics, layouts, policies, offsets, segments["id"]),
        _buckets_of(layouts, offsets),
    )
    return columns if len(distinct) < 2 else columns.take(np.argsort(policy_codes, kind="stable"))


def rows_of(loads: LoadTable, names: Sequence[str], offsets: Ints, segment_ids: Ints) -> Ints:
    """Return the row of each segment; `NO_ROW` where it has none. `offsets` as in `SnapshotColumns`."""
    index = loads.index
    return index.find(np.repeat(index.numbers_of(names), np.diff(offsets)), segment_ids)


def _from_pasts(
    topics: Sequence[TopicState],
    layouts: Sequence[KnownLayout],
    policies: Sequence[ResolvedTopicPolicy],
    offsets: Ints,
    segment_ids: Ints,
) -> tuple[Ints, Ints, Ints, Ints]:
    """Return by segment: `settled_at`, `made_at`, inherited load-return pause, and regret window."""
    settled_at, made_at = (np.full(len(segment_ids), NEVER, np.int64) for _ in range(2))
    returned_after, regret_window = (np.zeros(len(segment_ids), np.int64) for _ in range(2))
    for index, (topic, layout, policy) in enumerate(zip(topics, layouts, policies, strict=True)):
        if not topic.pasts:
            continue
        begin = int(offsets[index])
        for segment, number in enumerate(segment_ids[begin : int(offsets[index + 1])].tolist(), begin):
            if (past := topic.pasts.get(number)) is not None:
                made_at[segment], returned_after[segment] = past.at, past.returned_after
                if past.regrets and policy.policy.regret_window_ms:
                    width = layout.layout.segments[number].width
                    regret_window[segment] = regret_window_ms(past, width, policy.policy)
                if policy.policy.settle_ms:
                    settled_at[segment] = min(past.at + settle_ms(past, policy.policy), MAX_INSTANT_MS)
    return settled_at, made_at, returned_after, regret_window


def scalars_of(topics: Sequence[TopicState]) -> Ints:
    """Return one row per `Scalar` and one column per topic."""
    never = NEVER
    columns: list[list[int]] = [
        [_largest_subscription(topic, MANAGED) if topic.consumers else 0 for topic in topics],
        [never if (instant := topic.cooldowns[0]) is None else instant for topic in topics],
        [never if (instant := topic.cooldowns[1]) is None else instant for topic in topics],
        [never if (action := topic.in_flight) is None else action.since for topic in topics],
        [topic.failures[0] for topic in topics],
        [never if (instant := topic.failures[1]) is None else instant for topic in topics],
        [FAILED_ACTIONS[topic.failures[2]] for topic in topics],
        [NO_GATE if (gate := topic.hold_gate) is None else _GATE_CODE.get(gate, NO_GATE) for topic in topics],
        [topic.hold_seq for topic in topics],
        [never if (instant := topic.observed_at) is None else instant for topic in topics],
        [topic.since for topic in topics],
        [(action := topic.in_flight) is not None and action.action == "merge" for topic in topics],
        [_largest_subscription(topic, SHARING) if topic.consumers else 0 for topic in topics],
        [_largest_subscription(topic, MANAGED - SHARING) if topic.consumers else 0 for topic in topics],
    ]
    return np.array(columns, np.int64).reshape(len(Scalar), len(topics))


def _largest_subscription(topic: TopicState, kinds: frozenset[str]) -> int:
    return max((count for kind, count in topic.consumers.values() if kind in kinds), default=0)


def _buckets_of(layouts: Sequence[KnownLayout], offsets: Ints) -> Ints:
    """Return the entry buckets of each segment, 0 without any. Most topics have none."""
    buckets = np.zeros(int(offsets[-1]), np.int64)
    for index, layout in enumerate(layouts):
        if layout.has_buckets:
            buckets[offsets[index] : offsets[index + 1]] = [
                0 if segment.entry_bucket_splits is None else segment.bucket_count for segment in layout.layout.active
            ]
    return buckets
