"""Messages a second and consumer lag of each segment, as the collector of Kafka has read them last.

Stage: beside `keyspace`. The lake has no lags: the collector writes them to a file of its folder for people to see.
"""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.text import Text

from anabranch.history.words import amount

DIM = "grey62"
MAX_AGE_SECONDS = 30.0
"""The collector writes its file every two seconds: an older one is of one that does not run."""


class SegmentLoad(NamedTuple):
    """Load of one segment; None: unknown."""

    segment: int
    msg_rate_in: float | None
    lag: int | None
    """Of the subscription that is furthest behind."""


def read_loads(file: Path) -> dict[str, list[SegmentLoad]]:
    """Return the loads in the collector's file by topic; none if there is no such file, or an old one."""
    loads: dict[str, list[SegmentLoad]] = {}
    try:
        stored = json.loads(file.read_bytes())
        if time.time() - stored["at"] / 1_000 > MAX_AGE_SECONDS:
            return {}
        for entry in stored["segments"]:
            lags = [lag for lag in entry["lag"].values() if lag is not None]
            load = SegmentLoad(entry["segment"], entry["msgRateIn"], max(lags, default=None))
            loads.setdefault(entry["topic"], []).append(load)
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return loads


def loads_text(loads: Sequence[SegmentLoad], room: int) -> Text:
    """Return a topic's messages a second and lag, then those of as many segments as fit into `room` cells."""
    rates = [load.msg_rate_in for load in loads if load.msg_rate_in is not None]
    lags = [load.lag for load in loads if load.lag is not None]
    rate, lag = amount(sum(rates)) if rates else "?", amount(sum(lags)) if lags else "?"
    text = Text(f"{rate} msg/s lag {lag}", DIM)
    for load in sorted(loads, key=lambda load: -(load.msg_rate_in or 0.0)):
        rate = "?" if load.msg_rate_in is None else amount(load.msg_rate_in)
        part = f"  {load.segment}: {rate}/s lag {'?' if load.lag is None else amount(load.lag)}"
        if text.cell_len + len(part) > room:
            break
        text.append(part, DIM)
    return text


Loads = Mapping[str, Sequence[SegmentLoad]]
"""By topic."""
