"""Rules of `decisions.autoscale.clocks` for one sample, spelled plainly; tests hold the columns to them.

None: no instant.
"""

from __future__ import annotations

from decisions.autoscale import clocks


def instant_of_sample(sampled_at: int, kafka_at: int | None, now: int) -> int:
    if kafka_at is None:
        return min(sampled_at, now)
    return min(max(sampled_at, kafka_at - clocks.MAX_CLOCK_SKEW_MS), kafka_at + clocks.MAX_CLOCK_SKEW_MS, now)


def claim_of_sample(sampled_at: int, kafka_at: int | None, now: int) -> int:
    return min(sampled_at, (now if kafka_at is None else kafka_at) + clocks.MAX_CLOCK_SKEW_MS)


def is_stale_sample(
    sampled_at: int, kafka_at: int | None, now: int, is_same_reporter: bool, claimed: int, seen_at: int
) -> bool:
    if is_same_reporter:
        return sampled_at <= claimed
    took_at = now if kafka_at is None else kafka_at
    return took_at - sampled_at > clocks.MAX_DELIVERY_MS and took_at - seen_at < clocks.MAX_DELIVERY_MS


def seen_after_sample(seen_at: int | None, instant: int) -> int:
    return instant if seen_at is None else max(seen_at, instant)


def modified_after_sample(modified_at: int | None, instant: int) -> int:
    return instant if modified_at is None else max(modified_at, instant)


def cold_since_after_thresholds(cold_since: int | None, is_cold: bool, modified_at: int) -> int | None:
    if not is_cold:
        return None
    return modified_at if cold_since is None else max(cold_since, modified_at)


def cold_since_after_sample(cold_since: int | None, is_cold: bool, instant: int) -> int | None:
    if not is_cold:
        return None
    return instant if cold_since is None else cold_since


def returned_after_sample(
    returned_after: int | None, has_record: bool, cold_since: int | None, is_cold: bool, instant: int
) -> int | None:
    if is_cold:
        return 0 if returned_after is None and has_record and cold_since is None else returned_after
    if cold_since is None or returned_after is None:
        return returned_after
    return max(instant - cold_since, returned_after // 2)
