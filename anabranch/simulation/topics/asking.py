"""Call of `decide` for one row of the kernel, for parallel actions, hot keys and entry buckets.

Stage: under the kernel. Columns determine the rows that may act; the actions of these are decided here, a topic at a
time.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from anabranch.simulation.topics.rows import NO_INSTANT, IntColumn
from decisions.autoscale.answers import Answer, Rebucket
from decisions.autoscale.columns import MERGE, NEVER, REASONS, REBUCKET, SPLIT
from decisions.autoscale.decide import Hold, decide, hot_keys_after
from decisions.autoscale.gates import Gate
from decisions.autoscale.hot_keys import HotKey
from decisions.autoscale.past import Past
from decisions.autoscale.policy import Policy
from decisions.autoscale.policy_columns import BY_SPLIT
from decisions.autoscale.snapshot import Load, OpenAction, TopicSnapshot
from decisions.topic.segment import Segment, equal_buckets

LOOK_AGAIN_MS = 20_000
"""Interval of the job (`engine.autoscale.evaluation`)."""
_WORTH_A_TICK = frozenset({Gate.SPLIT_COOLDOWN, Gate.REBUCKET_COOLDOWN, Gate.RETRY_BACKOFF})


class _Active(NamedTuple):
    """Part of a layout that `decide` reads."""

    active: tuple[Segment, ...]
    segments: dict[int, Segment]
    depths: dict[int, int]

    @property
    def has_buckets(self) -> bool:
        """See `SegmentLayout.has_buckets`."""
        return any(segment.entry_bucket_splits is not None for segment in self.active)

    def merge_depth(self, number: int) -> int:
        """See `SegmentLayout.merge_depth`."""
        return self.depths[number]


class Asked(NamedTuple):
    """Result of an evaluation."""

    actions: list[tuple[int, int, int, int]]
    """Action, segment, other and reason of each, as in `FleetAnswers`."""
    hot_keys: tuple[HotKey, ...]
    due: int | None
    """Instant of the extra tick that it asks for."""


class TopicClocks(NamedTuple):
    """Instants of a topic's last actions, `NEVER` without one, and its failures in a row."""

    last_split: int
    last_merge: int
    last_rebucket: int
    failures: int
    failed_at: int
    merges_opened: int
    """Instant of the merges that are not applied yet."""


def ask(
    segments: Sequence[tuple[list[int], list[float]]],
    policy: Policy,
    now: int,
    by_tick: bool,
    consumers: tuple[int, int],
    clocks: TopicClocks,
    hot_keys: tuple[HotKey, ...],
) -> Asked:
    """Decide for a topic. Instants are milliseconds.

    `segments`: the active ones, each with its `IntColumn`s and the rates of its load record. `consumers`: of the
    largest subscription whose consumers can share a segment, and of the largest whose consumers cannot.
    """
    depth = IntColumn.KEPT_DEPTH if policy.explicit_lineage else IntColumn.DEPTH
    active, loads, depths, pasts = dict[int, Segment](), dict[int, Load](), dict[int, int](), dict[int, Past]()
    for columns, rates in segments:
        number = columns[IntColumn.ID]
        active[number], depths[number] = _segment(columns), columns[depth]
        if columns[IntColumn.MODIFIED] != NO_INSTANT:
            loads[number] = _load(columns, rates, now)
        if columns[IntColumn.MADE]:
            pasts[number] = _past(columns)
    snapshot = TopicSnapshot(
        topic="topic://a/b/c",
        now=now,
        trigger="tick" if by_tick else "consumer",
        layout=_Active(tuple(active.values()), active, depths),  # type: ignore[arg-type]
        policy=policy,
        loads=loads,
        consumers={"sharing": ("STREAM", consumers[0]), "unshared": ("CHECKPOINT", consumers[1])},
        last_split_at=None if clocks.last_split == NEVER else clocks.last_split,
        last_merge_at=None if clocks.last_merge == NEVER else clocks.last_merge,
        last_rebucket_at=None if clocks.last_rebucket == NEVER else clocks.last_rebucket,
        in_flight=None if clocks.merges_opened == NEVER else OpenAction("", clocks.merges_opened, "merge"),
        failures=clocks.failures,
        failed_at=None if clocks.failed_at == NEVER else clocks.failed_at,
        failed_action="split" if clocks.failures else None,
        merge_depths=depths if policy.explicit_lineage else None,
        pasts=pasts if policy.looks_back else None,
        hot_keys=hot_keys,
    )
    answer = decide(snapshot)
    return Asked(_actions(answer), hot_keys_after(snapshot), _due(answer, policy, now))


@lru_cache
def _splits(buckets: int) -> tuple[int, ...] | None:
    return equal_buckets(buckets) if buckets else None


def _segment(columns: list[int]) -> Segment:
    number, start, end = columns[: IntColumn.KEPT_DEPTH]
    created_at, buckets = columns[IntColumn.CREATED], columns[IntColumn.BUCKETS]
    return Segment(number, start, end, created_at_ms=created_at, entry_bucket_splits=_splits(buckets))


def _load(columns: list[int], rates: list[float], now: int) -> Load:
    modified_at, cold_since, returned_after = columns[IntColumn.MODIFIED : IntColumn.HOT]
    msg_in, bytes_in, msg_out, bytes_out = rates
    return Load(
        msg_in,
        bytes_in,
        msg_out,
        bytes_out,
        modified_at,
        now,
        None if cold_since == NO_INSTANT else cold_since,
        None if returned_after == NO_INSTANT else returned_after,
    )


def _past(columns: list[int]) -> Past:
    made, made_at, *more = columns[IntColumn.MADE : IntColumn.MODIFIED]
    return Past(made_at, "split" if made == BY_SPLIT else "merge", *more)


def _actions(answer: Answer) -> list[tuple[int, int, int, int]]:
    if isinstance(answer, Hold):
        return []
    if isinstance(answer, Rebucket):
        reason = REASONS.index(answer.reason)
        return [(REBUCKET, segment, answer.bucket_count, reason) for segment in answer.segments]
    return [
        (
            SPLIT if action.action == "split" else MERGE,
            action.ids[0],
            action.ids[1] if len(action.ids) > 1 else -1,
            REASONS.index(action.reason),
        )
        for action in (answer, *answer.also)
    ]


def _due(answer: Answer, policy: Policy, now: int) -> int | None:
    if isinstance(answer, Hold):
        return answer.due if answer.gate in _WORTH_A_TICK else None
    return now + LOOK_AGAIN_MS if policy.parallel_actions else None
