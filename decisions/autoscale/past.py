"""A segment's past: what made it, when, and how often what it stands for was taken back and wanted again.

Stage: beside `decisions.autoscale.clocks`, for the guard `settleSeconds`. A layout sets it, like a cooldown; it is
remembered by the segment's id, for a pruned layout no longer says where a segment comes from. Instants are
milliseconds.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Literal, NamedTuple

from decisions.autoscale.policy import Policy
from decisions.topic.layout import SegmentLayout
from decisions.topic.lineage import made_by

REGRET_MS = 3_600_000
"""A merge that is split again within this time was one to regret."""
MAX_REGRETS = 6
MAX_SETTLE_MS = 86_400_000
"""However often it was regretted, what was split may be merged after this time (or the policy's, if that is longer)."""


class Past(NamedTuple):
    """Where an active segment comes from."""

    at: int
    """When it was made."""
    made: Literal["split", "merge"]
    regrets: int = 0
    """How often merges of its range were split again soon; one less for each split that was not so."""


def past_after_layout(
    past: Mapping[int, Past], known: Container[int], layout: SegmentLayout, now: int
) -> dict[int, Past]:  # fmt: skip
    """The pasts of the active segments after a layout has come; `known` are the ids of the layout before."""
    found = {}
    for segment in layout.active:
        number = segment.segment_id
        if number in known:
            if number in past:
                found[number] = past[number]
            continue
        made = made_by(segment)
        if made is None:
            continue
        at = max(0, min(segment.created_at_ms, now))
        parents = [past[parent] for parent in segment.parent_ids if parent in past]
        regrets = max((parent.regrets for parent in parents), default=0)
        if made == "split":
            parent = parents[0] if parents else None
            is_regretted = parent is not None and parent.made == "merge" and at - parent.at <= REGRET_MS
            regrets = min(regrets + 1, MAX_REGRETS) if is_regretted else max(regrets - 1, 0)
        found[number] = Past(at, made, regrets)
    return found


def settle_ms(past: Past, policy: Policy) -> int:
    """For how long after it was made a segment is not merged.

    What a split has made: `settleSeconds`, doubled for each regret. What a merge has made: the policy's cooldown of
    merges, so that a topic shrinks in steps.
    """
    if past.made == "merge":
        return policy.merge_cooldown_ms
    return min(policy.settle_ms << past.regrets, max(policy.settle_ms, MAX_SETTLE_MS))
