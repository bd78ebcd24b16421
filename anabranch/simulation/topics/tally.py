"""Counts of each row, updated whenever something changes for it.

Stage: under the kernel. Between two of its steps nothing of a row changes, so each count is a product.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from anabranch.simulation.topics.outcome import SERIES_POINTS, Actions, Outcome
from anabranch.simulation.topics.timeline import Ints

Bools = npt.NDArray[np.bool_]


class Tally:
    """Counts of rows; each is a topic under one of the policies."""

    def __init__(self, policy_of_row: Ints, topic: Ints, steps: int) -> None:
        """`policy_of_row`: index of the policy of each row."""
        count = len(policy_of_row)
        self._of, self._topic, self._steps, self._first = policy_of_row, topic, steps, 0
        self._since = np.zeros(count, np.int64)
        self._segments: Ints = np.zeros(count, np.int64)
        self._over, self._waiting, self._capped = (np.zeros(count, np.int64) for _ in range(3))
        """State at the last step of each row."""
        self._total = np.zeros((4, count), np.int64)
        """Sums over time, in steps, of the segments and these states."""
        self._most = np.zeros(count, np.int64)
        self._splits, self._merges, self._rebuckets, self._reversals = np.zeros((4, count), np.int64)
        self._every = max(1, steps // SERIES_POINTS)
        self._series = np.zeros((2, int(policy_of_row.max()) + 1, (steps - 1) // self._every + 2), np.int64)
        """Segments, and topics over a threshold: by how much more than at the point before."""

    def begin(self, step: int) -> None:
        """Drop the counts from before a step that all rows have reached."""
        self.account(np.arange(len(self._of)), np.full(len(self._of), step))
        self._first = step
        for counted in (self._total, self._splits, self._merges, self._rebuckets, self._reversals):
            counted[:] = 0
        self._most[:] = self._segments

    def account(self, rows: Ints, step: Ints) -> None:
        """Count the time of rows up to a step."""
        took = step - self._since[rows]
        self._since[rows] = step
        for total, status in zip(self._total, self._status, strict=True):
            total[rows] += took * status[rows]

    def set(self, rows: Ints, step: Ints, segments: Ints, is_over: Bools, waiting: Ints, cap: Ints) -> None:
        """Set the state of rows from a step on; `cap`: the most segments that the policy allows."""
        point = -(-step // self._every)
        np.add.at(self._series[0], (self._of[rows], point), segments - self._segments[rows])
        np.add.at(self._series[1], (self._of[rows], point), is_over.astype(np.int64) - self._over[rows])
        self._segments[rows], self._over[rows], self._waiting[rows] = segments, is_over, waiting
        self._capped[rows] = (segments >= cap) & (is_over | (waiting > 0))
        self._most[rows] = np.maximum(self._most[rows], segments)

    def acted(self, rows: Ints, is_split: Bools, is_reversal: Bools) -> None:
        """Count applied actions, one for each of some rows."""
        self._splits[rows] += is_split
        self._merges[rows] += ~is_split
        self._reversals[rows] += is_reversal

    def rebucketed(self, rows: Ints) -> None:
        """Count a rebucket for each of some rows."""
        self._rebuckets[rows] += 1

    @property
    def _status(self) -> tuple[Ints, Ints, Ints, Ints]:
        return self._segments, self._over, self._waiting, self._capped

    def outcomes(
        self, topics: Sequence[str], began_at: int, step_ms: int, acted: Ints, actions: Actions
    ) -> list[Outcome]:
        """Return the outcome of each policy; `acted`: the row of each action."""
        everything = np.arange(len(self._of))
        self.account(everything, np.full(len(everything), self._steps))
        by_policy = []
        for policy in range(int(self._of.max()) + 1):
            rows = np.flatnonzero(self._of == policy)
            rows = rows[np.argsort(self._topic[rows])]
            segments, over, waiting, capped = self._total[:, rows] * step_ms
            of_policy = np.flatnonzero(self._of[acted] == policy)
            of_policy = of_policy[np.lexsort((actions.topic[of_policy], actions.at[of_policy]))]
            points = np.cumsum(self._series[:, policy, :-1], axis=1).tolist()
            by_policy.append(
                Outcome(
                    topics=list(topics),
                    topic_ms=(self._steps - self._first) * step_ms,
                    splits=self._splits[rows],
                    merges=self._merges[rows],
                    rebuckets=self._rebuckets[rows],
                    reversals=self._reversals[rows],
                    sealed=self._splits[rows] + 2 * self._merges[rows] + self._rebuckets[rows],
                    segment_ms=segments,
                    over_ms=over,
                    waiting_ms=waiting,
                    capped_ms=capped,
                    most_segments=self._most[rows],
                    actions=actions.of(of_policy),
                    series=[
                        (began_at + index * self._every * step_ms, *point)
                        for index, point in enumerate(zip(*points, strict=True))
                    ],
                )
            )
        return by_policy
