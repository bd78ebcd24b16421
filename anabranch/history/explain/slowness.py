"""Slowness for people: the verdict in a sentence, and the figures of each slow segment.

Stage: for `anabranch explain` and the page of a topic; `decisions.autoscale.slowness` has the verdict.
"""

import math
from typing import Any

from anabranch.query.wording import duration, number_words
from decisions.autoscale.slowness import Slowness, SlowSegment, Verdict
from schemas.printable import printable

MOST_SLOW = 8


_HEADLINES: dict[Verdict, str] = {
    "hot-key": "one hot key: no split relieves it, its messages keep their order through one consumer",
    "consumers": "short of working consumers: more segments would not help",
    "segments": "short of segments: consumers or brokers could do more if the load were divided further",
    "not-slow": "not slow: no subscription is a minute or more behind on any segment",
}


def slowness_words(slowness: Slowness) -> list[str]:
    """Return the verdict as a headline, then a line of figures for each of the first `MOST_SLOW` segments."""
    if slowness.verdict in _HEADLINES:
        lines = [_HEADLINES[slowness.verdict]]
    elif slowness.age_ms is None:
        return ["the stats do not tell: no report on delivery is on record (a collector of Pulsar sends them)"]
    elif not slowness.slow and slowness.unreported == 0:
        lines = ["the stats do not tell: the segments of the report are gone"]
    elif not slowness.slow:
        lines = [f"the stats do not tell: {slowness.unreported} active segments are in no report that still counts"]
    else:
        lines = [
            "the stats do not tell: consumers are ready and no load is above its threshold, or loads are not known"
        ]
    lines[0] += f" (reported {duration(slowness.age_ms or 0)} ago)"
    lines += [_line(slow) for slow in slowness.slow[:MOST_SLOW]]
    if len(slowness.slow) > MOST_SLOW:
        lines.append(f"and {len(slowness.slow) - MOST_SLOW} more slow segments")
    if slowness.slow and slowness.unreported:
        lines.append(f"{slowness.unreported} active segments were not reported")
    return lines


def _line(slow: SlowSegment) -> str:
    seen, behind = slow.delivery, slow.delivery.behind_seconds
    if seen.backlog_age_seconds is not None:
        delay = f"the oldest {duration(behind * 1000)} old"
    elif math.isinf(behind):
        delay = "nothing delivered"
    else:
        delay = f"{duration(behind * 1000)} of delivery at {number_words(seen.msg_rate_out)} msg/s"
    consumers = f"{seen.ready_consumers} of {seen.consumers} consumers ready"
    parts = [f"{seen.backlog:,} messages behind ({delay})", consumers]
    if seen.blocked_consumers:
        parts.append(f"{seen.blocked_consumers} blocked on unacknowledged messages")
    if seen.unacked_messages:
        parts.append(f"{seen.unacked_messages:,} unacknowledged")
    if slow.idle_consumers:
        parts.append(f"{slow.idle_consumers} more consumers without a segment")
    if seen.waiting_publishers:
        parts.append(f"{seen.waiting_publishers} producers wait for exclusive access, which no split changes")
    parts.append("load not known" if slow.overload is None else f"load {slow.overload:.0%} of split")
    cause = {"hot-key": "hot key", "unknown": "cause unknown"}.get(slow.cause, slow.cause)
    return f"segment {slow.segment.segment_id}, {printable(seen.subscription)}: {', '.join(parts)}: {cause}"


def slowness_json(slowness: Slowness) -> dict[str, Any]:
    """Return the verdict and its figures, for scripts."""
    return {
        "verdict": slowness.verdict,
        "backlog": slowness.backlog,
        "unreportedSegments": slowness.unreported,
        "reportAgeMs": slowness.age_ms,
        "segments": [
            {
                "segment": slow.segment.segment_id,
                "cause": slow.cause,
                "overload": slow.overload,
                "idleConsumers": slow.idle_consumers,
                **slow.delivery.model_dump(by_alias=True, exclude_none=True),
            }
            for slow in slowness.slow
        ],
    }
