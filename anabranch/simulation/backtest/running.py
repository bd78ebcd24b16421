"""Policies on recorded history, part by part: simulated actions, recorded actions, and confidence.

Stage: above `reading`, `source`, `guesses` and `comparison`, under the command line and `suggesting`. A part is a unit
of work on its own (`backtest_part`), for this process, several, or workers of Spark: the same function.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context

import numpy as np

from anabranch.simulation.backtest.comparison import Agreement, agreement
from anabranch.simulation.backtest.demand import Wanted, wanted_of
from anabranch.simulation.backtest.guesses import (
    Guessed,
    banded,
    ceilings,
    covers,
    divided,
    guessed,
    layouts_of,
    length,
    merged,
    together,
)
from anabranch.simulation.backtest.lives import Action, Life, actions_of, lives_of
from anabranch.simulation.backtest.reading import UNKNOWN_GATES, History, TopicRecord
from anabranch.simulation.backtest.source import RecordedSource, RecordedTopic
from anabranch.simulation.shadow.sides import parts_of
from anabranch.simulation.topics.outcome import REVERSAL_MS, Outcome
from anabranch.simulation.topics.run import simulate
from anabranch.simulation.topics.timeline import Ints
from decisions.autoscale.columns import MERGE, REBUCKET, SPLIT
from decisions.autoscale.policy import Policy, resolve_policy
from decisions.autoscale.snapshot import sharing_consumers, unshared_consumers
from engine.autoscale.topics import ConfiguredPolicy
from schemas.metadata import AutoScalePolicyOverride

RECORD = "on record"
"""The row of what was done."""
RAN = "policy that ran"
COUNTS = (
    "splits",
    "merges",
    "reversals",
    "sealedSegments",
    "segmentHours",
    "minutesOverThreshold",
    "consumerMinutesWaiting",
    "minutesAtCap",
)


@dataclass
class TopicResult:
    """Results of a topic, or of one of its lives, under every policy."""

    topic: str
    hours: float
    counts: dict[str, dict[str, float]]
    """By policy, `RECORD` among them, what `COUNTS` names."""
    guessed: dict[str, Guessed]
    """By policy, without `RECORD`."""
    agreement: Agreement | None = None
    """Of the policy that ran with the record."""


@dataclass
class Backtest:
    """Results of all topics."""

    topics: list[TopicResult] = field(default_factory=list)
    series: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)
    """By policy, now and then: the instant, segments of all topics, topics over a threshold."""

    def totals(self, policy: str) -> dict[str, float]:
        """Return the counts of all topics."""
        return {name: round(sum(one.counts[policy][name] for one in self.topics), 3) for name in COUNTS}

    def confidence(self, policy: str) -> Guessed:
        """Return the assumptions of all topics, weighted by their time."""
        return together(one.guessed[policy] for one in self.topics)

    @property
    def agreement(self) -> Agreement:
        """Return the agreement of the policy that ran with the record, in all topics."""
        found = Agreement()
        for one in self.topics:
            if one.agreement is not None:
                found.add(one.agreement)
        return found

    @property
    def topic_hours(self) -> float:
        """Return the recorded topic-hours."""
        return sum(one.hours for one in self.topics)


Progress = Callable[[str, float], None]
Part = tuple[list[TopicResult], dict[str, list[tuple[int, int, int]]]]


def backtest(
    history: History,
    policies: Mapping[str, ConfiguredPolicy],
    processes: int = 1,
    progress: Progress = lambda *_: None,
    parts: Iterable[Part] | None = None,
) -> Backtest:
    """Backtest every policy and the one that ran. Raises what Delta raises.

    `parts`: results of `backtest_part` from other workers; None: compute them here.
    """
    found = Backtest()
    work = [(history, number, dict(policies)) for number in range(len(history.parts))]
    for number, (topics, series) in enumerate(parts if parts is not None else _done(work, processes), 1):
        found.topics += topics
        for name, points in series.items():
            known = {at: (segments, over) for at, segments, over in found.series.get(name, [])}
            for at, segments, over in points:
                before = known.get(at, (0, 0))
                known[at] = before[0] + segments, before[1] + over
            found.series[name] = [(at, *known[at]) for at in sorted(known)]
        progress(f"{len(found.topics):,} of {history.topics:,} topics", number / len(work))
    return found


def _done(work: Sequence[tuple[History, int, dict[str, ConfiguredPolicy]]], processes: int) -> Iterable[Part]:
    if processes == 1 or len(work) == 1:
        yield from map(_part, work)
        return
    with get_context("spawn").Pool(min(processes, len(work))) as pool:
        yield from pool.imap(_part, work)


def _part(work: tuple[History, int, dict[str, ConfiguredPolicy]]) -> Part:
    return backtest_part(*work)


@dataclass(frozen=True)
class Prepared:
    """Recorded topic, ready to be simulated."""

    record: TopicRecord
    lives: Sequence[Life]
    wanted: Wanted
    ran: Policy
    known: Mapping[str, Ints]
    """Intervals of assumptions that do not depend on the policy."""


def prepared_part(history: History, number: int) -> list[Prepared]:
    """Return the topics of a part. Raises what Delta raises."""
    return [_prepared(history, record) for record in history.part(number)]


def backtest_part(history: History, number: int, policies: Mapping[str, ConfiguredPolicy]) -> Part:
    """Backtest a part's topics under every policy and the one that ran. Raises what Delta raises."""
    every = {RAN: history.ran, **policies}
    results: list[TopicResult] = []
    points: dict[str, dict[int, tuple[int, int]]] = {name: {} for name in every}
    for prepared, outcomes in simulated(history, prepared_part(history, number), every):
        for place, one in enumerate(prepared):
            results.append(_result(history, one, place, outcomes, every))
        for name, outcome in outcomes.items():
            for at, segments, over in _hourly(outcome.series, prepared[0].record.counted_from - history.phase_ms):
                before = points[name].get(at, (0, 0))
                points[name][at] = before[0] + segments, before[1] + over
    return results, {name: [(at, *of[at]) for at in sorted(of)] for name, of in points.items()}


def simulated(
    history: History, prepared: Sequence[Prepared], policies: Mapping[str, ConfiguredPolicy]
) -> Iterable[tuple[list[Prepared], dict[str, Outcome]]]:
    """Yield groups of topics with the same lifetime, and their outcomes by policy."""
    groups: dict[tuple[int, int, int], list[Prepared]] = defaultdict(list)
    for one in prepared:
        groups[one.record.began_at, one.record.counted_from, one.record.ends_at].append(one)
    for (_, counted_from, _), group in groups.items():
        source = RecordedSource(
            [
                RecordedTopic(one.record.name, one.record.announced[0].layout, one.wanted, one.record.consumers)
                for one in group
            ],
            counted_from,
            history.phase_ms,
            history.step_ms,
        )
        yield (
            group,
            simulate(
                source,
                {name: _with_recorded_buckets(one) for name, one in policies.items()},
                yardstick=history.ran,
                tick_ms=history.tick_ms,
                change_threshold=history.change_threshold,
                counted_from=source.counted_from,
            ),
        )


def _with_recorded_buckets(configured: ConfiguredPolicy) -> ConfiguredPolicy:
    """Return a policy that gives topics no entry buckets: they have those of their layouts, or none."""
    known = json.loads(configured.override) if configured.override else {}
    return ConfiguredPolicy(configured.profile, json.dumps({**known, "entryBucketBudget": 0}))


def resolved(configured: ConfiguredPolicy, own: AutoScalePolicyOverride | None = None) -> Policy:
    """Return the policy of a topic with this override."""
    override = configured.override
    cluster = None if override is None else AutoScalePolicyOverride.model_validate_json(override)
    return resolve_policy(configured.profile, cluster, None, own).policy


def violation(configured: ConfiguredPolicy) -> str | None:
    """Return the rule that a policy breaks, which would turn scaling off; None: it breaks none."""
    override = configured.override
    cluster = None if override is None else AutoScalePolicyOverride.model_validate_json(override)
    return resolve_policy(configured.profile, cluster).broken


def _prepared(history: History, record: TopicRecord) -> Prepared:
    ran = resolved(history.ran, record.announced[0].layout.auto_scale_policy)
    lives = lives_of(record.announced, record.ends_at)
    wanted = wanted_of(lives, record.loads, record.began_at, record.ends_at)
    spans = [(begin, end) for begin, end in history.outages]
    if wanted.reported_at - record.began_at > history.outage_ms:
        spans.append((record.began_at, wanted.reported_at))
    ends = [*(at for at, _ in record.held[1:]), record.ends_at]
    spans += [(at, end) for (at, gate), end in zip(record.held, ends, strict=False) if gate in UNKNOWN_GATES]
    gap = merged([np.array(spans, np.int64).reshape(-1, 2)], record.began_at, record.ends_at)
    return Prepared(record, lives, wanted, ran, {"gap": gap, "ceiling": ceilings(wanted, ran)})


def _result(
    history: History,
    one: Prepared,
    place: int,
    outcomes: Mapping[str, Outcome],
    policies: Mapping[str, ConfiguredPolicy],
) -> TopicResult:
    record = one.record
    counts = {RECORD: _counts_on_record(one)}
    guesses: dict[str, Guessed] = {}
    said: Agreement | None = None
    for name, outcome in outcomes.items():
        counts[name] = _counts_of(outcome, place)
        intervals, done = _guesses(history, one, place, outcome, policies[name])
        guesses[name] = guessed(intervals, record.counted_from, record.ends_at)
        if name == RAN:
            said = _agreement(history, one, done, intervals)
    return TopicResult(record.name, (record.ends_at - record.counted_from) / 3_600_000, counts, guesses, said)


def guessed_of(history: History, one: Prepared, place: int, outcome: Outcome, policy: ConfiguredPolicy) -> Guessed:
    """Return the assumptions for a topic under a policy; `place`: index of the topic in the outcome."""
    return guessed(_guesses(history, one, place, outcome, policy)[0], one.record.counted_from, one.record.ends_at)


def _guesses(
    history: History, one: Prepared, place: int, outcome: Outcome, policy: ConfiguredPolicy
) -> tuple[dict[str, Ints], list[Action]]:
    """Return the intervals of assumptions by kind, and the actions of the policy."""
    record = one.record
    mine = _actions_of(outcome, place, history.phase_ms)
    layouts, ranges = layouts_of(record.announced[0].layout, record.began_at, mine)
    uneven, carried = divided(layouts, one.lives, one.wanted.edges, record.ends_at)
    own = record.announced[0].layout.auto_scale_policy
    intervals = {
        **one.known,
        "uneven": uneven,
        "carried": carried,
        "band": banded(one.wanted, resolved(policy, own), one.ran, history.change_threshold),
    }
    return intervals, [Action(at, kind, *of) for (at, kind, _), of in zip(mine, ranges, strict=True)]


def _counts_of(outcome: Outcome, place: int) -> dict[str, float]:
    return {
        "splits": int(outcome.splits[place]),
        "merges": int(outcome.merges[place]),
        "reversals": int(outcome.reversals[place]),
        "sealedSegments": int(outcome.sealed[place]),
        "segmentHours": float(outcome.segment_ms[place]) / 3_600_000,
        "minutesOverThreshold": float(outcome.over_ms[place]) / 60_000,
        "consumerMinutesWaiting": float(outcome.waiting_ms[place]) / 60_000,
        "minutesAtCap": float(outcome.capped_ms[place]) / 60_000,
    }


_KINDS = {SPLIT: "split", MERGE: "merge", REBUCKET: "rebucket"}


def _actions_of(outcome: Outcome, place: int, phase_ms: int) -> list[tuple[int, str, tuple[int, ...]]]:
    actions = outcome.actions
    return [
        (at + phase_ms, _KINDS[action], (segment, other) if action == MERGE else (segment,))
        for at, action, segment, other in zip(
            *(column[(actions.topic == place) & actions.is_applied].tolist() for column in actions[1:5]), strict=True
        )
    ]


def _counts_on_record(one: Prepared) -> dict[str, float]:
    """Return the counts of the recorded actions, by the keys of a simulation."""
    record, begin, end = one.record, one.record.counted_from, one.record.ends_at
    actions = _actions_on_record(record)
    reversals = 0
    made: dict[tuple[int, ...], tuple[str, int]] = {}
    for action in actions_of(record.announced):
        before = made.pop(action.parents, None)
        if action.kind == "rebucket":
            continue
        is_reversal = before is not None and before[0] != action.kind and action.at - before[1] <= REVERSAL_MS
        reversals += is_reversal and action.at >= begin
        made[action.children] = action.kind, action.at
    changes = sorted(
        {
            begin,
            end,
            *(life.begins for life in one.lives),
            *(life.ends for life in one.lives),
            *(change.at for change in record.consumers),
        }
    )
    instants = np.array(changes)
    active = np.zeros(len(instants), np.int64)
    for life in one.lives:
        active += (instants >= life.begins) & (instants < life.ends)
    waiting = _waiting_on_record(one, instants, active)
    lasted = np.diff(np.clip(instants, begin, end), append=end)
    done = Counter(action.kind for action in actions)
    return {
        "splits": done["split"],
        "merges": done["merge"],
        "reversals": reversals,
        "sealedSegments": done["split"] + 2 * done["merge"] + done["rebucket"],
        "segmentHours": float((active * lasted).sum()) / 3_600_000,
        "minutesOverThreshold": length(merged([one.known["ceiling"]], begin, end)) / 60_000,
        "consumerMinutesWaiting": float((waiting * lasted).sum()) / 60_000,
        "minutesAtCap": float(((active >= one.ran.max_segments) * lasted).sum()) / 60_000,
    }


def _waiting_on_record(one: Prepared, instants: Ints, active: Ints) -> Ints:
    """Return the number of consumers without a segment, or an entry bucket of one, at each instant."""
    capacity = active.copy()
    if one.ran.rebuckets:
        for at, layout, _ in one.record.announced:
            capacity[instants >= at] = sum(segment.bucket_count for segment in layout.active)
    waiting = np.zeros(len(instants), np.int64)
    known: dict[str, tuple[str, int]] = {}
    for change in one.record.consumers:
        known[change.subscription] = change.kind, change.sessions
        since = instants >= change.at
        shared, alone = sharing_consumers(known) - capacity[since], unshared_consumers(known) - active[since]
        waiting[since] = np.maximum(np.maximum(shared, alone), 0)
    return waiting


def _actions_on_record(record: TopicRecord) -> list[Action]:
    """Return the recorded actions of the counted time."""
    return [action for action in actions_of(record.announced) if action.at >= record.counted_from]


def _agreement(history: History, one: Prepared, done: Sequence[Action], intervals: Mapping[str, Ints]) -> Agreement:
    record = one.record
    segments = {
        number: (segment.start, segment.end)
        for announced in record.announced
        for number, segment in announced.layout.segments.items()
    }
    decided = [
        (at, kind, min(segments[number][0] for number in part), max(segments[number][1] for number in part), status)
        for at, kind, of, status in record.decided
        if segments.keys() >= set(of)
        for _, part in parts_of(kind, of)
    ]
    other = np.array(history.other_policy, np.int64).reshape(-1, 2)
    whys = {**intervals, "another policy ran": other}

    def held_at(at: int) -> str | None:
        return next((gate for since, gate in reversed(record.held) if since <= at), None)

    def guessed_at(at: int) -> str | None:
        return next((kind for kind, when in whys.items() if kind != "ceiling" and covers(when, at)), None)

    counted = [action for action in done if action.at >= record.counted_from]
    return agreement(_actions_on_record(record), counted, decided, held_at, guessed_at, history.tick_ms)


def _hourly(points: Iterable[tuple[int, int, int]], begin: int) -> list[tuple[int, int, int]]:
    """Return one point an hour from `begin` on, the last in it.

    Groups of topics report at different instants.
    """
    found: dict[int, tuple[int, int]] = {}
    for at, segments, over in points:
        if at < begin:
            continue
        found[at // 3_600_000 * 3_600_000] = segments, over
    return [(at, *found[at]) for at in sorted(found)]
