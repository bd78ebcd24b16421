"""A small world around `decide`: a topic, a demand over its key space, its consumers, and a clock that jumps.

The world is closed: what is decided is applied to the layout at once, clocks are set by what was applied, every segment
reports the demand that falls on its range, and sealed segments may be pruned. `live` runs it under constant demand
until it rests or repeats itself; `explore` tries every move of an adversary within bounds. `python -m
tests.decisions.model` prints tests/decisions/flip-flop.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product

from decisions.autoscale.clocks import Cooldowns, cooldowns_after_layout
from decisions.autoscale.decide import Hold, Merge, Split, decide, hot_keys_after, next_due
from decisions.autoscale.hot_keys import HotKey
from decisions.autoscale.past import Past, depths_after_layout, past_after_layout
from decisions.autoscale.policy import PROFILES, Policy
from decisions.autoscale.rates import is_cold
from decisions.autoscale.snapshot import Load, TopicSnapshot
from decisions.topic.layout import HASH_SPACE, LayoutStateError, SegmentLayout
from tests.decisions.single_samples import cold_since_after_sample, returned_after_sample

MINUTE = 60_000
FAR = 2**50
"""A living reporter: every load was seen just now, however far the clock jumps."""


def small_policy(profile: str, max_segments: int = 4, **rest: object) -> Policy:
    """The profile with thresholds of 100 and 10 messages a second, small caps, and the PIP's times."""
    return replace(
        PROFILES[profile],
        max_segments=max_segments,
        split_msg_rate_in_threshold=100.0,
        merge_msg_rate_in_threshold=10.0,
        **rest,
    )


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
    records: dict[int, tuple[float, int, int | None, int | None]] = field(default_factory=dict)
    """Per segment: the last accepted rate, when it was accepted, since when the segment has been cold, and the pause
    after which its load came back last."""
    pasts: dict[int, Past] = field(default_factory=dict)
    hot_keys: tuple[HotKey, ...] = ()

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
            modified_at, since, back = (None, None, None) if last is None else last[1:]
            cold = is_cold((rate, 0.0, 0.0, 0.0), self.policy)
            records[segment.segment_id] = (
                rate,
                max(modified_at or self.now, self.now),
                cold_since_after_sample(since, cold, self.now),
                returned_after_sample(back, last is not None, since, cold, self.now),
            )
        return replace(self, records=records)

    def snapshot(self) -> TopicSnapshot:
        """What `decide` sees of it."""
        loads = {
            number: Load(rate, 0.0, 0.0, 0.0, at, FAR, cold_since, back)
            for number, (rate, at, cold_since, back) in self.records.items()
        }
        return TopicSnapshot(
            "topic://acme/shop/orders",
            self.now,
            self.layout,
            self.policy,
            loads=loads,
            consumers={"billing": ("STREAM", self.consumers)},
            last_split_at=self.last_split_at,
            last_merge_at=self.last_merge_at,
            merge_depths=self.depths,
            pasts=self.pasts,
            hot_keys=self.hot_keys,
        )

    def applied(self, answer: object) -> World:
        """After all that is done; a hold changes nothing but what is known of hot keys."""
        world = replace(self, hot_keys=hot_keys_after(self.snapshot()))
        for action in actions_of(answer):
            world = world.after(action)
        return world

    def after(self, answer: Split | Merge) -> World:
        """After one action."""
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

    def returned(self) -> dict[int, int]:
        """Pauses after which loads came back."""
        return {number: back for number, (*_, back) in self.records.items() if back is not None}

    def announced(self, layout: SegmentLayout) -> World:
        """After a layout has come: the clocks and depths that it sets."""
        known = self.layout.segments
        cooldowns = cooldowns_after_layout(Cooldowns(self.last_split_at, self.last_merge_at), known, layout, self.now)
        return replace(
            self,
            layout=layout,
            last_split_at=cooldowns.last_split_at,
            last_merge_at=cooldowns.last_merge_at,
            depths=depths_after_layout(self.depths, self.pasts, known, layout, self.now),
            pasts=past_after_layout(self.pasts, known, layout, self.now, self.returned()),
        )

    def shape(self) -> tuple[object, ...]:
        """What the future depends on: ranges, depths, ages. Two worlds of one shape have one future, ids apart."""
        policy = self.policy
        longest = max(policy.merge_cooldown_ms, policy.merge_window_ms, policy.split_cooldown_ms)
        longer = max(longest, 4 * policy.settle_ms)

        def age(at: int | None, longest: int = longest) -> int | None:
            return None if at is None else min(self.now - at, longest)

        def come_from(number: int) -> tuple[object, ...]:
            past = self.pasts.get(number)
            return (
                ()
                if past is None
                else (age(past.at, longer), past.made, past.regrets, past.returned_after, past.finest)
            )

        order = sorted(segment.segment_id for segment in self.layout.active)
        seen = self.snapshot()
        segments = tuple(
            (
                segment.start,
                segment.end,
                order.index(segment.segment_id),
                seen.merge_depth(segment.segment_id),
                self.records[segment.segment_id][0],
                *map(age, self.records[segment.segment_id][1:3]),
                self.records[segment.segment_id][3],
                come_from(segment.segment_id),
            )
            for segment in self.layout.active
        )
        if policy.parallel_actions:
            # There the cooldowns are those of each segment.
            keys = tuple((*key[:5], age(key.found_at, 2**40)) for key in self.hot_keys)
            return segments, self.demand, self.consumers, keys
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
            for action in actions_of(answer):
                one = (segments[action.ids[0]].start, segments[action.ids[-1]].end)
                undone, done = (merged, split) if isinstance(action, Split) else (split, merged)
                found += [one] if one in undone else []
                done.add(one)
        return found

    @property
    def regrets(self) -> list[tuple[int, int]]:
        """Ranges that were made by a merge and split again."""
        last: dict[tuple[int, int], str] = {}
        found = []
        for world, answer in self.steps:
            segments = world.layout.segments
            for action in actions_of(answer):
                one = (segments[action.ids[0]].start, segments[action.ids[-1]].end)
                found += [one] if (last.get(one), action.action) == ("merge", "split") else []
                last[one] = action.action
        return found


def actions_of(answer: object) -> list[Split | Merge]:
    """All that is done in an evaluation."""
    return [answer, *answer.also] if isinstance(answer, Split | Merge) else []


def live(world: World, max_steps: int = 400) -> Life:
    """Runs a world under constant demand; the clock jumps from one due instant to the next."""
    world, steps, shapes = world.reported(), [], set()
    while len(steps) < max_steps:
        answer = decide(world.snapshot())
        if isinstance(answer, Hold):
            due = next_due(answer)
            if due is None:
                return Life(steps, "rest", world)
            world = replace(world.applied(answer), now=due)
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
    (demand, consumers) for demand in ((0.0, 0.0), (30.0, 30.0), (450.0, 0.0), (0.0, 450.0)) for consumers in (0, 3)
]
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
        what = ", ".join(f"{action.action} {' and '.join(map(str, action.ids))}" for action in actions_of(answer))
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
    """A cold topic whose one subscription has three consumers (tests/decisions/flip-flop.md)."""
    return World(small_policy(profile, 8), SegmentLayout.create(1, 0), (rate,) * 4, consumers=3, prune=prune)


def page() -> str:
    """tests/decisions/flip-flop.md."""
    pip = live(cold_topic_with_consumers("pip-483"))
    kept = live(cold_topic_with_consumers("pip-483", prune=False))
    silent = live(cold_topic_with_consumers("pip-483", rate=0.0))
    return _PAGE.format(
        pip="\n".join(trace(pip, 9)),
        kept=len(kept.steps),
        kept_end=kept.ending,
        kept_minutes=kept.last.now // MINUTE,
        silent="\n".join(trace(silent, 10)),
        default="\n".join(trace(live(cold_topic_with_consumers("default")), 9)),
    )


_PAGE = """# Split and merge chasing each other

Found by the model check (`tests/decisions/model.py`), which runs `decide`, the layout and the clocks as a closed world
under constant demand. This page is generated: `python -m tests.decisions.model > tests/decisions/flip-flop.md`.

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

The guard `mergeKeepsConsumers` never merges below the number of consumers that need a segment, and `parallelActions`
splits for all of them at once, as far as there are segments to split.

## What the check covers

Every combination of: no, moderate or far too much load on each of four parts of the key space; 0, 1, 3 or 6 consumers;
1, 2 or 4 segments at first; at most 2, 4 or 8 segments; with and without pruning. In `default` each of these worlds
makes finitely many actions, splits no range that it has merged, and rests. (At the cap it gives back once what it
split for consumers, when load has made a segment for each of them.) An adversary that changes load and consumers every
minute is tried exhaustively too: the active segments tile the hash space after every action, caps and cooldowns hold,
in both profiles; in `default` the cooldowns are those of each segment, and none comes before a burning one.

Bounds of the proof: demand is constant and even within each part, loads are reported at once, actions succeed at once,
and no merge threshold is above half of its split threshold (`anabranch policy check` warns of policies where one is).
"""

if __name__ == "__main__":
    print(page(), end="")
