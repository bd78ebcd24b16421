"""Delivery: which segments are slow by the brokers' loads, reported when that changes and while it lasts.

Beside `loads`; needs no call of its own. A topic that keeps up costs one record an hour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from collectors.announcements import Record, delivery_record
from collectors.pulsar.brokers import Brokers
from collectors.said import Said
from schemas.delivery import MAX_SLOW_SEGMENTS, SLOW_SECONDS, SegmentDelivery

SLOW_REPEAT_SECONDS, CLEAR_REPEAT_SECONDS = 60.0, 3_600.0
"""How often a report is repeated, with slow segments and without; `decisions.autoscale.slowness` believes it longer."""


@dataclass
class _Reported:
    """What was reported of a topic last."""

    at: float = float("-inf")
    figures: tuple[int, frozenset[int]] = (-1, frozenset())
    """Active segments that were read, and the slow ones among them."""
    behind_since: dict[int, float] = field(default_factory=dict)
    """By segment, since when it has been behind without a pause."""


class DeliveryReports:
    """Reports on the topics that `said` knows, through `announce`."""

    def __init__(self, brokers: Brokers, said: Said, announce: Callable[[list[Record]], None]) -> None:
        self._brokers, self._said, self._announce = brokers, said, announce
        self._topics: dict[str, _Reported] = {}

    def take_load(self, topics: Iterable[str], now: float, now_ms: int) -> None:
        """Report on topics of which a broker's load has just come, as far as a report is due."""
        for name in set(topics):
            if name in self._said.topics:
                self._report(name, self._topics.setdefault(name, _Reported()), now, now_ms)
            else:
                self._topics.pop(name, None)

    def _report(self, name: str, reported: _Reported, now: float, now_ms: int) -> None:
        layout = self._said.topics[name].layout
        active = {id for id, segment in layout.segments.items() if segment.state == "ACTIVE"}
        read: set[int] = set()
        behind: dict[int, SegmentDelivery] = {}
        for broker in self._brokers.known.values():
            if broker.load is None:
                continue
            read |= active.intersection(broker.load.segments.get(name, ()))
            behind |= {one.id: one for one in broker.load.behind.get(name, ()) if one.id in active}
        reported.behind_since = {id: reported.behind_since.get(id, now) for id in behind}
        # An age was measured by the broker. An estimate has to last: a moment without delivery is no backlog.
        slow = [
            one for id, one in behind.items()
            if one.backlog_age_seconds is not None or now - reported.behind_since[id] >= SLOW_SECONDS
        ]  # fmt: skip
        figures = len(read), frozenset(one.id for one in slow)
        pause = SLOW_REPEAT_SECONDS if slow else CLEAR_REPEAT_SECONDS
        if figures == reported.figures and now - reported.at < pause:
            return
        reported.at, reported.figures = now, figures
        slow.sort(key=lambda one: (-one.backlog, one.id))
        self._announce([delivery_record(name, len(read), slow[:MAX_SLOW_SEGMENTS], now_ms, self._said.sender)])
