"""Keys of a topic over the hash space, and the number of messages that each gets as the demand moves.

Stage: under `topic`. A key stands for all hashes from its own up to the next key's, so the load of a segment is that of
the demand over its range, as near as the keys are dense. Pure.
"""

from collections.abc import Iterator

import numpy as np

from anabranch.local.demand import KEYS, TopicDemand
from anabranch.local.story import HOT_HASH
from decisions.topic.hashing import key_hash

KEY_COUNT = 200
MAX_STEP_SECONDS = 1.0
"""Demand of a longer pause is not made up for."""


def make_keys(count: int = KEY_COUNT) -> list[bytes]:
    """Return keys in the order of their hashes; one has the hash of the story's hot key."""
    keys = {key_hash(key): key for key in (b"customer-%d" % number for number in range(count))}
    number = count
    while HOT_HASH not in keys:
        key = b"customer-%d" % number
        if key_hash(key) == HOT_HASH:
            keys[HOT_HASH] = key
        number += 1
    return [key for _, key in sorted(keys.items())]


class DemandByKey:
    """Messages that are due, key by key, of one topic's demand."""

    def __init__(self, demand: TopicDemand, keys: list[bytes], began_at: float) -> None:
        """`began_at`: seconds since 1970."""
        self._demand, self._keys, self._at = demand, keys, began_at
        hashes = [key_hash(key) for key in keys]
        # The first key stands for the hashes before it, too.
        self._starts = np.array([0, *hashes[1:]])
        self._ends = np.array([*(hash - 1 for hash in hashes[1:]), KEYS - 1])
        self._due = np.zeros(len(keys))

    def due(self, now: float) -> Iterator[bytes]:
        """Yield a key for each message that is due at `now`, seconds since 1970."""
        seconds = min(max(now - self._at, 0.0), MAX_STEP_SECONDS)
        self._at = now
        self._due += self._demand.momentary_rates(now, self._starts, self._ends) * seconds
        whole = np.floor(self._due)
        self._due -= whole
        for index in np.flatnonzero(whole).tolist():
            for _ in range(int(whole[index])):
                yield self._keys[index]
