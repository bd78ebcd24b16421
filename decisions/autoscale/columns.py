"""Snapshots of many topics as arrays, and the answers: what `decisions.autoscale.fleet` works on.

Stage: `engine.autoscale.fleet_columns` fills `SnapshotColumns`. A segment without a record has NaN rates: every
comparison with them is false, so it is neither hot nor cold.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from decisions.autoscale.gates import Gate
from decisions.autoscale.policy import Policy
from decisions.autoscale.rebucket_pass import AT_MAX_SEGMENTS, BELOW_FLOOR
from decisions.autoscale.split_pass import SHIPPED_REASONS
from schemas.metadata import RATES

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

NEVER = np.iinfo(np.int64).min
"""Stands for an instant that is not set."""
HOLD, SPLIT, MERGE, ASK, REBUCKET = 0, 1, 2, 3, 4
"""Codes of `FleetAnswers.action`; `ASK`: an action is possible, such as a rebucket, and `decide` has to answer."""
REASONS = ("", *RATES, "consumer-count", "cold", AT_MAX_SEGMENTS, BELOW_FLOOR, *SHIPPED_REASONS.values())
"""Indexed by `FleetAnswers.reason`."""
GATES = tuple(Gate)
"""Indexed by `FleetAnswers.gate`, which is -1 for an action."""
ANY_ACTION, ONLY_SPLIT, ONLY_MERGE, ONLY_REBUCKET = 0, 1, 2, 3
"""Codes of `SnapshotColumns.failed_action`."""
FAILED_ACTIONS = {None: ANY_ACTION, "split": ONLY_SPLIT, "merge": ONLY_MERGE, "rebucket": ONLY_REBUCKET}


@dataclass(frozen=True)
class SnapshotColumns:
    """Snapshots of n topics with m active segments, grouped by policy; instants in milliseconds."""

    policies: Sequence[Policy]
    policy_starts: Sequence[int]
    """The first topic of each policy."""
    offsets: Ints
    """n + 1: a topic's segments are `offsets[i]:offsets[i + 1]`, in the order of their hash ranges."""
    now: Ints
    by_consumer: Bools
    """The trigger was `consumer`."""
    required: Ints
    """Consumers of the largest managed subscription."""
    last_split_at: Ints
    last_merge_at: Ints
    opened_at: Ints
    """Time of the open decision; `NEVER`: none is open."""
    only_merges_open: Bools
    """True if the open decisions are merges that were not applied yet."""
    failures: Ints
    failed_at: Ints
    failed_action: npt.NDArray[np.int8]
    segment_ids: Ints
    is_single_hash: Bools
    rates: tuple[Floats, Floats, Floats, Floats]
    """Four columns per second, NaN without a record."""
    seen_at: Ints
    cold_since: Ints
    """Start of a cold segment's merge window, by the policy's measure."""
    depths: Ints
    """Merges in each segment's lineage."""
    shallow_at: Ints
    """Time from which on a segment's depth permits a merge (`TopicSnapshot.shallow_at`)."""
    settled_at: Ints
    """Time until which a segment is not merged because its load may come back; `NEVER`: no limit."""
    sharing: Ints
    """Consumers of a topic's largest subscription whose consumers can share a segment."""
    unshared: Ints
    """The same for subscriptions whose consumers cannot share one."""
    buckets: Ints
    """Entry buckets of a segment; 0: not stated."""

    def __len__(self) -> int:
        return len(self.now)

    @property
    def in_flight(self) -> Bools:
        """True for topics with an open decision."""
        is_open: Bools = self.opened_at != NEVER
        return is_open

    def take(self, topics: Ints) -> "SnapshotColumns":
        """Return the snapshots of some topics, given in ascending order."""
        segments = segments_of(self.offsets, topics)
        msg_in, bytes_in, msg_out, bytes_out = (column[segments] for column in self.rates)
        return SnapshotColumns(
            self.policies,
            np.searchsorted(topics, self.policy_starts).tolist(),
            np.concatenate([[0], np.cumsum(np.diff(self.offsets)[topics])]).astype(np.int64),
            self.now[topics],
            self.by_consumer[topics],
            self.required[topics],
            self.last_split_at[topics],
            self.last_merge_at[topics],
            self.opened_at[topics],
            self.only_merges_open[topics],
            self.failures[topics],
            self.failed_at[topics],
            self.failed_action[topics],
            self.segment_ids[segments],
            self.is_single_hash[segments],
            (msg_in, bytes_in, msg_out, bytes_out),
            self.seen_at[segments],
            self.cold_since[segments],
            self.depths[segments],
            self.shallow_at[segments],
            self.settled_at[segments],
            self.sharing[topics],
            self.unshared[topics],
            self.buckets[segments],
        )


def segments_of(offsets: Ints, topics: Ints) -> Ints:
    """Return the positions of some topics' segments, topic by topic; `offsets` as in `SnapshotColumns`."""
    starts, counts = offsets[topics], offsets[topics + 1] - offsets[topics]
    begins = np.cumsum(counts) - counts
    segments: Ints = np.repeat(starts - begins, counts) + np.arange(int(counts.sum()))
    return segments


@dataclass(frozen=True)
class FleetAnswers:
    """One answer per topic, in the fleet's order."""

    action: npt.NDArray[np.int8]
    """`HOLD`, `SPLIT`, `MERGE` or `ASK`."""
    segment: Ints
    """The segment to split, or the lower of the pair to merge; -1 otherwise."""
    other: Ints
    """The upper of the pair to merge; -1 otherwise."""
    reason: npt.NDArray[np.int8]
    """Index into `REASONS`."""
    gate: npt.NDArray[np.int8]
    """The binding gate of a hold, as index into `GATES`; -1 for an action."""
