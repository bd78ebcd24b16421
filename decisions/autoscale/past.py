"""A segment's past: what made it, when, and how often what it stands for was taken back and wanted again.

Stage: beside `decisions.autoscale.clocks`, for the guard `settleSeconds`. A layout sets it, like a cooldown; it is
remembered by the segment's id, for a pruned layout no longer says where a segment comes from. Instants are
milliseconds.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Literal, NamedTuple

from decisions.autoscale.policy import Policy
from decisions.kernel.readings import MAX_INSTANT_MS
from decisions.topic.layout import SegmentLayout
from decisions.topic.lineage import made_by, merge_depths_after_layout

REGRET_MS = 1_800_000
"""A merge that is split again within this time was one to regret."""
FORGOTTEN_MS = 3_600_000
"""After standing for so long a segment counts as one merge less deep (guard `explicitLineage`)."""
MAX_REGRETS = 16
"""So often regretted in a row, a range is not merged any more."""


class Past(NamedTuple):
    """Where an active segment comes from."""

    at: int
    """When it was made."""
    made: Literal["split", "merge"]
    regrets: int = 0
    """How often merges of its range were split again soon; one less for each that was split later."""
    returned_after: int = 0
    """Milliseconds of the pause after which the load of what was split came back last; 0: it did not."""
    finest: int = 0
    """Hashes: how narrow the narrowest piece was that was merged into its range. What is split finer than that was
    never merged, and nothing of it is regretted."""


def past_after_layout(
    past: Mapping[int, Past], known: Container[int], layout: SegmentLayout, now: int, returned: Mapping[int, int] = {}
) -> dict[int, Past]:  # fmt: skip
    """The pasts of the active segments after a layout has come; `known` are the ids of the layout before, `returned`
    the pauses of its segments as `decisions.autoscale.clocks.returned_after_sample` has them.

    A merge has outlived what was expected to come back; a split hands it on.
    """
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
        if made == "merge":
            regrets = max((parent.regrets for parent in parents), default=0)
            widths = [past[one].finest if one in past else layout.segments[one].width
                      for one in segment.parent_ids if one in past or one in layout.segments]  # fmt: skip
            found[number] = Past(at, made, regrets, 0, min(widths, default=segment.width))
            continue
        parent = parents[0] if parents else None
        back = max(returned.get(segment.parent_ids[0], 0), parent.returned_after if parent else 0)
        if parent is None or segment.width < parent.finest:
            found[number] = Past(at, made, 0, back, segment.width)
        else:
            found[number] = Past(at, made, _regrets(parent, at), back, parent.finest)
    return found


def _regrets(parent: Past, at: int) -> int:
    """Of the halves of what was split at an instant."""
    if parent.made == "split":
        return parent.regrets
    return min(parent.regrets + 1, MAX_REGRETS) if at - parent.at <= REGRET_MS else max(parent.regrets - 1, 0)


def depths_now(depths: Mapping[int, int], pasts: Mapping[int, Past], now: int) -> dict[int, int]:
    """The merge depths that are kept through pruning, as they count now: one less for each hour that a segment has
    stood. The cap is against chasing; a topic that is merged every night must not be held by it for good."""
    return {
        number: max(depth - max(now - past.at, 0) // FORGOTTEN_MS, 0)
        if depth and (past := pasts.get(number))
        else depth
        for number, depth in depths.items()
    }


def depths_after_layout(
    depths: Mapping[int, int], pasts: Mapping[int, Past], known: Container[int], layout: SegmentLayout, now: int
) -> dict[int, int]:  # fmt: skip
    """The merge depths that are kept through pruning after a layout has come: a new segment goes on from what its
    parents count by now (`decisions.topic.lineage.merge_depths_after_layout`)."""
    found = merge_depths_after_layout(depths_now(depths, pasts, now), known, layout.segments)
    return {number: depths.get(number, depth) for number, depth in found.items()}


def settle_ms(past: Past, policy: Policy) -> int:
    """For how long after it was made a segment is not merged.

    What a split has made: `settleSeconds`, doubled for each regret. What a merge has made: the policy's
    cooldown of merges, so that a topic shrinks in steps. A range that is always regretted comes to rest.
    """
    if past.made == "merge":
        return policy.merge_cooldown_ms
    return policy.settle_ms << past.regrets if past.regrets < MAX_REGRETS else 2 * MAX_INSTANT_MS
