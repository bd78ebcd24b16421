"""One hot key: load that no split relieves, found early and tried again rarely (guard `hotKeySplits`).

Stage: in the split pass of `decisions.autoscale.decide`. A split halves a range and relieves a hot range that is wide
enough. The load of one key nearly all stays in one half, split after split. So a segment is taken to hold one hot key
if it is above a threshold and still carries most of the load of the range that it was cut out of, many halvings ago:
more segments cannot help. Loads are compared at one instant, not with those measured before a split.

Hashes are inclusive ranges; instants are milliseconds.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pydantic.alias_generators import to_camel

from decisions.autoscale.policy import Policy
from decisions.topic.segment import Segment

HASHES = 65_536
KEPT = 0.75
"""Part of a range's load that one piece of it keeps when splits bring no relief."""
NARROW = 16
"""Hashes: a wider segment that is only slightly too hot is split on, for the key alone may be below the threshold."""
NEGLIGIBLE = 0.2
"""Times the threshold: with less than this around a key, what was split in search of it is given back; with more, the
key stays isolated, for its neighbours are below their thresholds then."""
GROWN = 2.0
"""A key that has grown by more than this is another one: splits are tried again."""
MAX_RETRY_MS = 7 * 86_400_000
MAX_TRIES = 16


class HotKey(NamedTuple):
    """Record of one hot key."""

    start: int
    """About where it is: the range of the segment that was left with it."""
    end: int
    within_start: int
    """The range that was split in search of it and is given back; the key's own where the key stays isolated."""
    within_end: int
    overload: float
    """Times the threshold."""
    found_at: int
    tries: int = 1
    """How often it was found; the pause doubles each time."""


_WIRE_NAMES = tuple(map(to_camel, HotKey._fields))


def hot_key_fields(key: HotKey) -> dict[str, object]:
    """Return a hot key by its names on the wire."""
    return dict(zip(_WIRE_NAMES, key, strict=True))


def retry_at(key: HotKey, policy: Policy) -> int:
    """Return when splits for the key are tried again."""
    return key.found_at + min(policy.hot_key_retry_ms << min(max(key.tries - 1, 0), MAX_TRIES), MAX_RETRY_MS)


def key_in(keys: Sequence[HotKey], segment: Segment, overload: float, policy: Policy, now: int) -> HotKey | None:
    """Return the known hot key for which a segment is not split, or None."""
    for key in keys:
        holds = segment.start <= key.start and key.end <= segment.end
        if holds and _is_inside(segment, key) and overload <= key.overload * GROWN and now < retry_at(key, policy):
            return key
    return None


def count_halvings(keys: Sequence[HotKey], segment: Segment, overload: float, policy: Policy, now: int) -> int:
    """Return how many halvings without relief `find_key` looks back over; 0: it is not called.

    `hotKeySplits`, and half as many for each time that a key was found there. 0 for a segment that a known key holds,
    and for one with exactly the range of a key: that is split once more before the key is found again.
    """
    splits = policy.hot_key_splits
    for key in keys:
        if segment.start <= key.end and key.start <= segment.end:
            is_known = key_in((key,), segment, overload, policy, now) is not None
            if is_known or (segment.start, segment.end) == (key.start, key.end):
                return 0
            if _is_inside(segment, key) and overload <= key.overload * GROWN:
                splits = min(splits, max(policy.hot_key_splits >> key.tries, 1))
    return splits


def _is_inside(segment: Segment, key: HotKey) -> bool:
    """Tell if a segment, not wider than the isolated key's, is a piece of the range given back."""
    return key.within_start <= segment.start and segment.end <= key.within_end


def is_within(key: HotKey, left: Segment, right: Segment) -> bool:
    """Tell if two neighbours are pieces of a range that was split in search of a key."""
    return key.within_start <= left.start and right.end <= key.within_end


def find_key(
    index: int, active: Sequence[Segment], rates: Sequence[float | None], overload: float, splits: int, now: int
) -> HotKey | None:
    """Return the hot key of a segment above its threshold if splits bring it no relief, else None.

    `active` in the order of their ranges, `rates` what each carries of the rate that is too high (None: not known);
    `splits` halvings are looked back over. None also when the range has not been halved so often, or something of it is
    not known.
    """
    segment, own = active[index], rates[index]
    if overload * KEPT <= 1.0 and segment.width > NARROW:
        return None
    start, width = segment.start, segment.width
    for _ in range(splits):
        start -= width if (start // width) % 2 else 0
        width *= 2
    end = start + width - 1
    if own is None or start < 0 or width > HASHES or end >= HASHES:
        return None
    total = 0.0
    for other, rate in zip(active, rates, strict=True):
        common = min(other.end, end) - max(other.start, start) + 1
        if common <= 0:
            continue
        if rate is None:
            return None
        total += rate * common / other.width
        if own < KEPT * total:
            # It only grows, and most segments are found to be no hot key after a few of the others.
            return None
    if overload * (total - own) > NEGLIGIBLE * own:
        start, end = segment.start, segment.end
    return HotKey(segment.start, segment.end, start, end, overload, now)


def remembered_keys(
    keys: Sequence[HotKey], new_keys: Mapping[int, HotKey], policy: Policy, now: int
) -> tuple[HotKey, ...]:
    """Return the known keys after an evaluation that found `new_keys`.

    A key that was found again pauses for twice as long. A key that was not found for as long as its pause is forgotten.
    """
    new = list(new_keys.values())
    unchanged = []
    for key in keys:
        again = [
            index for index, candidate in enumerate(new) if candidate.start <= key.end and key.start <= candidate.end
        ]
        for index in again:
            candidate = new[index]
            narrow = key if candidate.start <= key.start and key.end <= candidate.end else candidate
            tries = min(max(candidate.tries, key.tries + 1), MAX_TRIES)
            new[index] = candidate._replace(start=narrow.start, end=narrow.end, tries=tries)
        retry = retry_at(key, policy)
        if not again and now < retry + (retry - key.found_at):
            unchanged.append(key)
    return (*unchanged, *new)
