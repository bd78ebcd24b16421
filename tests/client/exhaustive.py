"""Every order of seals, refusals, resends, layouts, drains and assignments of a small topic, on the real code.

A scenario has some messages and some splits and merges. `explore` performs every sequence of steps that Kafka, the
controller, the producer's thread and the consumers can take, except those that lead to a state it has seen. The steps
call the client's `Lanes` and `Frontier` and the controller's layouts and assignment; only Kafka is made up here: a
segment is a list of messages that refuses more once it is sealed.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from anabranch.controller.sessions import assignment
from anabranch_client.checkpoints import Frontier
from anabranch_client.errors import AnabranchError, MessageTooLarge
from anabranch_client.lanes import Lanes, LaneState
from anabranch_client.layout import Layout, LayoutSegment
from anabranch_client.messages import PendingMessage
from decisions.topic.layout import SegmentLayout

TOPIC = "topic://acme/shop/orders"
LOW, HIGH = b"a", b"c"
"""Keys of the lower and of the upper half of the hash space."""
CONSUMERS = ("x", "y")
Step = tuple[Any, ...]


@dataclass(frozen=True)
class Scenario:
    """Messages to produce by key, and layouts in their order."""

    keys: tuple[bytes, ...]
    layouts: tuple[SegmentLayout, ...]
    oversized: frozenset[int] = frozenset()
    """Numbers of messages that every segment refuses."""

    @classmethod
    def of(cls, segments: int, keys: str, *changes: tuple[int, ...], oversized: int | None = None) -> Scenario:
        """`keys`: `l` and `h` for the lower and the upper half; a change splits one segment or merges two."""
        layouts = [SegmentLayout.create(segments, now_ms=0)]
        for change in changes:
            alter = layouts[-1].split_segment if len(change) == 1 else layouts[-1].merge_segments
            layouts.append(alter(*change, now_ms=0))
        sizes = frozenset() if oversized is None else frozenset({oversized})
        return cls(tuple(LOW if key == "l" else HIGH for key in keys), tuple(layouts), sizes)


class World:
    """State of all parties; `steps` names what may happen next, `take` lets it happen."""

    def __init__(self, scenario: Scenario, published: tuple[Layout, ...]) -> None:
        self.scenario, self.published = scenario, published
        self.sealing = self.epoch = 0
        """Layouts whose parents are sealed, and the one that the controller serves."""
        self.in_flight: dict[int, deque[PendingMessage]] = defaultdict(deque)
        self.stored: dict[int, list[int]] = defaultdict(list)
        self.produced = 0
        self.failed: list[int] = []
        self.lanes = Lanes(published[0], self._send, lambda record, error: self.failed.append(record.number))
        self.frontier = Frontier(published[0])
        self.committed: dict[int, int] = defaultdict(int)
        self.owners: dict[int, str] = {}
        self.received: dict[str, list[int]] = {"group": [], "checkpoint": []}
        self._assign()

    @property
    def sealed(self) -> set[int]:
        """Segments that Kafka refuses messages for."""
        layout = self.scenario.layouts[self.sealing]
        return {id for id, segment in layout.segments.items() if not segment.is_active}

    def steps(self) -> Iterator[Step]:
        """Yield all steps that are possible now."""
        if self.produced < len(self.scenario.keys):
            yield ("produce",)
        if self.sealing == self.epoch < len(self.published) - 1:
            yield ("seal",)
        if self.epoch < self.sealing:
            yield ("publish",)
        if self.lanes.layout is not self.published[self.epoch]:
            yield ("hear",)
        if self.frontier.layout is not self.published[self.epoch]:
            yield ("look",)
        yield from (("answer", id) for id, records in self.in_flight.items() if records)
        for lane in self.lanes.blocked:
            if lane.state is LaneState.SUSPECT and not lane.in_flight:
                yield "probe", lane.segment.id
        if self.owners != self._wanted():
            yield ("assign",)
        yield from (("read", id) for id in self.owners if self.committed[id] < len(self.stored[id]))
        for id, offset in self.frontier.readable().items():
            if (offset or 0) < len(self.stored[id]):
                yield "read checkpoint", id
            elif not self.frontier.layout.segments[id].is_active:
                yield "finish", id

    def take(self, step: Step) -> None:
        """Let a step happen."""
        match step:
            case ("produce",):
                self._produce()
            case ("seal",):
                self.sealing += 1
            case ("publish",):
                self.epoch = self.sealing
            case ("hear",):
                self.lanes.follow(self.published[self.epoch])
            case ("look",):
                self.frontier.follow(self.published[self.epoch])
            case ("answer", id):
                self._answer(id)
            case ("probe", id):
                (lane,) = (lane for lane in self.lanes.blocked if lane.segment.id == id)
                self.lanes.resolve(lane, id in self.sealed)
            case ("assign",):
                self._assign()
            case ("read", id):
                self.received["group"].append(self.stored[id][self.committed[id]])
                self.committed[id] += 1
            case ("read checkpoint", id):
                offset = self.frontier.readable()[id] or 0
                self.received["checkpoint"].append(self.stored[id][offset])
                self.frontier.advance(id, offset + 1)
            case ("finish", id):
                self.frontier.finish(id)

    def check(self, is_over: bool) -> None:
        """Raise `AssertionError` for a message out of order, or missing when nothing more can happen."""
        keys, failed = self.scenario.keys, set(self.failed)
        assert failed <= self.scenario.oversized
        for received in self.received.values():
            for key in set(keys):
                expected = [number for number, other in enumerate(keys) if other == key and number not in failed]
                numbers = [number for number in received if keys[number] == key]
                assert numbers == [n for n in expected if n not in self.scenario.oversized][: len(numbers)]
            assert not is_over or len(received) + len(failed) == len(keys)

    def key(self) -> Any:
        """Return what tells this state from all others."""
        lanes = [*self.lanes._lanes.values(), *self.lanes.blocked]
        return (
            (self.sealing, self.epoch, self.lanes.layout.epoch, self.frontier.layout.epoch, self.produced),
            tuple(
                (
                    lane.segment.id,
                    lane.state,
                    lane.in_flight,
                    numbers(r for r, _ in lane.refused),
                    numbers(lane.waiting),
                )
                for lane in lanes
            ),
            tuple(sorted((id, numbers(records)) for id, records in self.in_flight.items() if records)),
            tuple(sorted((id, tuple(records)) for id, records in self.stored.items() if records)),
            tuple(sorted((id, offset) for id, offset in self.committed.items() if offset)),
            tuple(sorted(self.owners.items())),
            (tuple(sorted(self.frontier.offsets.items())), frozenset(self.frontier.finished)),
            tuple(self.failed),
        )

    def _produce(self) -> None:
        key = self.scenario.keys[self.produced]
        record = PendingMessage()
        record.key, record.number = key, self.produced
        self.produced += 1
        self.lanes.submit(record)

    def _send(self, segment: LayoutSegment, record: PendingMessage) -> bool:
        self.in_flight[segment.id].append(record)
        return True

    def _answer(self, id: int) -> None:
        record = self.in_flight[id].popleft()
        if id in self.sealed or record.number in self.scenario.oversized:
            self.lanes.refuse(record, MessageTooLarge("refused", 10))
        else:
            self.stored[id].append(record.number)
            self.lanes.delivered(record.lane)

    def _wanted(self) -> dict[int, str]:
        layout = self.scenario.layouts[self.epoch]
        drained = {
            id
            for id, segment in layout.segments.items()
            if not segment.is_active and self.committed[id] == len(self.stored[id])
        }
        assigned = assignment.assign(assignment.assignable(layout, drained), CONSUMERS)
        return {segment.segment_id: name for name, segments in assigned.items() for segment in segments}

    def _assign(self) -> None:
        self.owners = self._wanted()


def numbers(records: Any) -> tuple[int, ...]:
    """Return the numbers of messages."""
    return tuple(record.number for record in records)


def explore(scenario: Scenario) -> int:
    """Check every state that can be reached; return their number. The failing sequence is in the assertion."""
    published = tuple(
        Layout.from_record(TOPIC, json.loads(layout.to_metadata().to_json())) for layout in scenario.layouts
    )
    traces: list[tuple[Step, ...]] = [()]
    seen: set[Any] = set()
    world, taken = World(scenario, published), 0
    while traces:
        trace = traces.pop()
        if len(trace) <= taken:
            # Of another branch; else it goes on from where the world is.
            world, taken = World(scenario, published), 0
        for step in trace[taken:]:
            world.take(step)
        taken = len(trace)
        if (key := world.key()) in seen:
            continue
        seen.add(key)
        steps = list(world.steps())
        try:
            world.check(is_over=not steps)
        except (AssertionError, AnabranchError) as fault:
            raise AssertionError(f"after {' '.join(map(str, trace))}") from fault
        traces += ((*trace, step) for step in steps)
    return len(seen)
