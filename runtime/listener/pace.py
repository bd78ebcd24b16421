"""Pace of refusals by network: whoever is refused at full speed waits, and costs nothing meanwhile.

Stage: under `anonymous`, for what an app refuses, and `protocol`, for what is refused before it is parsed.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

REFUSALS_PER_SECOND, REFUSALS_AT_ONCE = 20.0, 40
"""Of one network, while there are few."""
ALL_REFUSALS_PER_SECOND = 200.0
"""Of all networks, each of which has an equal part while they wait."""
MAX_WAIT_SECONDS = 20.0
_BURST_SECONDS = REFUSALS_AT_ONCE / REFUSALS_PER_SECOND
"""Refusals of so long may go at once: the more networks there are, the fewer that is."""


class Pace:
    """Instant at which the next refusal of each network may go."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._free_at: OrderedDict[str, float] = OrderedDict()
        """Less what may go at once; the network that was refused last at the end."""

    def wait(self, network: str) -> float:
        """Count a refusal, and return the seconds until it may go; 0 or less: now."""
        now = self._clock()
        while self._free_at and next(iter(self._free_at.values())) < now - MAX_WAIT_SECONDS:
            self._free_at.popitem(last=False)
        seconds = max(1 / REFUSALS_PER_SECOND, len(self._free_at) / ALL_REFUSALS_PER_SECOND)
        free_at = max(self._free_at.get(network, float("-inf")), now - _BURST_SECONDS) + seconds
        # Never further ahead than anybody waits, so that who stops is soon free again.
        self._free_at[network] = min(free_at, now + MAX_WAIT_SECONDS)
        self._free_at.move_to_end(network)
        return min(free_at - now, MAX_WAIT_SECONDS)
