"""Inputs of a decision that may be changed one at a time, and the snapshot after each change.

Stage: under `anabranch.history.explain.changes`. Pure. A step is one consumer, one segment, one message or byte per
second, one second of a policy's durations, and one millisecond of time.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from decisions.autoscale.hot_keys import retry_at
from decisions.autoscale.merge_pass import settled_at
from decisions.autoscale.policy import POLICY_FIELDS, Policy, PolicyField
from decisions.autoscale.snapshot import MANAGED, Load, TopicSnapshot
from schemas.metadata import RATES

Changed = Callable[[int], TopicSnapshot | None]
"""The snapshot after so many steps; None: there is no such one."""
RATE_FIELDS = ("msg_rate_in", "bytes_rate_in", "msg_rate_out", "bytes_rate_out")
MOST_TRIED = 8
"""Segments, of each rate and direction, that are tried: those that are nearest to the threshold first."""
_MOST_RATE = 2**53
"""Above this, floats have no single steps."""
_WAIT = 7 * 86_400_000
"""Longest look ahead, milliseconds."""


@dataclass(frozen=True)
class Input:
    """One input, in one direction."""

    path: str
    """By its name in a snapshot: `loads.3.msgRateIn`, `policy.maxSegments`, `now`."""
    value: float | bool | None
    """Current value; None: there is none."""
    changed: Changed
    value_after: Callable[[int], float | bool | None]
    most: int = 1
    """Steps; 1 where it is a matter of yes or no."""
    marks: Sequence[int] = ()
    """Steps at which the answer may turn."""
    instead_of: str | None = None
    """Of several inputs with this name only the first counts that changes the answer; None: it stands alone."""
    segment: int | None = None


def inputs_of(snapshot: TopicSnapshot, segment: int | None = None) -> Iterator[Input]:
    """Yield every input in both directions; if a segment is given, only the load inputs of that one."""
    yield _time(snapshot)
    yield from _reported(snapshot, segment)
    yield from _rates(snapshot, segment)
    yield from _consumers(snapshot)
    if snapshot.in_flight is not None:
        yield _once("inFlight", True, None, replace(snapshot, in_flight=None))
    if snapshot.failures:
        yield _once("failures", snapshot.failures, 0, replace(snapshot, failures=0))
    yield from _policy(snapshot)


def _once(path: str, value: float | bool | None, after: float | bool | None, changed: TopicSnapshot) -> Input:
    return Input(path, value, lambda _: changed, lambda _: after)


# Time


def _time(snapshot: TopicSnapshot) -> Input:
    """Return the input of a later instant, with every known load unchanged and still reported."""
    policy, now = snapshot.policy, snapshot.now
    backoff = [] if snapshot.failed_at is None else [snapshot.failed_at + 3_600_000, snapshot.failed_at]
    backoff += [instant + (policy.retry_backoff_ms << n) for instant in backoff[1:] for n in range(12)]
    starts = [load.window_start(policy) for load in snapshot.loads.values()]
    active = snapshot.layout.active
    ends = [
        *(
            settled_at(snapshot, segment, snapshot.loads.get(segment.segment_id))
            for segment in active
            if policy.settles
        ),
        *(past.at + policy.split_cooldown_ms for past in snapshot.known_pasts.values() if policy.parallel_actions),
        *(retry_at(key, policy) for key in snapshot.hot_keys),
        *(start + policy.merge_window_ms for start in set(starts)),
        *backoff,
        *(instant + policy.split_cooldown_ms for instant in [snapshot.last_split_at] if instant is not None),
        *(instant + policy.merge_cooldown_ms for instant in [snapshot.last_merge_at] if instant is not None),
        *(instant + policy.rebucket_cooldown_ms for instant in [snapshot.last_rebucket_at] if instant is not None),
    ]
    oldest = now - policy.max_load_age_ms
    fresh = {
        number: load
        for number, load in snapshot.loads.items()
        if policy.max_load_age_ms and load.last_seen_at >= oldest
    }

    def changed(step: int) -> TopicSnapshot:
        loads = {number: replace(load, seen_at=load.last_seen_at + step) for number, load in fresh.items()}
        return replace(snapshot, now=now + step, loads={**snapshot.loads, **loads})

    return Input("now", now, changed, lambda step: now + step, _WAIT, [end - now for end in ends])


# Loads


def _reported(snapshot: TopicSnapshot, segment: int | None) -> Iterator[Input]:
    """Yield the inputs that refresh loads too old to be trusted, with their old values."""
    policy = snapshot.policy
    if not policy.max_load_age_ms:
        return
    old = [
        active.segment_id
        for active in snapshot.layout.active
        if (load := snapshot.loads.get(active.segment_id)) is not None
        and load.last_seen_at < snapshot.now - policy.max_load_age_ms
        and segment in (None, active.segment_id)
    ]
    if old:
        seen = {number: replace(snapshot.loads[number], seen_at=snapshot.now) for number in old}
        path = f"loads.{','.join(map(str, old))}.seenAt"
        yield _once(path, None, snapshot.now, replace(snapshot, loads={**snapshot.loads, **seen}))


def _rates(snapshot: TopicSnapshot, segment: int | None) -> Iterator[Input]:
    """Yield each rate, up and down: nearest to its threshold first."""
    active = [
        active_segment.segment_id
        for active_segment in snapshot.layout.active
        if segment in (None, active_segment.segment_id)
    ]
    for rate_index in range(len(RATES)):
        thresholds = (snapshot.policy.split_thresholds[rate_index], snapshot.policy.merge_thresholds[rate_index])
        rates = [
            (0.0 if (load := snapshot.loads.get(number)) is None else load.rates[rate_index], number)
            for number in active
        ]
        highest = max((load.rates[rate_index] for load in snapshot.loads.values()), default=0.0)
        # To be chosen before another one it has to be as far above its threshold as any rate is above its own.
        excess = _highest_overload(snapshot) * thresholds[0]
        turns = [*thresholds, highest, excess]
        most = _ceil(max(turns)) * 2 + 2
        for rate, number in sorted(rates, key=lambda pair: (-pair[0], pair[1]))[:MOST_TRIED]:
            base = math.floor(rate) if rate < _MOST_RATE else None
            if base is not None and most < _MOST_RATE and base < most:
                yield _rate(snapshot, number, rate_index, base, +1, most - base, turns)
        lowered = [pair for pair in rates if pair[0] > 0 and pair[1] in snapshot.loads]
        # What is cold already makes nothing colder, so it comes last.
        lowered.sort(key=lambda pair: (pair[0] < thresholds[1], *pair))
        for rate, number in lowered[:MOST_TRIED]:
            if rate < _MOST_RATE:
                yield _rate(snapshot, number, rate_index, math.ceil(rate), -1, math.ceil(rate), turns)


def _rate(
    snapshot: TopicSnapshot, number: int, rate_index: int, base: int, sign: int, most: int, turns: list[float]
) -> Input:
    field, name = RATE_FIELDS[rate_index], RATES[rate_index]
    load = snapshot.loads.get(number)
    blank = Load(0.0, 0.0, 0.0, 0.0, snapshot.now, snapshot.now) if load is None else load

    def changed(step: int) -> TopicSnapshot:
        after = replace(blank, **{field: float(base + sign * step)})  # type: ignore[arg-type]
        return replace(snapshot, loads={**snapshot.loads, number: after})

    return Input(
        f"loads.{number}.{name}",
        None if load is None else getattr(load, field),
        changed,
        lambda step: base + sign * step,
        most,
        [abs(_ceil(turn) - base) for turn in turns if turn < _MOST_RATE],
        instead_of=f"{name} {sign}",
        segment=number,
    )


def _highest_overload(snapshot: TopicSnapshot) -> float:
    limits = snapshot.policy.split_thresholds
    return max(
        (
            rate / limit
            for load in snapshot.loads.values()
            for rate, limit in zip(load.rates, limits, strict=True)
            if limit > 0
        ),
        default=0.0,
    )


def _ceil(value: float) -> int:
    return math.ceil(min(value, float(_MOST_RATE)))


# Consumers


def _consumers(snapshot: TopicSnapshot) -> Iterator[Input]:
    """Yield more consumers of the largest managed subscription, and a maximum for all subscriptions."""
    managed = {name: count for name, (kind, count) in snapshot.consumers.items() if kind in MANAGED}
    name = max(managed, key=lambda subscription: (managed[subscription], subscription)) if managed else None
    largest = 0 if name is None else managed[name]
    active = len(snapshot.layout.active)
    asked, kind = ("a STREAM subscription", "STREAM") if name is None else (name, snapshot.consumers[name][0])

    def more(step: int) -> TopicSnapshot:
        return replace(snapshot, consumers={**snapshot.consumers, asked: (kind, largest + step)})

    def fewer(step: int) -> TopicSnapshot:
        most = largest - step
        capped = {
            subscription: (its, min(count, most) if its in MANAGED else count)
            for subscription, (its, count) in snapshot.consumers.items()
        }
        return replace(snapshot, consumers=capped)

    marks = [abs(active - largest), abs(snapshot.policy.min_segments - largest)]
    yield Input(
        f"consumers.{asked}",
        largest if managed else None,
        more,
        lambda step: largest + step,
        max(active - largest, 0) + 2,
        marks,
    )
    if largest:
        yield Input("consumers.*", largest, fewer, lambda step: largest - step, largest, marks)


# The policy


def _policy(snapshot: TopicSnapshot) -> Iterator[Input]:
    """Yield each field of the policy, but never that scaling is switched off."""
    policy = snapshot.policy
    for wire, field in POLICY_FIELDS.items():
        value = getattr(policy, field.name)
        if isinstance(value, bool):
            if not (field.name == "enabled" and value):
                changed = _with_policy(snapshot, field, not value)
                if changed is not None:
                    yield _once(f"policy.{wire}", value, not value, changed)
        elif value < _MOST_RATE * field.factor:
            yield from _number(snapshot, wire, field, value)


def _number(snapshot: TopicSnapshot, wire: str, field: PolicyField, value: float) -> Iterator[Input]:
    turns = _turns(snapshot, field)
    unit = field.factor
    for sign, base in ((+1, math.floor(value / unit)), (-1, math.ceil(value / unit))):
        most = base if sign < 0 else max([_ceil(turn / unit) for turn in turns], default=base) - base + 2
        if most <= 0:
            continue

        def changed(step: int, base: int = base, sign: int = sign) -> TopicSnapshot | None:
            return _with_policy(snapshot, field, type(value)((base + sign * step) * unit))

        def after(step: int, base: int = base, sign: int = sign) -> float:
            return base + sign * step

        yield Input(
            f"policy.{wire}",
            value / unit if unit != 1 else value,
            changed,
            after,
            most,
            [abs(_ceil(turn / unit) - base) for turn in turns if turn < _MOST_RATE * unit],
        )


def _turns(snapshot: TopicSnapshot, field: PolicyField) -> list[float]:
    """Return the values of a field at which the answer may change."""
    now, policy = snapshot.now, snapshot.policy
    sides = {
        "split_cooldown_ms": snapshot.last_split_at,
        "merge_cooldown_ms": snapshot.last_merge_at,
        "rebucket_cooldown_ms": snapshot.last_rebucket_at,
    }
    if field.name in sides:
        since = sides[field.name]
        return [] if since is None else [float(now - since)]
    if field.name == "merge_window_ms":
        return [float(now - load.window_start(policy)) for load in snapshot.loads.values()]
    if field.name == "max_load_age_ms":
        return [float(now - load.last_seen_at) for load in snapshot.loads.values()]
    if field.name == "retry_backoff_ms":
        return [] if snapshot.failed_at is None else [float(now - snapshot.failed_at)]
    if field.name in ("max_segments", "min_segments"):
        return [float(len(snapshot.layout.active))]
    if field.name == "max_dag_depth":
        return [float(snapshot.merge_depth(active.segment_id)) for active in snapshot.layout.active]
    rate = field.name.removeprefix("split_").removeprefix("merge_").removesuffix("_threshold")
    return [getattr(load, rate) for load in snapshot.loads.values()] if rate in RATE_FIELDS else []


def _with_policy(snapshot: TopicSnapshot, field: PolicyField, value: float | bool) -> TopicSnapshot | None:
    """Return the snapshot under another policy, as with `decisions decide --policy`; None: it is invalid.

    In the job other merge thresholds also begin every merge window anew. That is left out: a threshold that moves by a
    hair would then "change" each answer that waits for a window, although nothing is colder or warmer by it.
    """
    before = snapshot.policy
    # A broken policy is switched off by its resolution; one that is valid again is not.
    enabled = {} if before.broken is None else {"enabled": True}
    policy: Policy = replace(before, **{**enabled, field.name: value})  # type: ignore[arg-type]
    return None if policy.broken is not None else replace(snapshot, policy=policy)
