"""A small world around `decide`: a topic, a demand over its key space, its consumers, and a clock that jumps.

The world is closed: what is decided is applied to the layout at once, clocks are set by what was applied, every segment
reports the demand that falls on its range, and sealed segments may be pruned. `live` runs it under constant demand
until it rests or repeats itself; `explore` tries every move of an adversary within bounds. `python -m
tests.decisions.model` prints docs/flip-flop.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product

from decisions.autoscale.clocks import (
    Cooldowns,
    cold_since_after_sample,
    cooldowns_after_layout,
    modified_after_sample,
)
from decisions.autoscale.decide import Hold, Split, decide, next_due
from decisions.autoscale.policy import PROFILES, Policy
from decisions.autoscale.rates import is_cold
from decisions.autoscale.snapshot import Load, TopicSnapshot
from decisions.topic.layout import HASH_SPACE, LayoutStateError, SegmentLayout
from decisions.topic.lineage import merge_depths_after_layout

MINUTE = 60_000
FAR = 2**50
"""A living reporter: every load was seen just now, however far the clock jumps."""


def small_policy(profile: str, max_segments: int = 4, **rest: object) -> Policy:
    """The profile with thresholds of 100 and 10 messages a second, small caps, and the PIP's times."""
    return replace(
        PROFILES[profile], max_segments=max_segments, split_msg_rate_in_threshold=100.0,
        merge_msg_rate_in_threshold=10.0, **rest,
    )  # fmt: skip


@dataclass(frozen=True)
class World:
    """One topic at one instant; immutable."""

    policy: Policy
    layout: SegmentLayout
    demand: tuple[float, ...]
    """Messages a second on equal parts of the key space."""
    consumers: int = 0
    prune: bool = True
    """Sealed segments are removed at once, as with a retention of 0 (Pulsar's default)."""
    now: int = 0
    last_split_at: int | None = None
    last_merge_at: int | None = None
    depths: dict[int, int] = field(default_factory=dict)
    """Merge depths as the job keeps them through pruning."""
    records: dict[int, tuple[float, int, int | None]] = field(default_factory=dict)
    """Per segment: the last accepted rate, when it was accepted, and since when the segment has been cold."""

    def rate(self, start: int, end: int) -> float:
        """The demand on a range of hashes."""
        size = HASH_SPACE // len(self.demand)
        total = 0.0
        for part, rate in enumerate(self.demand):
            overlap = min(end, part * size + size - 1) - max(start, part * size) + 1
            total += rate * max(0, overlap) / size
        return total

    def reported(self) -> World:
        """After every active segment has reported: a changed rate makes a new record."""
        records = {}
        for segment in self.layout.active:
            rate = self.rate(segment.start, segment.end)
            last = self.records.get(segment.segment_id)
            if last is not None and last[0] == rate:
                records[segment.segment_id] = last
                continue
            modified_at, since = (None, None) if last is None else last[1:]
            cold = is_cold((rate, 0.0, 0.0, 0.0), self.policy)
            records[segment.segment_id] = (
                rate, modified_after_sample(modified_at, self.now), cold_since_after_sample(since, cold, self.now)
            )  # fmt: skip
        return replace(self, records=records)

    def snapshot(self) -> TopicSnapshot:
        """What `decide` sees of it."""
        loads = {
            number: Load(rate, 0.0, 0.0, 0.0, at, FAR, cold_since)
            for number, (rate, at, cold_since) in self.records.items()
        }
        return TopicSnapshot(
            "topic://acme/shop/orders", self.now, self.layout, self.policy, loads=loads,
            consumers={"billing": ("STREAM", self.consumers)}, last_split_at=self.last_split_at,
            last_merge_at=self.last_merge_at, merge_depths=self.depths,
        )  # fmt: skip

    def applied(self, answer: object) -> World:
        """After the action; a hold changes nothing."""
        if isinstance(answer, Hold):
            return self
        if isinstance(answer, Split):
            layout, parents = self.layout.split_segment(answer.segment, self.now), (answer.segment,)
        else:
            layout, parents = self.layout.merge_segments(*answer.segments, self.now), answer.segments
        world = self.announced(layout)
        if self.prune:
            for parent in parents:
                layout = layout.prune_segment(parent)
            world = world.announced(layout)
        return world.reported()

    def announced(self, layout: SegmentLayout) -> World:
        """After a layout has come: the clocks and depths that it sets."""
        known = self.layout.segments
        cooldowns = cooldowns_after_layout(Cooldowns(self.last_split_at, self.last_merge_at), known, layout, self.now)
        return replace(
            self, layout=layout, last_split_at=cooldowns.last_split_at, last_merge_at=cooldowns.last_merge_at,
            depths=merge_depths_after_layout(self.depths, known, layout.segments),
        )  # fmt: skip

    def shape(self) -> tuple[object, ...]:
        """What the future depends on: ranges, depths, ages. Two worlds of one shape have one future, ids apart."""
        longest = max(self.policy.merge_cooldown_ms, self.policy.merge_window_ms, self.policy.split_cooldown_ms)

        def age(at: int | None) -> int | None:
            return None if at is None else min(self.now - at, longest)

        order = sorted(segment.segment_id for segment in self.layout.active)
        seen = self.snapshot()
        segments = tuple(
            (
                segment.start,
                segment.end,
                order.index(segment.segment_id),
                seen.merge_depth(segment.segment_id),
                self.records[segment.segment_id][0],
                *map(age, self.records[segment.segment_id][1:]),
            )
            for segment in self.layout.active
        )
        return segments, self.demand, self.consumers, age(self.last_split_at), age(self.last_merge_at)


@dataclass(frozen=True)
class Life:
    """What a world did under constant demand."""

    steps: list[tuple[World, object]]
    """Each action with the world that it was taken in."""
    ending: str
    """`rest`; `repeats` when it came to a shape that it had before; `stuck` when it split a segment of one hash."""
    last: World

    @property
    def flip_flops(self) -> list[tuple[int, int]]:
        """Ranges that were made by a merge and split again, or split and made again by a merge."""
        merged, split, found = set(), set(), []
        for world, answer in self.steps:
            segments = world.layout.segments
            if isinstance(answer, Split):
                one = (segments[answer.segment].start, segments[answer.segment].end)
                found += [one] if one in merged else []
                split.add(one)
            else:
                one = (segments[answer.segments[0]].start, segments[answer.segments[1]].end)
                found += [one] if one in split else []
                merged.add(one)
        return found


def live(world: World, max_steps: int = 400) -> Life:
    """Runs a world under constant demand; the clock jumps from one due instant to the next."""
    world, steps, shapes = world.reported(), [], set()
    while len(steps) < max_steps:
        answer = decide(world.snapshot())
        if isinstance(answer, Hold):
            due = next_due(answer)
            if due is None:
                return Life(steps, "rest", world)
            world = replace(world, now=due)
            continue
        shape = world.shape()
        if shape in shapes:
            return Life(steps, "repeats", world)
        shapes.add(shape)
        steps.append((world, answer))
        try:
            world = world.applied(answer)
        except LayoutStateError:
            return Life(steps[:-1], "stuck", world)
    return Life(steps, "still going", world)


def worlds(profile: str) -> Iterator[World]:
    """All worlds within the bounds: demands on four parts, consumers, first layouts, caps, with and without pruning."""
    for demand in product((0.0, 30.0, 450.0), repeat=4):
        for consumers, first, most, prune in product((0, 1, 3, 6), (1, 2, 4), (2, 4, 8), (True, False)):
            yield World(small_policy(profile, most), SegmentLayout.create(first, 0), demand, consumers, prune)


MOVES = [
    (demand, consumers)
    for demand in ((0.0, 0.0), (30.0, 30.0), (450.0, 0.0), (0.0, 450.0))
    for consumers in (0, 3)
]  # fmt: skip
"""What an adversary may set at each step."""


def explore(policy: Policy, depth: int, step_ms: int) -> Iterator[tuple[World, object, World]]:
    """Every (world, answer, world after) that an adversary can bring about in `depth` steps of `step_ms`."""
    start = World(policy, SegmentLayout.create(1, 0), MOVES[0][0]).reported()
    frontier, seen = [start], {start.shape()}
    for _ in range(depth):
        following = []
        for world in frontier:
            for demand, consumers in MOVES:
                moved = replace(world, demand=demand, consumers=consumers, now=world.now + step_ms).reported()
                answer = decide(moved.snapshot())
                after = moved.applied(answer)
                yield moved, answer, after
                if after.shape() not in seen:
                    seen.add(after.shape())
                    following.append(after)
        frontier = following


def drawn(layout: SegmentLayout, columns: int = 16) -> str:
    """The active segments as a bar over the hash space: `[0       |2       ]`."""
    bar = ""
    for segment in layout.active:
        width = max(2, segment.width * columns * 2 // HASH_SPACE)
        bar += f"|{segment.segment_id}".ljust(width)
    return f"[{bar[1:]}]"


def trace(life: Life, most: int) -> list[str]:
    """The first actions of a life, one a line."""
    lines = []
    for world, answer in life.steps[:most]:
        what = (
            f"split {answer.segment}"
            if isinstance(answer, Split)
            else f"merge {answer.segments[0]} and {answer.segments[1]}"
        )
        after = world.applied(answer).layout
        lines.append(
            f"{world.now / MINUTE:6.1f} min  {what:<14} {answer.reason:<15} "
            f"{len(world.layout.active)} -> {len(after.active)}  {drawn(after)}"
        )
    more = len(life.steps) - most
    lines += [f"            ... {more} more actions"] if more > 0 else []
    lines.append(f"{life.last.now / MINUTE:6.1f} min  {life.ending}")
    return lines


def cold_topic_with_consumers(profile: str, prune: bool = True, rate: float = 1.0) -> World:
    """A cold topic whose one subscription has three consumers (docs/flip-flop.md)."""
    return World(small_policy(profile, 8), SegmentLayout.create(1, 0), (rate,) * 4, consumers=3, prune=prune)


def page() -> str:
    """docs/flip-flop.md."""
    pip = live(cold_topic_with_consumers("pip-483"))
    kept = live(cold_topic_with_consumers("pip-483", prune=False))
    silent = live(cold_topic_with_consumers("pip-483", rate=0.0))
    return _PAGE.format(
        pip="\n".join(trace(pip, 9)), kept=len(kept.steps), kept_end=kept.ending,
        kept_minutes=kept.last.now // MINUTE, silent="\n".join(trace(silent, 10)),
        default="\n".join(trace(live(cold_topic_with_consumers("default")), 9)),
    )  # fmt: skip


_PAGE = """# Split and merge chasing each other

Found by the model check (`tests/decisions/model.py`), which runs `decide`, the layout and the clocks as a closed world
under constant demand. This page is generated: `python -m tests.decisions.model > docs/flip-flop.md`.

A cold topic, four messages a second, one segment, one STREAM subscription with three consumers. The consumer rule of
PIP-483 wants three segments. Its merge pass does not look at consumers, so once the segments have been cold for
`mergeWindow` it merges two of them, and the consumer rule splits again.

## Profile `pip-483`, sealed segments pruned when drained (Pulsar's default)

```
{pip}
```

The last state was there before, ids apart: it goes on like this forever, and every round seals and creates segments
and moves consumers. `maxDagDepth` does not end it, because pruning removes the lineage that it counts. When nothing
is ever pruned it does: after {kept} actions, {kept_minutes} minutes, the topic comes to {kept_end}.

## The same, without any messages

```
{silent}
```

All segments are equally idle, so ties decide: the oldest is split, the leftmost pair is merged; the split wanders to
one end of the hash space until the segment that is due holds a single hash. Its split fails, at every evaluation, for
as long as the consumers stay.

## Profile `default`

```
{default}
```

The guard `mergeKeepsConsumers` never merges below the number of consumers that need a segment.

## What the check covers

Every combination of: no, moderate or far too much load on each of four parts of the key space; 0, 1, 3 or 6 consumers;
1, 2 or 4 segments at first; at most 2, 4 or 8 segments; with and without pruning. In `default` each of these worlds
makes finitely many actions, splits no range that it has merged and merges no range that it has split, and rests. An
adversary that changes load and consumers every minute is tried exhaustively too, for eight minutes: the active
segments tile the hash space after every action, caps and cooldowns hold, in both profiles.

Bounds of the proof: demand is constant and even within each part, loads are reported at once, actions succeed at once,
and no merge threshold is above half of its split threshold (`anabranch policy check` warns of policies where one is).
"""

if __name__ == "__main__":
    print(page(), end="")
