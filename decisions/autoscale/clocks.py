"""Clocks of auto split/merge: effects of events on a topic's cooldowns, loads, failures and decision.

Stage: between evaluations. `decide` reads these values and changes none of them; what keeps them over time (`engine`,
the model check) changes them here. What is committed sets a clock, never what was tried. All instants are milliseconds;
`now` is the batch's time, and no clock is set later than that.

    a layout change       cooldowns_after_layout (also of manual operations, PIP-483 "Manual operations and
                          cooldown"), is_done    (pasts and kept merge depths: `decisions.autoscale.past`)
    samples               instants_of_samples, claims_of_samples, are_stale_samples, then seen_after_sample_all,
                          modified_after_sample_all, returned_after_sample_all, cold_since_after_sample_all
    changed thresholds    cold_since_after_thresholds_all
    an outcome            open_after_outcome, failures_after_outcome, failures_after_absence
    a clock that is set back   not_after

The rules of samples are over columns.
"""

from collections.abc import Container
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from decisions.topic.layout import SegmentLayout
from decisions.topic.lineage import made_by
from schemas.kafka.messages import OutcomeStatus

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

NEVER = -1
"""In columns: an instant that is not set."""


class Cooldowns(NamedTuple):
    """Last split, merge and rebucket of a topic; None: never (PIP-483 "Pass 1" and "Pass 2")."""

    last_split_at: int | None = None
    last_merge_at: int | None = None
    last_rebucket_at: int | None = None


@dataclass(frozen=True, slots=True)
class OpenDecision:
    """Decision of a topic whose end is not known yet (PIP-483 "Pass 1", the in-flight-operation guard)."""

    decision_id: str
    epoch: int
    """Layout epoch that was decided on."""
    since: int
    """Batch time of the decision."""
    action: str
    """`split`, `merge` or `rebucket`."""
    applied: bool = False
    """The executor has said so; it stays open until the layout shows it too."""
    segments: tuple[int, ...] = ()
    """Of the decision; empty where an older release kept it."""


class Failures(NamedTuple):
    """Decisions of a topic that ended without effect since the last one that was applied (guard
    `retryBackoffSeconds`)."""

    in_a_row: int = 0
    failed_at: int | None = None
    """When the last one ended."""
    action: str | None = None
    """What the last one wanted: only that action is backed off from. None: every action is."""


# A layout change


def cooldowns_after_layout(
    cooldowns: Cooldowns, known_ids: Container[int], layout: SegmentLayout, now: int
) -> Cooldowns:
    """Return the cooldowns after a layout change.

    Each segment that is not among the `known_ids` sets the clock of the operation that made it to its creation. That is
    read off the layout and not off our own decisions, so a manual operation sets the same clock as an automatic one
    (PIP-483 "Manual operations and cooldown"). A clock never goes back (PIP-483 "Pass 1" and "Pass 2"). A creation
    before 1970 counts as of 1970.
    """
    last = {"split": cooldowns.last_split_at, "merge": cooldowns.last_merge_at, "rebucket": cooldowns.last_rebucket_at}
    for number, segment in layout.segments.items():
        action = made_by(segment, layout.segments) if segment.parent_ids and number not in known_ids else None
        if action is not None:
            created_at = max(0, min(segment.created_at_ms, now))
            last[action] = max(last[action] or created_at, created_at)
    return Cooldowns(last["split"], last["merge"], last["rebucket"])


def is_done(decision: OpenDecision, epoch: int, active: Container[int]) -> bool:
    """Tell if a layout of `epoch` with these active segments closes an open decision.

    It does if the decision was applied and the layout shows it (PIP-483 "Pass 1", the in-flight-operation guard). Of
    several decisions on one layout the first that is applied makes a newer one, so the decision's own segments are what
    counts.
    """
    return decision.applied and epoch > decision.epoch and not any(segment in active for segment in decision.segments)


# A sample


MAX_CLOCK_SKEW_MS = 5_000
"""How far the clock of a reporter is believed against Kafka's. What is further off is a wrong clock, or was long under
way, and Kafka's counts."""
MAX_DELIVERY_MS = 60_000
"""A sample that was longer under way than this, by its reporter's clock, does not count while another one reports."""


def instants_of_samples(sampled_at: Ints, kafka_at: Ints, now: int) -> Ints:
    """Return the instants at which samples count as measured.

    That is the reporter's instant, but within seconds of when Kafka took it (`kafka_at`; `NEVER`: not known) and no
    later than now.
    """
    is_known = kafka_at != NEVER
    least = np.where(is_known, kafka_at - MAX_CLOCK_SKEW_MS, sampled_at)
    most = np.minimum(np.where(is_known, kafka_at + MAX_CLOCK_SKEW_MS, now), now)
    instants: Ints = np.minimum(np.maximum(sampled_at, least), most)
    return instants


def claims_of_samples(sampled_at: Ints, kafka_at: Ints, now: int) -> Ints:
    """Return the instants up to which no older samples of the same reporters count.

    That is the instant that the reporter gave, but at most seconds after Kafka took the sample, so that a reporter
    whose clock is set right is heard again.
    """
    claims: Ints = np.minimum(sampled_at, np.where(kafka_at == NEVER, now, kafka_at) + MAX_CLOCK_SKEW_MS)
    return claims


def are_stale_samples(
    sampled_at: Ints, kafka_at: Ints, now: int, is_same_reporter: Bools, claimed: Ints, seen_at: Ints
) -> Bools:
    """Mark samples that are repeated or late, after ones with claims `claimed`, seen at `seen_at`.

    Reporters are told apart because their clocks are. Of the same reporter an older sample is stale; of another one a
    sample is stale if it was under way for long while the first reporter has spoken.
    """
    took_at = np.where(kafka_at == NEVER, now, kafka_at)
    is_late = (took_at - sampled_at > MAX_DELIVERY_MS) & (took_at - seen_at < MAX_DELIVERY_MS)
    return np.where(is_same_reporter, sampled_at <= claimed, is_late)


def seen_after_sample_all(seen_at: Ints, instants: Ints) -> Ints:
    """Return when loads were last seen, in samples significant or not (guard `maxLoadAgeSeconds`)."""
    return np.maximum(seen_at, instants)


def modified_after_sample_all(modified_at: Ints, instants: Ints) -> Ints:
    """Return when load records were modified, after significant samples (PIP-483 "SegmentLoadStats")."""
    return np.maximum(modified_at, instants)


def cold_since_after_sample_all(cold_since: Ints, is_cold: Bools, instants: Ints) -> Ints:
    """Return since when segments are cold, after significant samples.

    That is the instant of the sample that fell below all merge thresholds, kept while those that follow are below too
    (guard `coldSinceThreshold`; PIP-483 "Pass 2").
    """
    return np.where(is_cold, np.where(cold_since == NEVER, instants, cold_since), NEVER)


def returned_after_sample_all(
    returned_after: Ints, has_record: Bools, cold_since: Ints, is_cold: Bools, instants: Ints
) -> Ints:
    """Return the pauses after which loads came back, by the samples given (guard `returnsWithinSeconds`).

    `NEVER`: it never fell. 0: it fell, and has not come back. When it comes back: the time for which it was cold, or
    half of the pause before if that is longer, so that one short pause does not hide it. Samples are significant ones.
    """
    never_fell, was_cold = returned_after == NEVER, cold_since != NEVER
    falls = is_cold & never_fell & has_record & ~was_cold
    returns = ~is_cold & was_cold & ~never_fell
    pause = np.maximum(instants - cold_since, returned_after // 2)
    return np.where(falls, 0, np.where(returns, pause, returned_after))


# Changed thresholds


def cold_since_after_thresholds_all(cold_since: Ints, is_cold: Bools, modified_at: Ints) -> Ints:
    """Return since when segments are cold, after the merge thresholds of their topics have changed.

    What is cold under the new ones counts as cold from its record on, because how it stood to them before is not known
    (guard `coldSinceThreshold`; PIP-483 "Pass 2").
    """
    return np.where(is_cold, np.maximum(cold_since, modified_at), NEVER)


# An outcome


def open_after_outcome(
    decision: OpenDecision, status: OutcomeStatus, epoch: int | None, active: Container[int] = ()
) -> OpenDecision | None:
    """Return the open decision after its outcome; None when it is closed.

    An applied one stays open until a layout shows it (`epoch` and `active` are of the newest that is known); any other
    end closes it (PIP-483 "Pass 1", the in-flight-operation guard).
    """
    if status != "applied":
        return None
    applied = replace(decision, applied=True)
    return None if is_done(applied, -1 if epoch is None else epoch, active) else applied


def failures_after_outcome(failures: Failures, action: str, status: OutcomeStatus, now: int) -> Failures:
    """Return the failures after a decision's outcome (guard `retryBackoffSeconds`).

    An applied decision ends them; a failed or rejected one is one more. An observed or superseded one does not count:
    the topic had changed, so the next decision is another one (but see `failures_after_absence`).
    """
    if status == "applied":
        return Failures()
    return failures if status in ("observed", "superseded") else Failures(failures.in_a_row + 1, now, action)


def failures_after_absence(failures: Failures, decided_at: int, now: int) -> Failures:
    """Return the failures after a decision on an absent topic (guard `retryBackoffSeconds`).

    No action can succeed on it, so every action is backed off from. The decisions of one evaluation, which all end so,
    count as one failure. `decided_at` is the batch time of the decision.
    """
    if failures.failed_at is not None and decided_at <= failures.failed_at:
        return failures
    return Failures(failures.in_a_row + 1, now, None)


# The job's clock is set back


def not_after(instant: int | None, now: int) -> int | None:
    """Return an instant of a clock, moved to `now` if the job's clock was set back behind it.

    A wait then ends late by at most its own length, however far the clock was set back.
    """
    return None if instant is None else min(instant, now)
