"""The clocks of auto split/merge: what an event does to a topic's cooldowns, loads, failures and open decision.

Stage: between evaluations. `decide` reads these values and changes none of them; what keeps them over time (`engine`,
the model check) changes them here. What is committed sets a clock, never what was tried. All instants are milliseconds;
`now` is the batch's time, and no clock is set later than that.

    a layout change       cooldowns_after_layout, open_after_layout    (merge depth: `decisions.topic.lineage`)
    a sample              seen_after_sample, modified_after_sample, cold_since_after_sample
    changed thresholds    cold_since_after_thresholds
    an outcome            open_after_outcome, failures_after_outcome

The rules of samples come twice: for one, and for columns of them (`…_all`), equal by a property test.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from decisions.topic.layout import SegmentLayout
from decisions.topic.lineage import made_by
from schemas.messages import OutcomeStatus

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

NEVER = -1
"""In columns: an instant that is not set."""


class Cooldowns(NamedTuple):
    """When a topic was last split and last merged; None: never (PIP-483 "Pass 1" and "Pass 2")."""

    last_split_at: int | None = None
    last_merge_at: int | None = None


@dataclass(frozen=True, slots=True)
class OpenDecision:
    """The decision of a topic whose end is not known yet (PIP-483 "Pass 1", the in-flight-operation guard)."""

    decision_id: str
    epoch: int
    """Layout epoch that was decided on."""
    since: int
    """Batch time of the decision."""
    action: str
    """`split` or `merge`."""
    applied: bool = False
    """The executor has said so; it stays open until the layout shows it too."""


class Failures(NamedTuple):
    """Decisions of a topic that ended without effect since the last one that was applied (guard
    `retryBackoffSeconds`)."""

    in_a_row: int = 0
    failed_at: int | None = None
    """When the last one ended."""
    action: str | None = None
    """What the last one wanted: only that action is backed off from."""


# A layout change


def cooldowns_after_layout(cooldowns: Cooldowns, known: Container[int], layout: SegmentLayout, now: int) -> Cooldowns:
    """What a layout change does to the cooldowns: each segment that is not among the `known` sets a clock to its
    creation.

    It is read off the layout and not off our own decisions, so a manual operation sets the same clock as an automatic
    one (PIP-483 "Manual operations and cooldown"). A clock never goes back (PIP-483 "Pass 1" and "Pass 2").
    """
    last = {"split": cooldowns.last_split_at, "merge": cooldowns.last_merge_at}
    for number, segment in layout.segments.items():
        action = made_by(segment) if segment.parent_ids and number not in known else None
        if action is not None:
            at = min(segment.created_at_ms, now)
            last[action] = max(last[action] or at, at)
    return Cooldowns(last["split"], last["merge"])


def open_after_layout(decision: OpenDecision | None, epoch: int) -> OpenDecision | None:
    """The open decision after a layout of `epoch` has come: closed when it was applied and this layout shows it
    (PIP-483 "Pass 1", the in-flight-operation guard)."""
    return None if decision is not None and decision.applied and epoch > decision.epoch else decision


# A sample


def seen_after_sample(seen_at: int | None, at: int) -> int:
    """When the load of a segment was last seen, after a sample of the instant `at` (guard `maxLoadAgeSeconds`).

    Every sample counts that is newer than the last one, significant or not.
    """
    return at if seen_at is None else max(seen_at, at)


def seen_after_sample_all(seen_at: Ints, at: Ints) -> Ints:
    """`seen_after_sample` over columns."""
    return np.maximum(seen_at, at)


def modified_after_sample(modified_at: int | None, at: int) -> int:
    """When the load record of a segment was last modified, after a significant sample of the instant `at` (PIP-483
    "SegmentLoadStats": windows derive from the modified time)."""
    return at if modified_at is None else max(modified_at, at)


def modified_after_sample_all(modified_at: Ints, at: Ints) -> Ints:
    """`modified_after_sample` over columns."""
    return np.maximum(modified_at, at)


def cold_since_after_sample(cold_since: int | None, is_cold: bool, at: int) -> int | None:
    """Cold since: the instant of the significant sample that fell below all merge thresholds, kept while those that
    follow are below too (guard `coldSinceThreshold`; PIP-483 "Pass 2")."""
    if not is_cold:
        return None
    return at if cold_since is None else cold_since


def cold_since_after_sample_all(cold_since: Ints, is_cold: Bools, at: Ints) -> Ints:
    """`cold_since_after_sample` over columns."""
    return np.where(is_cold, np.where(cold_since == NEVER, at, cold_since), NEVER)


# Changed thresholds


def cold_since_after_thresholds(cold_since: int | None, is_cold: bool, modified_at: int) -> int | None:
    """Cold since, after the merge thresholds of a topic have changed: what is cold under the new ones counts as cold
    from its record on, for how it stood to them before is not known (guard `coldSinceThreshold`; PIP-483 "Pass 2")."""
    if not is_cold:
        return None
    return modified_at if cold_since is None else max(cold_since, modified_at)


def cold_since_after_thresholds_all(cold_since: Ints, is_cold: Bools, modified_at: Ints) -> Ints:
    """`cold_since_after_thresholds` over columns."""
    return np.where(is_cold, np.maximum(cold_since, modified_at), NEVER)


# An outcome


def open_after_outcome(decision: OpenDecision, status: OutcomeStatus, epoch: int | None) -> OpenDecision | None:
    """The open decision after its outcome: an applied one stays open until a layout newer than the one that it was
    taken on is here (`epoch`: the newest that is known); any other end closes it (PIP-483 "Pass 1", the
    in-flight-operation guard)."""
    if status != "applied":
        return None
    return open_after_layout(replace(decision, applied=True), -1 if epoch is None else epoch)


def failures_after_outcome(failures: Failures, action: str, status: OutcomeStatus, now: int) -> Failures:
    """The failures after a decision's outcome: an applied one ends them, any other end is one more (guard
    `retryBackoffSeconds`)."""
    if status == "applied":
        return Failures()
    return Failures(failures.in_a_row + 1, now, action)
