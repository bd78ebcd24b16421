"""When topics are next due: `next_due` of `decide` in columns, for topics of many policies at once.

Stage: beside `decisions.autoscale.fleet`, which decides what this finds due, and holds the rest. A simulation skips to
these instants, and the engine's columns keep parts of them between ticks. A test compares them with `decide` topic by
topic. Instants are milliseconds.
"""

from typing import NamedTuple

import numpy as np

from decisions.autoscale.clocks import NEVER as NO_INSTANT
from decisions.autoscale.columns import NEVER, Bools, Ints
from decisions.autoscale.known import MAX_BACKOFF_MS, MAX_DOUBLINGS
from decisions.autoscale.past import FORGOTTEN_MS
from decisions.autoscale.policy_columns import NOT_DUE, PolicyColumns
from decisions.kernel.readings import MAX_INSTANT_MS


class TopicColumns(NamedTuple):
    """Topics to evaluate, in columns. No decision is open, and their loads were seen now."""

    policy: Ints
    """Index in `PolicyColumns`."""
    now: Ints
    active: Ints
    """Number of active segments."""
    required: Ints
    last_split: Ints
    last_merge: Ints
    failures: Ints
    failed_at: Ints
    """Failures are those of splits."""


class SegmentColumns(NamedTuple):
    """Their segments, in columns; those of a topic are adjacent, in the order of the topics."""

    owner: Ints
    """Index of the topic in `TopicColumns`."""
    is_hot: Bools
    is_cold: Bools
    is_single: Bools
    cold_since: Ints
    shallow_at: Ints
    settled_at: Ints


class DueColumns(NamedTuple):
    """By topic, what it wants and when it may have it; `NOT_DUE`: time alone does not bring it."""

    has_demand: Bools
    """Consumers lack segments."""
    may_split: Bools
    """Now, or as far as columns tell (`PolicyColumns.asks`)."""
    is_urgent: Bools
    """The gate that binds is one that the job asks an extra tick for."""
    opens_at: Ints
    """Instant when that gate opens."""
    split_due: Ints
    may_merge: Bools
    merges_at: Ints
    """Instant when the first pair may merge, if samples keep its loads trusted until then."""
    merge_due: Ints
    """The same if no sample comes."""


def next_due(policies: PolicyColumns, topics: TopicColumns, segments: SegmentColumns) -> DueColumns:
    """Return when topics may split or merge. One that wants nothing, or may never have it, is `NOT_DUE`."""
    has_demand: Bools = topics.required > topics.active
    return DueColumns(
        has_demand, *_splits_due(policies, topics, segments, has_demand), *_merges_due(policies, topics, segments)
    )


def _splits_due(
    policies: PolicyColumns, topics: TopicColumns, segments: SegmentColumns, has_demand: Bools
) -> tuple[Bools, Bools, Ints, Ints]:
    policy, now, owner = topics.policy, topics.now, segments.owner
    first = np.cumsum(topics.active) - topics.active
    nobody, never = np.zeros(len(now), np.bool_), np.full(len(now), NOT_DUE)
    wants = policies.is_on[policy] & (has_demand | np.logical_or.reduceat(segments.is_hot, first))
    if not wants.any():
        return nobody, nobody, never, never
    splittable = ~(segments.is_single & policies.skips_single[policy][owner])
    can_split = np.logical_or.reduceat(splittable & (segments.is_hot | has_demand[owner]), first)
    rests_until = np.where(topics.last_split == NEVER, NEVER, topics.last_split + policies.split_cooldown[policy])
    pauses_until = np.full(len(now), NEVER)
    if topics.failures.any():
        pause = backoff_pause(policies.backoff[policy], topics.failures)
        pauses_until = np.where((topics.failures > 0) & (pause > 0), topics.failed_at + pause, NEVER)
    pauses, rests, is_full = pauses_until > now, rests_until > now, topics.active >= policies.max_segments[policy]
    fails = pauses | rests | is_full | ~can_split
    asks = policies.asks[policy]
    due = np.maximum(np.where(pauses, pauses_until, NEVER), np.where(rests, rests_until, NEVER))
    # A load is trusted for a time only; consumers are.
    is_known = has_demand | (due - now <= policies.load_age[policy])
    return (
        wants & (asks | ~fails),
        wants & ~asks & (pauses | (~is_full & rests)),
        np.where(pauses, pauses_until, rests_until),
        np.where(wants & ~asks & fails & ~is_full & can_split & is_known, due, NOT_DUE),
    )


def _merges_due(policies: PolicyColumns, topics: TopicColumns, segments: SegmentColumns) -> tuple[Bools, Ints, Ints]:
    policy, count, owner, is_cold = topics.policy, topics.active, segments.owner, segments.is_cold
    may_merge, never = np.zeros(len(count), np.bool_), np.full(len(count), NOT_DUE)
    pairs = np.flatnonzero(is_cold[:-1] & is_cold[1:] & (owner[:-1] == owner[1:]))
    if not len(pairs):
        return may_merge, never, never
    is_free = policies.is_on[policy] & (count > policies.min_segments[policy])
    is_free &= ~policies.keeps_consumers[policy] | (count > topics.required) | policies.shares[policy]
    shallow = np.maximum(segments.shallow_at[pairs], segments.shallow_at[pairs + 1])
    is_possible = is_free[owner[pairs]] & (shallow < MAX_INSTANT_MS)
    pairs, shallow = pairs[is_possible], shallow[is_possible]
    if not len(pairs):
        return may_merge, never, never
    own, cold_since, settled_at = owner[pairs], segments.cold_since, segments.settled_at
    ends = np.maximum(cold_since[pairs], cold_since[pairs + 1]) + policies.merge_window[policy[own]]
    ends = np.maximum(ends, np.maximum(settled_at[pairs], settled_at[pairs + 1]))
    firsts = np.flatnonzero(np.append(True, own[1:] != own[:-1]))
    chosen = own[firsts]
    now, last, of_chosen = topics.now[chosen], topics.last_merge[chosen], policy[chosen]
    first_end = np.minimum.reduceat(np.maximum(ends, shallow), firsts)
    # Where some pairs are shallow enough `decide` waits for these, else for all.
    is_shallow = shallow <= topics.now[own]
    first_of_shallow = np.minimum.reduceat(np.where(is_shallow, ends, NOT_DUE), firsts)
    first_awaited = np.where(np.logical_or.reduceat(is_shallow, firsts), first_of_shallow, first_end)
    has_none = (last == NEVER) | policies.acts_in_parallel[of_chosen]
    rests_until = np.where(has_none, NEVER, last + policies.merge_cooldown[of_chosen])
    merges_at, merge_due = never, never.copy()
    merges_at[chosen] = np.maximum(first_end, rests_until)
    may_merge[chosen] = merges_at[chosen] <= now
    due = np.maximum(np.maximum(first_awaited, rests_until), now)
    merge_due[chosen] = np.where(due - now <= policies.load_age[of_chosen], due, NOT_DUE)
    return may_merge, merges_at, merge_due


# The waits of which this is made, also for those who keep them in columns


def backoff_pause(first: int | Ints, failures: Ints) -> Ints:
    """Return the pauses after so many failures in a row (`known.retry_backoff`); `first`: those after one."""
    doubled = np.minimum(first, MAX_BACKOFF_MS) << np.clip(failures - 1, 0, MAX_DOUBLINGS)
    pauses: Ints = np.maximum(np.minimum(doubled, MAX_BACKOFF_MS), first)
    return pauses


def faded_depths(depths: Ints, made_at: Ints, now: int | Ints) -> Ints:
    """Return the merge depths that segments still have at `now` (`past.faded_depth`)."""
    stood = np.maximum(now - np.maximum(made_at, 0), 0)
    faded: Ints = np.maximum(depths - stood // FORGOTTEN_MS, 0)
    return faded


def shallow_from(keeps_depth: Bools, depths: Ints, shown: Ints, made_at: Ints, cap: Ints) -> Ints:
    """Return from when on the depths of segments permit a merge (`TopicSnapshot.shallow_at`).

    `depths`: when they were made; `shown`: as the layout shows them, which counts where the policy keeps none.
    """
    fades_at = np.minimum(np.maximum(made_at, 0) + (depths - cap + 1) * FORGOTTEN_MS, MAX_INSTANT_MS)
    deep_until = np.where(keeps_depth & (cap > 0), fades_at, MAX_INSTANT_MS)
    return np.where(np.where(keeps_depth, depths, shown) < cap, NEVER, deep_until)


def settled_until(
    rest_end: Ints, cold_since: Ints, regret_window: Ints, pauses: tuple[Ints, ...], returns_within: Ints
) -> Ints:
    """Return until when segments are not merged (`merge_pass.settled_at`); `NEVER`: they may be.

    `rest_end`: of the rest after they were made; `pauses`: those after which their loads came back.
    """
    is_cold = cold_since != NO_INSTANT
    cold_until = np.minimum(cold_since + regret_window, MAX_INSTANT_MS)
    settled_at = np.maximum(rest_end, np.where(is_cold & (regret_window > 0), cold_until, NEVER))
    for pause in pauses:
        is_expected = is_cold & (pause > 0) & (pause <= returns_within)
        if is_expected.any():
            # A load that returned after a pause is expected again until it has been cold half as long again.
            expected_at = np.minimum(cold_since + pause * 3 // 2, MAX_INSTANT_MS)
            settled_at = np.maximum(settled_at, np.where(is_expected, expected_at, NEVER))
    return settled_at
