"""Slowness for people: the verdict in a sentence, and the figures of each slow segment.

Stage: above `decisions.autoscale.slowness`, under `anabranch explain` and the page.
"""

from __future__ import annotations

import math
from typing import Any

from anabranch.query.wording import duration
from decisions.autoscale.slowness import Slowness, SlowSegment, Verdict
from schemas.printable import printable

MOST_SLOW = 8


_HEADLINES: dict[Verdict, str] = {
    "hot-key": "one hot key: no split relieves it, its messages keep their order through one consumer",
    "consumers": "short of working consumers: more segments would not help",
    "segments": "short of segments: consumers or brokers could do more if the load were divided further",
    "not-slow": "not slow: no subscription is a minute or more behind on any segment",
}


def slowness_words(found: Slowness) -> list[str]:
    """Return the verdict as a headline, then a line of figures for each of the first `MOST_SLOW` segments."""
    if found.verdict in _HEADLINES:
        lines = [_HEADLINES[found.verdict]]
    elif found.age_ms is None:
        return ["the stats do not tell: no report on delivery is on record (a collector of Pulsar sends them)"]
    elif not found.slow and found.unreported == 0:
        lines = ["the stats do not tell: the segments of the report are gone"]
    elif not found.slow:
        lines = [f"the stats do not tell: {found.unreported} active segments are in no report that still counts"]
    else:
        lines = [
            "the stats do not tell: consumers are ready and no load is above its threshold, or loads are not known"
        ]
    lines[0] += f" (reported {duration(found.age_ms or 0)} ago)"
    lines += [_line(one) for one in found.slow[:MOST_SLOW]]
    if len(found.slow) > MOST_SLOW:
        lines.append(f"and {len(found.slow) - MOST_SLOW} more slow segments")
    if found.slow and found.unreported:
        lines.append(f"{found.unreported} active segments were not reported")
    return lines


def _line(one: SlowSegment) -> str:
    seen, behind = one.delivery, one.delivery.behind_seconds
    if seen.backlog_age_seconds is not None:
        told = f"the oldest {duration(behind * 1000)} old"
    elif math.isinf(behind):
        told = "nothing delivered"
    else:
        told = f"{duration(behind * 1000)} of delivery at {seen.msg_rate_out:,.4g} msg/s"
    consumers = f"{seen.ready_consumers} of {seen.consumers} consumers ready"
    parts = [f"{seen.backlog:,} messages behind ({told})", consumers]
    if seen.blocked_consumers:
        parts.append(f"{seen.blocked_consumers} blocked on unacknowledged messages")
    if seen.unacked_messages:
        parts.append(f"{seen.unacked_messages:,} unacknowledged")
    if one.idle_consumers:
        parts.append(f"{one.idle_consumers} more consumers without a segment")
    if seen.waiting_publishers:
        parts.append(f"{seen.waiting_publishers} producers wait for exclusive access, which no split changes")
    parts.append("load not known" if one.overload is None else f"load {one.overload:.0%} of split")
    cause = {"hot-key": "hot key", "unknown": "cause unknown"}.get(one.cause, one.cause)
    return f"segment {one.segment.segment_id}, {printable(seen.subscription)}: {', '.join(parts)}: {cause}"


def slowness_json(found: Slowness) -> dict[str, Any]:
    """Return the verdict and its figures, for scripts."""
    return {
        "verdict": found.verdict,
        "backlog": found.backlog,
        "unreportedSegments": found.unreported,
        "reportAgeMs": found.age_ms,
        "segments": [
            {
                "segment": one.segment.segment_id,
                "cause": one.cause,
                "overload": one.overload,
                "idleConsumers": one.idle_consumers,
                **one.delivery.model_dump(by_alias=True, exclude_none=True),
            }
            for one in found.slow
        ],
    }
