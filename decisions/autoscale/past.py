"""Past of a segment: what made it, when, and how often its merge was taken back.

Stage: beside `decisions.autoscale.clocks`, for the guards `settleSeconds`, `regretWindowSeconds`,
`returnsWithinSeconds` and `explicitLineage` (merge depths). A layout sets it, like a cooldown; it is remembered by the
segment's id, because a pruned layout no longer says where a segment comes from. Instants are milliseconds.

The rests (`settle_ms`, `regret_window_ms`) stand once more in columns, in `decisions.autoscale.policy_columns`, and the
regrets in `anabranch.simulation.topics.applying`.
"""

from collections.abc import Container, Mapping
from typing import Literal, NamedTuple

from decisions.autoscale.policy import Policy
from decisions.kernel.readings import MAX_INSTANT_MS
from decisions.topic.layout import HASH_SPACE, SegmentLayout
from decisions.topic.lineage import made_by
from decisions.topic.segment import Segment

REGRET_MS = 1_800_000
"""A merge that is split again within this time was one to regret."""
WIDE_REGRET_MS = 28_800_000
"""The same of a merge to one segment; of narrower ones in proportion to their width."""
FORGOTTEN_MS = 3_600_000
"""A segment counts as one merge less deep for each of these periods that it has stood (guard `explicitLineage`)."""
MAX_REGRETS = 16
"""So often regretted in a row, a range is not merged any more by a policy that merges cold segments into hot ones."""
FULL_REGRETS = 3
"""So often regretted in a row, a range waits for the whole `regretWindowSeconds`."""


class Past(NamedTuple):
    """Origin of an active segment."""

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
    past: Mapping[int, Past],
    known_ids: Container[int],
    layout: SegmentLayout,
    now: int,
    returned: Mapping[int, int] = {},
) -> dict[int, Past]:
    """Return the pasts of the active segments after a layout has come.

    `known_ids` are the ids of the layout before, `returned` the pauses of its segments as
    `decisions.autoscale.clocks.returned_after_sample_all` has them. A merge has outlived the pause after which load was
    expected to come back, but load may come back as often again: a merge hands the pause on, as a split does. A
    rebucket changes nothing.
    """
    pasts = {}
    for segment in layout.active:
        number = segment.segment_id
        if number in known_ids:
            if number in past:
                pasts[number] = past[number]
            continue
        segment = _stands_for(segment, past, layout.segments)
        if segment.segment_id in past:
            known_past = past[segment.segment_id]
            back = max(returned.get(segment.segment_id, 0), known_past.returned_after)
            pasts[number] = known_past._replace(returned_after=back)
            continue
        action = made_by(segment, layout.segments)
        if action is None or action == "rebucket":
            continue
        created_at = _not_after(segment.created_at_ms, now)
        parents = [past[parent] for parent in segment.parent_ids if parent in past]
        if action == "merge":
            regrets = max((parent.regrets for parent in parents), default=0)
            widths = [
                past[parent_id].finest if parent_id in past else layout.segments[parent_id].width
                for parent_id in segment.parent_ids
                if parent_id in past or parent_id in layout.segments
            ]
            pauses = [returned.get(parent, 0) for parent in segment.parent_ids]
            back = max(0, *pauses, *(parent.returned_after for parent in parents))
            pasts[number] = Past(created_at, action, regrets, back, min(widths, default=segment.width))
            continue
        parent = parents[0] if parents else None
        back = max(returned.get(segment.parent_ids[0], 0), parent.returned_after if parent else 0)
        if parent is None or segment.width < parent.finest:
            pasts[number] = Past(created_at, action, 0, back, segment.width)
        else:
            pasts[number] = Past(
                created_at, action, _count_reversals(parent, created_at, 2 * segment.width), back, parent.finest
            )
    return pasts


def _stands_for(segment: Segment, past: Container[int], segments: Mapping[int, Segment]) -> Segment:
    """Return the segment before its rebuckets, or the latest of them with a past."""
    while segment.segment_id not in past and made_by(segment, segments) == "rebucket":
        parent = segments[segment.parent_ids[0]]
        if parent.created_at_epoch >= segment.created_at_epoch:
            break  # a damaged record: its segments come of one another
        segment = parent
    return segment


def regret_ms(width: int) -> int:
    """Return how soon after a merge a split is a regret; it grows with `width` in hashes."""
    return max(REGRET_MS, WIDE_REGRET_MS * width // HASH_SPACE)


def _count_reversals(parent: Past, split_at: int, width: int) -> int:
    """Of the halves of what was split at an instant."""
    if parent.made == "split":
        return parent.regrets
    return (
        min(parent.regrets + 1, MAX_REGRETS) if split_at - parent.at <= regret_ms(width) else max(parent.regrets - 1, 0)
    )


def faded_depth(depth: int, since: int, now: int) -> int:
    """The merge depth of a segment that was this deep when it was made, at `since`.

    The cap bounds the lineage that a reader must follow who keeps up. Each merge counts for an hour in which the
    segment stands, so that a topic that is merged every night is not held for good.
    """
    return max(depth - max(now - since, 0) // FORGOTTEN_MS, 0)


def shallow_at(depth: int, since: int, cap: int) -> int:
    """From when on the depth of a segment, as of `faded_depth`, is below a cap; `MAX_INSTANT_MS`: never."""
    if depth < cap:
        return -MAX_INSTANT_MS
    return min(since + (depth - cap + 1) * FORGOTTEN_MS, MAX_INSTANT_MS) if cap > 0 else MAX_INSTANT_MS


def depths_after_layout(
    depths: Mapping[int, int], pasts: Mapping[int, Past], known_ids: Container[int], layout: SegmentLayout, now: int
) -> dict[int, int]:
    """Return the merge depth of each active segment when it was made (guard `explicitLineage`).

    The depth is the longest chain of merges, not their number: a new segment goes on from the deepest of its parents as
    that counted by then. `depths` and `pasts` are those before the `layout`, `known_ids` the ids of the layout before.
    Only instants in the layout are used, so that a rebuild from a layout with all its ancestors finds the same.
    """
    segments, new_depths = layout.segments, dict[int, int]()
    for number in sorted(segments):
        segment = segments[number]
        if number in known_ids or not segment.parent_ids:
            new_depths[number] = depths.get(number, 0)
            continue
        action = made_by(segment, segments)
        if action == "rebucket":
            (parent,) = segment.parent_ids
            new_depths[number] = new_depths.get(parent, depths.get(parent, 0))
            continue
        created_at = _not_after(segment.created_at_ms, now)
        new_depths[number] = (action == "merge") + max(
            faded_depth(
                new_depths.get(parent, depths.get(parent, 0)), made_at(parent, pasts, segments, now), created_at
            )
            for parent in segment.parent_ids
        )
    return {segment.segment_id: new_depths[segment.segment_id] for segment in layout.active}


def made_at(number: int, pasts: Mapping[int, Past], segments: Mapping[int, Segment], now: int) -> int:
    """Return when a segment was made, as remembered or else as its layout says; 0 if neither does."""
    if number not in pasts and number in segments:
        number = _stands_for(segments[number], pasts, segments).segment_id
    if number in pasts:
        return pasts[number].at
    return _not_after(segments[number].created_at_ms, now) if number in segments else 0


def _not_after(created_at: int, now: int) -> int:
    return max(0, min(created_at, now))


def settle_ms(past: Past, policy: Policy) -> int:
    """For how long after it was made a segment is not merged.

    What a split has made: `settleSeconds`. What a merge has made: the policy's cooldown of merges, so that a topic
    shrinks in steps. Where merge thresholds are so high that two cold segments can make a hot one, a range that is
    always regretted comes to rest.
    """
    if past.made == "merge":
        return policy.merge_cooldown_ms
    if past.regrets >= MAX_REGRETS and policy.merges_into_hot:
        return 2 * MAX_INSTANT_MS
    return policy.settle_ms


def regret_window_ms(past: Past | None, width: int, policy: Policy) -> int:
    """Return how long a segment must be cold whose last merge was split again too soon.

    `width` is in hashes. The wider, the longer, by the square of its part of the whole: a merge of the whole key space
    saves one segment and moves every client. The first two regrets ask for a part.
    """
    if past is None or not past.regrets or not policy.regret_window_ms:
        return 0
    window = min(policy.regret_window_ms, MAX_INSTANT_MS) * 2 * width // HASH_SPACE * 2 * width // HASH_SPACE
    return window * min(past.regrets, FULL_REGRETS) // FULL_REGRETS
