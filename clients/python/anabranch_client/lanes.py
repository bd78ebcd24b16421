"""Routing of a producer's messages, in order per key across splits and merges.

Pure: no Kafka, no clock, no threads.

Theory. Each segment has a lane, which is open at first: messages are sent, and any number is in flight. When
Kafka refuses one like a sealed segment does, or a newer layout no longer has the segment, the lane is blocked: further
messages of its hashes wait behind it, in no other lane. Once nothing is in flight, its outcome is final: refused
messages and waiting ones are sorted by their numbers, and the lane is replaced by those of the layout. There they may
be refused again, and wait again: any number of seals in a row is the same step.

Order per key holds because a message is never sent to a segment while an earlier one of its hash may still have to be
sent again: `_lane_of` returns the oldest blocked lane of a hash. Segments without blocked lanes are not concerned.

A refusal may also concern the message itself, such as one too large. So a blocked lane is suspect until the layout or
`resolve` has decided; if the segment takes messages, the refusals go to the application and the lane opens again.

A signal handler may raise, as Ctrl-C does. CPython calls it after a call, at a function's begin and in a loop, so what
belongs together stands in lines without these; `is_accepted` tells what a message in between has come to.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import TypeAlias

from anabranch_client.errors import AnabranchError, DeliveryError
from anabranch_client.layout import MAX_CACHED_HASHES, MAX_CACHED_KEY_BYTES, KeyHashes, Layout, LayoutSegment
from anabranch_client.messages import PendingMessage
from anabranch_client.sent_batch import SmallMessage


class LaneState(Enum):
    """States of a lane."""

    OPEN = "open"
    SUSPECT = "suspect"
    """Kafka refused a message; not decided yet whether the segment is sealed."""
    SEALED = "sealed"
    """The segment takes no messages any more: waiting for those in flight, and for its children."""


_OPEN = LaneState.OPEN


class Lane:
    """Messages of a segment."""

    __slots__ = ("age", "in_flight", "layout", "outbox", "refused", "segment", "state", "waiting")

    def __init__(self, segment: LayoutSegment, layout: Layout) -> None:
        self.segment, self.layout = segment, layout
        self.age = layout.created_at_ms or 0, segment.id
        """Sort key: ancestors come before descendants, former incarnations before later ones."""
        self.state = LaneState.OPEN
        self.in_flight = 0
        self.refused: list[tuple[PendingMessage, DeliveryError]] = []
        self.waiting: deque[PendingMessage] = deque()
        self.outbox: list[SmallMessage] = []
        """Accepted messages that are sent together: see the module `outbox`."""


Route: TypeAlias = "tuple[bytes | None, Lane]"
"""A key as bytes, and the open lane that takes its messages."""


class Lanes:
    """All lanes of a producer; its owner serializes the calls."""

    def __init__(
        self,
        layout: Layout,
        send: Callable[[LayoutSegment, PendingMessage], bool],
        report: Callable[[PendingMessage, AnabranchError], None],
    ) -> None:
        """`send` begins to send to a segment; False: refused at once. `report` ends a message.

        If `send` raises, `is_accepted` of the message tells whether it is on its way nevertheless.
        """
        self._send, self._report = send, report
        self._lanes: dict[str, Lane] = {}
        self._active: list[Lane] = []
        self._starts: list[int] = []
        self._turn = 0
        self.blocked: list[Lane] = []
        """Lanes that are not open, oldest first."""
        self.resent = 0
        """Number of messages that were sent again after a segment had refused them."""
        self._hashes = KeyHashes()
        self.routes: dict[str | bytes, Route] = {}
        """Routes of keys; empty while a lane is blocked."""
        self.layout = layout
        self._use(layout)

    def find_route(self, key: str | bytes | None) -> Route | None:
        """Return the route of a key, and keep it for its next messages; None while a lane is blocked.

        Also none has a key that is too long to keep. Without a key, messages go to each open lane in turn.
        """
        if self.blocked:
            return None
        if key is None:
            return None, self._next_lane()
        encoded = key.encode() if isinstance(key, str) else key
        if len(encoded) > MAX_CACHED_KEY_BYTES:
            return None
        if len(self.routes) >= MAX_CACHED_HASHES:
            self.routes.clear()
        route = self.routes[key] = encoded, self._lane_of(encoded)
        return route

    def follow(self, layout: Layout) -> None:
        """Continue with a newer layout."""
        self._use(layout)
        self.advance()

    def submit(self, record: PendingMessage) -> None:
        """Send a message, or let it wait behind earlier ones of its key."""
        lane = record.lane = self._lane_of(record.key)
        if lane.state is _OPEN:
            lane.in_flight += 1
            try:
                if self._send(lane.segment, record):
                    return
            except BaseException:
                lane.in_flight -= not record.is_accepted
                raise
            lane.in_flight -= 1
            self._block(lane, LaneState.SUSPECT)
        record.is_accepted = True
        lane.waiting += (record,)

    def delivered(self, lane: Lane) -> None:
        """Count the end of a message in flight that needs nothing more."""
        lane.in_flight -= 1
        if lane.state is not _OPEN and not lane.in_flight:
            self.advance()

    def refuse(self, record: PendingMessage, error: DeliveryError) -> None:
        """Keep an unstored message until it is known if its segment is sealed; if not, report `error`."""
        lane = record.lane
        lane.in_flight -= 1
        lane.refused.append((record, error))
        if lane.state is LaneState.OPEN:
            self._block(lane, LaneState.SUSPECT)
        if not lane.in_flight:
            self.advance()

    def resolve(self, lane: Lane, is_sealed: bool) -> None:
        """Decide on a suspect lane without messages in flight, whose refusals all came before the question."""
        if lane.state is not LaneState.SUSPECT:
            return
        if is_sealed:
            lane.state = LaneState.SEALED
            self.advance()
            return
        refused, waiting = sorted(lane.refused, key=lambda item: item[0].number), lane.waiting
        lane.refused, lane.waiting, lane.state = [], deque(), LaneState.OPEN
        self.blocked.remove(lane)
        for record, error in refused:
            self._report(record, error)
        for record in waiting:
            self.resubmit(record)

    def advance(self) -> None:
        """Send the messages of finished lanes to the segments of the layout, until nothing more can move."""
        while (lane := next((lane for lane in self.blocked if self._is_finished(lane)), None)) is not None:
            self._lanes.pop(lane.segment.kafka_topic, None)
            self.resent += len(lane.refused)
            records = deque(sorted([*(record for record, _ in lane.refused), *lane.waiting], key=_number))
            lane.refused, lane.waiting = [], records
            for record in records:
                record.is_accepted = False
            try:
                self.blocked.remove(lane)
                for record in records:
                    self.resubmit(record)
            except BaseException:
                lane.waiting = deque(record for record in records if not record.is_accepted)
                if lane not in self.blocked:
                    self._block(lane, LaneState.SEALED)
                raise
            lane.waiting = deque()

    def give_up(self, is_over: Callable[[PendingMessage], bool], error: Callable[[Lane], AnabranchError]) -> None:
        """Report those refused and waiting messages that are over."""
        for lane in tuple(self.blocked):
            over = [record for record, _ in lane.refused if is_over(record)]
            over += (record for record in lane.waiting if is_over(record))
            if over:
                lane.refused = [item for item in lane.refused if not is_over(item[0])]
                lane.waiting = deque(record for record in lane.waiting if not is_over(record))
                for record in over:
                    self._report(record, error(lane))

    def resubmit(self, record: PendingMessage) -> None:
        """Submit a message whose `produce` has returned: errors are reported."""
        try:
            self.submit(record)
        except DeliveryError as error:
            self._end(record, error)
        except Exception as error:
            # Such as headers of a wrong type: the messages behind it go on.
            self._end(record, DeliveryError(f"the message cannot be sent: {error!r}"))

    def _end(self, record: PendingMessage, error: AnabranchError) -> None:
        self._report(record, error)
        record.is_accepted = True

    def _is_finished(self, lane: Lane) -> bool:
        return lane.state is LaneState.SEALED and not lane.in_flight and not self.layout.is_active(lane.segment)

    def _use(self, layout: Layout) -> None:
        self.layout = layout
        for lane in tuple(self._lanes.values()):
            if layout.is_active(lane.segment):
                continue
            if lane.state is not LaneState.OPEN:
                lane.state = LaneState.SEALED
            elif lane.in_flight:
                self._block(lane, LaneState.SEALED)
            else:
                lane.state = LaneState.SEALED
                del self._lanes[lane.segment.kafka_topic]
        self._active = []
        for segment in layout.active:
            lane = self._lanes.get(segment.kafka_topic) or Lane(segment, layout)
            self._lanes[segment.kafka_topic] = lane
            self._active.append(lane)
        self._starts = [lane.segment.start for lane in self._active]
        self.routes.clear()

    def _block(self, lane: Lane, state: LaneState) -> None:
        lane.state = state
        self.routes.clear()
        self.blocked.append(lane)
        self.blocked.sort(key=lambda lane: lane.age)

    def _lane_of(self, key: bytes | None) -> Lane:
        if key is None:
            return self._next_lane()
        hash = self._hashes[key]
        for lane in self.blocked:
            if lane.segment.start <= hash <= lane.segment.end:
                return lane
        return self._active[bisect_right(self._starts, hash) - 1]

    def _next_lane(self) -> Lane:
        """Return the next active lane in turn, an open one if there is any."""
        for _ in self._active:
            self._turn = (self._turn + 1) % len(self._active)
            if self._active[self._turn].state is LaneState.OPEN:
                break
        return self._active[self._turn % len(self._active)]


def _number(record: PendingMessage) -> int:
    return record.number
