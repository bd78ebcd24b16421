"""Coverage of the cluster: what the collector sees and what it misses, for its status.

Stage: under `collector`, for `anabranch.collectors.status`.
"""

import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from anabranch.collectors.announced import Topic
from anabranch.collectors.pulsar.brokers import FollowedBroker
from anabranch.collectors.pulsar.sweep import Sweep
from anabranch.collectors.status import BrokerStatus

MAX_UNSEEN = 20
"""Segments that are named."""


class SegmentCoverage(NamedTuple):
    """Active segments of all topics."""

    known: int
    seen: int
    """Those whose rates a broker has said lately."""
    unseen: list[str]
    """Some of the others, each `topic/id`."""


def seen_segments(
    brokers: Iterable[FollowedBroker], topics: Mapping[str, Topic], slack: float, now: float
) -> SegmentCoverage:
    """Count the active segments, and those seen at `now` within two computations and `slack` seconds."""
    lately = {
        (load.topic, load.segment)
        for broker in brokers
        if broker.load is not None
        and now - broker.read_at < 2 * broker.refresh.period + slack
        and not broker.is_stuck(now)
        for load in broker.load.loads
    }
    total = seen = 0
    unseen: list[str] = []
    for name, topic in topics.items():
        for id, segment in topic.layout.segments.items():
            if segment.state == "ACTIVE":
                total += 1
                if (name, id) in lately:
                    seen += 1
                elif len(unseen) < MAX_UNSEEN:
                    unseen.append(f"{name}/{id}")
    return SegmentCoverage(total, seen, unseen)


def oldest_age(sweeps: Iterable[Sweep], used: bool = False) -> float:
    """Return the longest time, seconds, since a topic (with `used`, in use) was last read or became known."""
    return max((sweep.oldest_seconds(time.monotonic(), used) for sweep in sweeps), default=0.0)


def broker_status(broker: FollowedBroker, now: float) -> BrokerStatus:
    """One broker, as it is seen at `now`."""
    load = broker.load
    return BrokerStatus(
        broker=broker.name,
        answers=broker.trouble is None and load is not None,
        trouble=broker.trouble,
        segments=len(load.loads) if load else 0,
        refused=load.refused if load else 0,
        refresh_seconds=broker.refresh.period,
        load_age_seconds=now - broker.read_at if load else None,
        lag_seconds=broker.refresh.lag,
        answer_seconds=broker.read_seconds if load else None,
        unchanged_seconds=broker.unchanged_seconds(now) if load else None,
        stuck=broker.is_stuck(now),
    )
