"""Readings of many topics at their binding gates, in columns; the same as those of `decide`.

Stage: after `decisions.autoscale.fleet`, for the topics whose gate has changed; the readings go into the table `holds`.
Each gate has a function for topics that it binds and that share a policy. A test compares them with `decide` topic by
topic.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from decisions.autoscale.columns import GATES, NEVER, Bools, Floats, Ints, SnapshotColumns
from decisions.autoscale.gates import Gate
from decisions.autoscale.known import MAX_BACKOFF_MS
from decisions.autoscale.next_due import backoff_pause
from decisions.autoscale.policy import Policy
from decisions.autoscale.rates import MAX_RATIO
from decisions.kernel.readings import MAX_INSTANT_MS

_EXACT_UP_TO = 2**61
"""Longest wait that fits 64 bits together with an instant; longer ones are computed with Python's integers."""


class FleetReadings(NamedTuple):
    """A reading per topic, with the fields of `decisions.kernel.readings.Reading`."""

    measured: Floats
    """NaN: nothing is measured; the same of `limit` and `margin`."""
    limit: Floats
    margin: Floats
    eligible_at: Ints
    """`NEVER`: time alone does not open the gate."""

    def where(self, chosen: Bools) -> "FleetReadings":
        """Return the readings of some topics."""
        measured, limit, margin = (column[chosen] for column in self[:3])
        return FleetReadings(measured, limit, margin, self.eligible_at[chosen])


def binding_readings(fleet: SnapshotColumns, gates: npt.NDArray[np.int8]) -> FleetReadings:
    """Return the reading of the gate that binds each topic; `gates` as in `FleetAnswers`, all holds."""
    readings = _empty_readings(len(fleet))
    ends = [*fleet.policy_starts, len(fleet)][1:]
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        for policy, start, end in zip(fleet.policies, fleet.policy_starts, ends, strict=True):
            for code in np.unique(gates[start:end]).tolist():
                topics = start + np.flatnonzero(gates[start:end] == code)
                read = _READERS[GATES[code]](fleet.take(topics), policy)
                for column, values in zip(readings, read, strict=True):
                    column[topics] = values
    return readings


def _empty_readings(count: int) -> FleetReadings:
    measured, limit, margin = (np.full(count, np.nan) for _ in range(3))
    return FleetReadings(measured, limit, margin, np.full(count, NEVER, np.int64))


def _reading_above(measured: npt.NDArray[Any], limit: Any) -> FleetReadings:
    """Apply `decisions.kernel.readings.read_above` to columns."""
    margin = np.asarray(measured - limit, np.float64)
    return _empty_readings(len(measured))._replace(
        measured=measured, limit=limit + np.zeros(len(measured)), margin=margin
    )


def _reading_below(measured: npt.NDArray[Any], limit: Any) -> FleetReadings:
    """Apply `decisions.kernel.readings.read_below` or `at_most` to columns."""
    margin = np.asarray(limit - measured, np.float64)
    return _empty_readings(len(measured))._replace(
        measured=measured, limit=limit + np.zeros(len(measured)), margin=margin
    )


def _reading_waited(now: Ints, since: Ints, wait_ms: Any) -> FleetReadings:
    """Apply `decisions.kernel.readings.read_waited` to columns of waits that have not passed."""
    wait = wait_ms if np.max(wait_ms) <= _EXACT_UP_TO else np.asarray(wait_ms, object)
    elapsed, end = now - since, since + wait
    eligible_at = np.where(np.asarray(end > MAX_INSTANT_MS, np.bool_), NEVER, end).astype(np.int64)
    limit = np.zeros(len(now)) + np.asarray(wait, np.float64)
    return FleetReadings(elapsed.astype(np.float64), limit, np.asarray(elapsed - wait, np.float64), eligible_at)


# The gates


def _retry_backoff(fleet: SnapshotColumns, policy: Policy) -> FleetReadings:
    first = policy.retry_backoff_ms
    pause = first if first >= MAX_BACKOFF_MS else backoff_pause(first, fleet.failures)
    return _reading_waited(fleet.now, fleet.failed_at, pause)


def _load_stale(fleet: SnapshotColumns, policy: Policy) -> FleetReadings:
    seen = np.where(np.isnan(fleet.rates[0]), np.iinfo(np.int64).max, fleet.seen_at)
    return _reading_below(fleet.now - np.minimum.reduceat(seen, fleet.offsets[:-1]), policy.max_load_age_ms)


def _split_thresholds(fleet: SnapshotColumns, policy: Policy) -> FleetReadings:
    overload = np.where(_known_loads(fleet, policy), _largest_ratio(fleet, policy.split_thresholds), -np.inf)
    return _reading_above(np.minimum(np.maximum.reduceat(overload, fleet.offsets[:-1]), MAX_RATIO), 1.0)


def _merge_thresholds(fleet: SnapshotColumns, policy: Policy) -> FleetReadings:
    if 0.0 in policy.merge_thresholds:
        heat = np.full(len(fleet.segment_ids), MAX_RATIO)
    else:
        heat = np.minimum(_largest_ratio(fleet, policy.merge_thresholds), MAX_RATIO)
    has_load = _known_loads(fleet, policy)
    hotter = np.where(_neighbour_pairs(fleet, has_load), np.maximum(heat, np.roll(heat, -1)), np.inf)
    return _reading_below(np.minimum.reduceat(hotter, fleet.offsets[:-1]), 1.0)


def _max_dag_depth(fleet: SnapshotColumns, policy: Policy) -> FleetReadings:
    pairs, starts, most = _cold_pairs(fleet, policy), fleet.offsets[:-1], np.iinfo(np.int64).max
    depth = np.minimum.reduceat(np.where(pairs, _of_pairs(fleet.depths), most), starts)
    earliest = np.minimum.reduceat(np.where(pairs, _of_pairs(fleet.shallow_at), most), starts)
    eligible_at = np.where(earliest >= MAX_INSTANT_MS, NEVER, earliest)
    return _reading_below(depth, policy.max_dag_depth)._replace(eligible_at=eligible_at)


def _merge_capacity(fleet: SnapshotColumns, policy: Policy) -> FleetReadings:
    loss, starts = _bucket_losses(fleet, policy), fleet.offsets[:-1]
    least = np.minimum.reduceat(np.where(_shallow_pairs(fleet, policy), loss, np.iinfo(np.int64).max), starts)
    capacity = np.add.reduceat(np.maximum(fleet.buckets, 1), starts)
    return _reading_above(capacity - least, np.minimum(fleet.required, capacity))


def _merge_window(fleet: SnapshotColumns, policy: Policy) -> FleetReadings:
    may_merge = _affordable_pairs(fleet, policy)
    since = np.where(may_merge, _of_pairs(fleet.cold_since), np.iinfo(np.int64).max)
    return _reading_waited(fleet.now, np.minimum.reduceat(since, fleet.offsets[:-1]), policy.merge_window_ms)


def _settling(fleet: SnapshotColumns, policy: Policy) -> FleetReadings:
    may_merge = _affordable_pairs(fleet, policy)
    window = min(policy.merge_window_ms, _EXACT_UP_TO)
    is_ready = may_merge & (np.repeat(fleet.now, np.diff(fleet.offsets)) - _of_pairs(fleet.cold_since) >= window)
    settled, latest = _of_pairs(fleet.settled_at), np.iinfo(np.int64).max
    starts = fleet.offsets[:-1]
    of_all = np.minimum.reduceat(np.where(may_merge, settled, latest), starts)
    of_ready = np.minimum.reduceat(np.where(is_ready, settled, latest), starts)
    earliest = np.where(np.logical_or.reduceat(is_ready, starts), of_ready, of_all)
    eligible_at = np.where(earliest >= MAX_INSTANT_MS, NEVER, earliest)
    return _reading_below(earliest - fleet.now, 0)._replace(eligible_at=eligible_at)


_READERS: Mapping[Gate, Callable[[SnapshotColumns, Policy], FleetReadings]] = {
    Gate.INVALID_POLICY: lambda fleet, policy: _empty_readings(len(fleet)),
    Gate.DISABLED: lambda fleet, policy: _empty_readings(len(fleet)),
    Gate.IN_FLIGHT: lambda fleet, policy: _empty_readings(len(fleet))._replace(
        measured=(fleet.now - fleet.opened_at).astype(np.float64)
    ),
    Gate.RETRY_BACKOFF: _retry_backoff,
    Gate.MAX_SEGMENTS: lambda fleet, policy: _reading_below(np.diff(fleet.offsets), policy.max_segments),
    Gate.SPLIT_COOLDOWN: lambda fleet, policy: _reading_waited(
        fleet.now, fleet.last_split_at, policy.split_cooldown_ms
    ),
    Gate.CONSUMER_DEMAND: lambda fleet, policy: _reading_above(fleet.required, np.diff(fleet.offsets)),
    Gate.ENTRY_BUCKETS: lambda fleet, policy: _reading_above(
        fleet.sharing, np.add.reduceat(np.maximum(fleet.buckets, 1), fleet.offsets[:-1])
    ),
    Gate.LOAD_MISSING: lambda fleet, policy: _reading_below(
        np.add.reduceat(np.isnan(fleet.rates[0]).astype(np.int64), fleet.offsets[:-1]), 0
    ),
    Gate.LOAD_STALE: _load_stale,
    Gate.SPLIT_THRESHOLDS: _split_thresholds,
    Gate.UNSPLITTABLE: lambda fleet, policy: _reading_above(np.ones(len(fleet)), 1.0),
    Gate.MIN_SEGMENTS: lambda fleet, policy: _reading_above(np.diff(fleet.offsets), policy.min_segments),
    Gate.MERGE_COOLDOWN: lambda fleet, policy: _reading_waited(
        fleet.now, fleet.last_merge_at, policy.merge_cooldown_ms
    ),
    Gate.MERGE_CONSUMERS: lambda fleet, policy: _reading_above(np.diff(fleet.offsets), fleet.required),
    Gate.MERGE_THRESHOLDS: _merge_thresholds,
    Gate.MAX_DAG_DEPTH: _max_dag_depth,
    Gate.MERGE_CAPACITY: _merge_capacity,
    Gate.MERGE_WINDOW: _merge_window,
    Gate.SETTLING: _settling,
}

# Shared by the gates, by segment


def _known_loads(fleet: SnapshotColumns, policy: Policy) -> Bools:
    """Return True for segments with a load that is known and fresh."""
    is_known: Bools = ~np.isnan(fleet.rates[0])
    if policy.max_load_age_ms:
        oldest = fleet.now - min(policy.max_load_age_ms, _EXACT_UP_TO)
        is_known &= fleet.seen_at >= np.repeat(oldest, np.diff(fleet.offsets))
    return is_known


def _neighbour_pairs(fleet: SnapshotColumns, chosen: Bools) -> Bools:
    """Return True for chosen segments whose next one in the topic is chosen too."""
    has_next = np.ones(len(chosen), np.bool_)
    has_next[fleet.offsets[1:] - 1] = False
    pairs: Bools = chosen & np.roll(chosen, -1) & has_next
    return pairs


def _cold_pairs(fleet: SnapshotColumns, policy: Policy) -> Bools:
    cold = _known_loads(fleet, policy)
    for rate, limit in zip(fleet.rates, policy.merge_thresholds, strict=True):
        cold &= rate < limit
    return _neighbour_pairs(fleet, cold)


def _shallow_pairs(fleet: SnapshotColumns, policy: Policy) -> Bools:
    """Return True for cold pairs whose depth permits a merge."""
    shallow: Bools = _cold_pairs(fleet, policy) & (_of_pairs(fleet.depths) < policy.max_dag_depth)
    return shallow


def _affordable_pairs(fleet: SnapshotColumns, policy: Policy) -> Bools:
    """Return True for shallow pairs whose merge leaves each consumer an entry bucket."""
    pairs = _shallow_pairs(fleet, policy)
    if not policy.rebuckets or not (policy.as_shipped or fleet.buckets.any()):
        return pairs
    starts = fleet.offsets[:-1]
    shares = np.logical_or.reduceat(fleet.buckets > 0, starts) | policy.as_shipped
    capacity = np.add.reduceat(np.maximum(fleet.buckets, 1), starts)
    spare = np.where(shares, capacity - np.minimum(fleet.required, capacity), np.iinfo(np.int64).max)
    affordable: Bools = pairs & (_bucket_losses(fleet, policy) <= _by_segment(fleet, spare))
    return affordable


def _bucket_losses(fleet: SnapshotColumns, policy: Policy) -> Ints:
    """Return the entry buckets lost by a merge of each segment with the next one."""
    buckets = np.maximum(fleet.buckets, 1)
    losses: Ints = np.maximum(buckets + np.roll(buckets, -1) - policy.max_entry_buckets_per_segment, 0)
    return losses


def _by_segment(fleet: SnapshotColumns, column: Ints) -> Ints:
    """Repeat the value of each topic for each of its segments."""
    repeated: Ints = np.repeat(column, np.diff(fleet.offsets))
    return repeated


def _of_pairs(column: Ints) -> Ints:
    """Return the larger value of each segment and the next."""
    larger: Ints = np.maximum(column, np.roll(column, -1))
    return larger


def _largest_ratio(fleet: SnapshotColumns, limits: tuple[float, ...]) -> Floats:
    ratios = [rate / limit for rate, limit in zip(fleet.rates, limits, strict=True)]
    largest: Floats = np.maximum.reduce(ratios)
    return largest
