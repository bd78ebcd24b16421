"""Snapshots for the tests: plain ones built by hand, and random valid ones that sit on every boundary.

`random_snapshot` draws ties, exact boundaries, clock skew, missing and old records, pruned and cyclic lineages, deep
DAGs, extreme and subnormal rates. It takes a `random.Random`, so that a million can be drawn from one seed.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from random import Random
from types import MappingProxyType

from msgspec.structs import replace as replace_segment

from decisions.autoscale.hot_keys import HotKey
from decisions.autoscale.past import Past
from decisions.autoscale.policy import PROFILES, Policy
from decisions.autoscale.snapshot import Load, OpenAction, TopicSnapshot
from decisions.topic.layout import LayoutError, SegmentLayout
from decisions.topic.segment import equal_buckets

TOPIC = "topic://acme/shop/orders"
NOW = 1_763_660_000_000
SECOND, MINUTE = 1_000, 60_000
PIP, DEFAULT = PROFILES["pip-483"], PROFILES["default"]
WARM = (5_000.0, 20e6, 20_000.0, 100e6)
"""Between the thresholds of both profiles on every rate: neither hot nor cold."""
COLD = (10.0, 1e4, 20.0, 2e4)


def load(rates=WARM, modified_at=NOW - 10 * MINUTE, seen_at=NOW, cold_since=None):
    """A load record; by default warm, old, and seen just now."""
    return Load(*(float(rate) for rate in rates), modified_at, seen_at, cold_since)


def msg_rate(rate, **rest):
    """A load of messages in only."""
    return load((rate, 0, 0, 0), **rest)


def snapshot(segments=1, loads=None, policy=PIP, **rest):
    """A tick on a fresh layout of `segments`; every segment that `loads` leaves out is warm."""
    layout = segments if isinstance(segments, SegmentLayout) else SegmentLayout.create(segments, NOW - 60 * MINUTE)
    known = {segment.segment_id: load() for segment in layout.active}
    for number, record in (loads or {}).items():
        if record is None:
            known.pop(number)
        else:
            known[number] = record
    return TopicSnapshot(
        **{"topic": TOPIC, "now": NOW, "layout": layout, "policy": policy, "loads": known, "trigger": "tick"} | rest
    )


def stream(count, name="billing", kind="STREAM"):
    """Consumers of one subscription."""
    return {name: (kind, count)}


def at(snapshot_, now):
    """The same snapshot at another instant."""
    return replace(snapshot_, now=now)


def random_snapshot(rng: Random, guards: bool = False) -> TopicSnapshot:
    """One random valid snapshot; `guards` switches guards of the default profile on at random."""
    layout = rng.choice(_layouts(rng.randrange(POOLS)))
    policy = rng.choice(_policies(guards))
    now = NOW + rng.choice((0, 0, 1, 777, 10**6))
    loads = {}
    palette = _rates(policy)
    few = rng.choices(palette, k=4)
    mode, missing = rng.random(), rng.choice((0.0, 0.0, 0.1, 0.5))
    for segment in layout.segments.values() if rng.random() < 0.1 else layout.active:
        if rng.random() < missing:
            continue
        rates = rng.choices(few if mode < 0.4 else palette, k=4)
        if mode > 0.5:
            part = rng.choice((0.0, 0.25, 0.25, 0.5, 0.999, 1.0 if rng.random() < 0.3 else 0.1))
            rates = [min(rate, limit * part) for rate, limit in zip(rates, policy.merge_thresholds, strict=True)]
        loads[segment.segment_id] = Load(
            *rates,
            modified_at=now - _age(rng, policy.merge_window_ms),
            seen_at=None if rng.random() < 0.2 else now - _age(rng, policy.max_load_age_ms),
            cold_since=None if rng.random() < 0.4 else now - _age(rng, policy.merge_window_ms),
            returned_after=None if rng.random() < 0.8 else rng.choice((0, 1_000, 60_000, 3_600_000, 3_600_001)),
        )
    count = len(layout.active)
    consumers = {
        name: (
            rng.choice(("STREAM", "STREAM", "CHECKPOINT", "QUEUE")),
            rng.choice((0, 1, count - 1, count, count + 1, 1000)),
        )
        for name in ("a", "b", "c")[: rng.choice((0, 0, 0, 1, 2, 3))]
    }
    return TopicSnapshot(
        topic=TOPIC,
        now=now,
        layout=layout,
        policy=policy,
        trigger="consumer" if rng.random() < 0.1 else "tick",
        loads=MappingProxyType(loads),
        consumers=consumers,
        last_split_at=None if rng.random() < 0.5 else now - _age(rng, policy.split_cooldown_ms),
        last_merge_at=None if rng.random() < 0.5 else now - _age(rng, policy.merge_cooldown_ms),
        in_flight=OpenAction("d", now - 5, rng.choice((None, "merge"))) if rng.random() < 0.04 else None,
        failures=rng.choice((0, 0, 0, 1, 2, 40, 2**31 - 1)),
        failed_at=None if rng.random() < 0.3 else now - _age(rng, policy.retry_backoff_ms),
        failed_action=rng.choice((None, "split", "merge")),
        merge_depths={number: rng.randrange(4) for number in layout.segments} if rng.random() < 0.3 else None,
        pasts=_pasts(rng, layout, policy, now) if rng.random() < 0.7 else None,
        hot_keys=_hot_keys(rng, layout, now) if rng.random() < 0.2 else (),
    )


def _pasts(rng: Random, layout: SegmentLayout, policy: Policy, now: int) -> dict[int, Past]:
    if rng.random() < 0.6:
        return {}
    return {
        segment.segment_id: Past(
            now - _age(rng, min(policy.settle_ms, 10**9)),
            rng.choice(("split", "merge")),
            rng.choice((0, 0, 1, 6, 16)),
            rng.choice((0, 0, 1, 1_000, 3_600_000, 3_600_001)),
        )
        for segment in layout.active
        if rng.random() < 0.7
    }


def _hot_keys(rng: Random, layout: SegmentLayout, now: int) -> tuple[HotKey, ...]:
    at = rng.randrange(len(layout.active))
    one, last = layout.active[at], layout.active[min(at + rng.randrange(4), len(layout.active) - 1)]
    first = layout.active[max(at - rng.randrange(4), 0)]
    return (
        HotKey(one.start, one.end, first.start, last.end, rng.choice((1.1, 5.0, 1e300)), now - _age(rng, 21_600_000)),
    )


POOLS = 8


@cache
def _layouts(pool: int) -> list[SegmentLayout]:
    rng = Random(f"layouts {pool}")
    return [_layout(rng) for _ in range(150)]


def _layout(rng: Random) -> SegmentLayout:
    layout = SegmentLayout.create(rng.choice((1, 1, 2, 3, 4, 7, 10)), 0)
    for _ in range(rng.choice((0, 1, 3, 10, 30))):
        active = layout.active
        step = rng.random()
        try:
            if step < 0.5 and len(active) < 24:
                chosen = active[0] if rng.random() < 0.4 else rng.choice(active)
                layout = layout.split_segment(chosen.segment_id, rng.randrange(10**6))
            elif step < 0.9 and len(active) > 1:
                place = rng.randrange(len(active) - 1)
                pair = [active[place].segment_id, active[place + 1].segment_id]
                rng.shuffle(pair)
                layout = layout.merge_segments(*pair, rng.randrange(10**6))
            elif step >= 0.9:
                sealed = [s.segment_id for s in layout.segments.values() if not s.is_active]
                layout = layout.prune_segment(rng.choice(sealed)) if sealed else layout
        except LayoutError:
            continue
    if rng.random() < 0.1:
        layout = _with_odd_lineage(rng, layout)
    return layout


def _with_odd_lineage(rng: Random, layout: SegmentLayout) -> SegmentLayout:
    """Cycles, missing and repeated parents: records that a foreign or damaged store could hold."""
    ids = [*layout.segments, 10**9]
    segments = {
        number: replace_segment(segment, parent_ids=tuple(rng.choice(ids) for _ in range(rng.choice((0, 1, 2, 3)))))
        for number, segment in layout.segments.items()
    }
    return replace(layout, segments=MappingProxyType(segments))


@cache
def _policies(guards: bool) -> list[Policy]:
    rng = Random(f"policies {guards}")
    return [DEFAULT if guards else PIP] * 5 + [_policy(rng, guards) for _ in range(120)]


def _policy(rng: Random, guards: bool) -> Policy:
    split = [rng.choice((10_000.0, 1.0, 3.0, 1e-310, 1e308, 50e6)) for _ in range(4)]
    merge = [
        rng.choice((0.0 if rng.random() < 0.2 else limit / 4, limit / 10, limit / 2, math.nextafter(limit, 0)))
        for limit in split
    ]
    base = PIP
    if guards:
        base = replace(
            base,
            **{
                name: rng.random() < 0.6
                for name in (
                    "merge_keeps_consumers",
                    "skip_unsplittable",
                    "normalized_coldness",
                    "cold_since_threshold",
                    "explicit_lineage",
                )
            },
            max_load_age_ms=rng.choice((0, 1_000, 180_000)),
            retry_backoff_ms=rng.choice((0, 1_000, 30_000)),
            merge_headroom=rng.choice((0.0, 0.9, 0.999, 0.1)),
            settle_ms=rng.choice((0, 0, 1_000, 1_800_000, 2**52 * 1000)),
            returns_within_ms=rng.choice((0, 0, 1_000, 3_600_000)),
            hot_key_splits=rng.choice((0, 0, 1, 2, 6)),
            parallel_actions=rng.random() < 0.4,
            urgent_overload=rng.choice((0.0, 1.0, 1.25, 100.0)),
        )
    return replace(
        base,
        enabled=rng.random() < 0.97,
        max_segments=rng.choice((1, 2, 4, 8, 24, 64, 64)),
        min_segments=rng.choice((1, 1, 1, 1, 2, 5)),
        max_dag_depth=rng.choice((0, 1, 2, 3, 10, 10, 10)),
        split_cooldown_ms=rng.choice((0, 1_000, 60_000)),
        merge_cooldown_ms=rng.choice((0, 1_000, 300_000)),
        merge_window_ms=rng.choice((0, 1_000, 300_000)),
        **dict(zip(_THRESHOLDS, [*split, *merge], strict=True)),
    )


_THRESHOLDS = [
    f"{side}_{rate}_threshold"
    for side in ("split", "merge")
    for rate in ("msg_rate_in", "bytes_rate_in", "msg_rate_out", "bytes_rate_out")
]


@cache
def _rates(policy: Policy) -> list[float]:
    near = [0.0, 5e-324, 1e-300, 0.1, 0.2, 0.3, 1.0, 1e308, 1.7e308]
    for limit in (*policy.split_thresholds, *policy.merge_thresholds):
        near += [limit, math.nextafter(limit, 0), min(math.nextafter(limit, math.inf), 1.7e308), limit / 2]
        near += [min(limit * 1.5, 1.7e308), min(limit * 3, 1.7e308)]
    return near


def _age(rng: Random, span: int) -> int:
    kind = rng.random()
    if kind < 0.6:
        return rng.choice((span - 1, span, span + 1, 0, 1, 2 * span, 10 * span + 1))
    if kind < 0.7:
        return -rng.choice((1, span, 10 * span, 2**40))
    return rng.choice((rng.randrange(0, 600_000), 2**41))


SHIPPED = PROFILES["pulsar-5.0"]


def bucket_snapshot(rng: Random, guards: bool = False) -> TopicSnapshot:
    """A random snapshot with entry buckets, in profile `pulsar-5.0`; with `guards` of the other profiles instead."""
    plain = random_snapshot(rng, guards)
    now = plain.now
    if rng.random() < 0.05:
        layout, rates = rng.choice(_crowded()), _rates(plain.policy)
        loads = {
            one.segment_id: load(rng.choices(rates, k=4))
            for one in layout.active
            if one.width == 1 or rng.random() < 0.1
        }
        plain = replace(plain, layout=layout, loads=loads)
    layout = _with_buckets(rng, plain.layout)
    changed = {
        "rebuckets": True if not guards else rng.random() < 0.8,
        "as_shipped": not guards or rng.random() < 0.2,
        "rebucket_cooldown_ms": rng.choice((0, 1_000, 60_000)),
        "split_vs_rebucket_min_msg_rate_in_threshold": rng.choice((0.0, 1.0, 1_000.0, 1e300)),
        "max_entry_buckets_per_segment": rng.choice((1, 2, 4, 7, 16, 1_024, 1_024)),
    }
    policy = replace(plain.policy, **changed)
    capacity, count = sum(segment.bucket_count for segment in layout.active), len(layout.active)
    near = (0, 1, count - 1, count, count + 1, capacity - 1, capacity, capacity + 1, 2 * capacity, 3 * count, 1_000)
    consumers = {
        name: (rng.choice(("STREAM", "STREAM", "STREAM", "CHECKPOINT", "QUEUE")), max(rng.choice(near), 0))
        for name in ("a", "b", "c")[: rng.choice((0, 1, 1, 2, 3))]
    }
    return replace(
        plain,
        layout=layout,
        policy=policy,
        consumers=consumers,
        last_rebucket_at=None if rng.random() < 0.5 else now - _age(rng, policy.rebucket_cooldown_ms),
        failed_action=rng.choice((None, "split", "merge", "rebucket")),
    )


@cache
def _crowded() -> list[SegmentLayout]:
    """Layouts with segments of one hash."""
    found = []
    for side in (0, 1):
        layout = SegmentLayout.create(1, 0)
        while layout.active[-side].width > 1:
            layout = layout.split_segment(layout.active[-side].segment_id, 1)
        found.append(layout)
    return found


def _with_buckets(rng: Random, layout: SegmentLayout) -> SegmentLayout:
    missing, most = rng.choice((0.0, 0.0, 0.3)), rng.choice((1, 2, 4, 8, 20))
    segments = {
        number: segment
        if rng.random() < missing
        else replace_segment(segment, entry_bucket_splits=equal_buckets(rng.randint(1, most)))
        for number, segment in layout.segments.items()
    }
    return replace(layout, segments=MappingProxyType(segments))
