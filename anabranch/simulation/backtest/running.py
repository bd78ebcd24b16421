"""Backtest of policies on recorded history, part by part: simulated against recorded actions.

Stage: above `reading`, `source`, `assumptions` and `comparison`, under the command line and `suggesting`. A part is a
unit of work on its own (`backtest_part`), for this process, several, or workers of Spark: the same function.
Longer than other modules because a part, its run and its sums are one computation.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from anabranch.simulation.backtest.assumptions import (
    AssumedTime,
    band_intervals,
    ceiling_intervals,
    covers,
    division_intervals,
    layouts_of,
    length,
    measure_assumptions,
    merged,
    sum_assumptions,
)
from anabranch.simulation.backtest.comparison import Agreement, agreement
from anabranch.simulation.backtest.demand import EstimatedDemand, estimate_demand
from anabranch.simulation.backtest.incarnations import Life, RecordedAction, actions_of, lives_of
from anabranch.simulation.backtest.loads import Progress
from anabranch.simulation.backtest.reading import UNKNOWN_GATES, History, TopicHistory
from anabranch.simulation.backtest.source import RecordedSource, RecordedTopic
from anabranch.simulation.shadow.sides import parts_of
from anabranch.simulation.topics.outcome import REVERSAL_MS, Outcome
from anabranch.simulation.topics.run import simulate
from anabranch.simulation.topics.timeline import Ints
from anabranch.simulation.workers import in_processes
from decisions.autoscale.columns import MERGE, REBUCKET, SPLIT
from decisions.autoscale.policy import Policy, resolve_policy
from decisions.autoscale.snapshot import sharing_consumers, unshared_consumers
from engine.autoscale.topics import ConfiguredPolicy
from schemas.metadata import AutoScalePolicyOverride

RECORD = "on record"
"""Name of the row of recorded actions."""
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
    """Results of a topic, or of one of its incarnations, under every policy."""

    topic: str
    hours: float
    counts: dict[str, dict[str, float]]
    """Counts of `COUNTS` by policy, `RECORD` included."""
    assumed: dict[str, AssumedTime]
    """Assumptions by policy, without `RECORD`."""
    agreement: Agreement | None = None
    """Agreement of the policy that ran with the record."""


@dataclass
class Backtest:
    """Results of all topics."""

    topics: list[TopicResult] = field(default_factory=list)
    series: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)
    """Points by policy: instant, segments of all topics, topics over a threshold."""

    def totals(self, policy: str) -> dict[str, float]:
        """Return the counts of all topics."""
        return {name: round(sum(topic.counts[policy][name] for topic in self.topics), 3) for name in COUNTS}

    def confidence(self, policy: str) -> AssumedTime:
        """Return the assumptions of all topics, weighted by their time."""
        return sum_assumptions(topic.assumed[policy] for topic in self.topics)

    @property
    def agreement(self) -> Agreement:
        """Return the agreement of the policy that ran with the record, in all topics."""
        total = Agreement()
        for topic in self.topics:
            if topic.agreement is not None:
                total.add(topic.agreement)
        return total

    @property
    def topic_hours(self) -> float:
        """Return the recorded topic-hours."""
        return sum(topic.hours for topic in self.topics)


Part = tuple[list[TopicResult], dict[str, list[tuple[int, int, int]]]]


def backtest(
    history: History,
    policies: Mapping[str, ConfiguredPolicy],
    processes: int = 1,
    progress: Progress = lambda *_: None,
    parts: Iterable[Part] | None = None,
) -> Backtest:
    """Backtest every policy and the one that ran, or combine `parts`. Raises as Delta, or `WorkerLost`."""
    results = Backtest()
    count = len(history.parts)
    if parts is None:
        parts = in_processes(partial(backtest_part, history, policies=dict(policies)), range(count), processes)
    for number, (topics, series) in enumerate(parts, 1):
        results.topics += topics
        for name, points in series.items():
            by_hour = {instant: (segments, over) for instant, segments, over in results.series.get(name, [])}
            for instant, segments, over in points:
                before = by_hour.get(instant, (0, 0))
                by_hour[instant] = before[0] + segments, before[1] + over
            results.series[name] = [(instant, *by_hour[instant]) for instant in sorted(by_hour)]
        progress(f"{len(results.topics):,} of {history.topics:,} topics", number / count)
    return results


@dataclass(frozen=True)
class PreparedTopic:
    """Recorded topic, ready to be simulated."""

    record: TopicHistory
    lives: Sequence[Life]
    demand: EstimatedDemand
    ran: Policy
    known: Mapping[str, Ints]
    """Intervals of assumptions that do not depend on the policy."""


def prepare_part(history: History, number: int, names: Collection[str] | None = None) -> list[PreparedTopic]:
    """Return the topics of a part, or those with these names. Raises what Delta raises."""
    return [_prepare_topic(history, record) for record in history.part(number) if names is None or record.name in names]


def backtest_part(history: History, number: int, policies: Mapping[str, ConfiguredPolicy]) -> Part:
    """Backtest a part's topics under every policy and the one that ran. Raises what Delta raises."""
    every = {RAN: history.ran, **policies}
    results: list[TopicResult] = []
    points: dict[str, dict[int, tuple[int, int]]] = {name: {} for name in every}
    for prepared, outcomes in simulated(history, prepare_part(history, number), every):
        results += [_result(history, topic, index, outcomes, every) for index, topic in enumerate(prepared)]
        for name, outcome in outcomes.items():
            for instant, segments, over in _hourly(outcome.series, prepared[0].record.counted_from - history.phase_ms):
                before = points[name].get(instant, (0, 0))
                points[name][instant] = before[0] + segments, before[1] + over
    return results, {
        name: [(instant, *by_hour[instant]) for instant in sorted(by_hour)] for name, by_hour in points.items()
    }


def simulated(
    history: History,
    prepared: Sequence[PreparedTopic],
    policies: Mapping[str, ConfiguredPolicy],
    step_ms: int | None = None,
) -> Iterable[tuple[list[PreparedTopic], dict[str, Outcome]]]:
    """Yield groups of topics of one lifetime with their outcomes by policy; `step_ms` None: the history's."""
    groups: dict[tuple[int, int, int], list[PreparedTopic]] = defaultdict(list)
    for topic in prepared:
        groups[topic.record.began_at, topic.record.counted_from, topic.record.ends_at].append(topic)
    for (_, counted_from, _), group in groups.items():
        source = RecordedSource(
            [
                RecordedTopic(
                    member.record.name, member.record.announced[0].layout, member.demand, member.record.consumers
                )
                for member in group
            ],
            counted_from,
            history.phase_ms,
            step_ms or history.step_ms,
        )
        yield (
            group,
            simulate(
                source,
                {name: _with_recorded_buckets(configured) for name, configured in policies.items()},
                yardstick=history.ran,
                tick_ms=history.tick_ms,
                change_threshold=history.change_threshold,
                delay_ms=history.delay_ms,
                outages=[(begin - history.phase_ms, end - history.phase_ms) for begin, end in history.outages],
                counted_from=source.counted_from,
            ),
        )


def _with_recorded_buckets(configured: ConfiguredPolicy) -> ConfiguredPolicy:
    """Return the policy without a budget of entry buckets: topics keep those of their layouts."""
    override = json.loads(configured.override) if configured.override else {}
    return ConfiguredPolicy(configured.profile, json.dumps({**override, "entryBucketBudget": 0}))


def resolved(configured: ConfiguredPolicy, own: AutoScalePolicyOverride | None = None) -> Policy:
    """Return the policy of a topic with its own override."""
    return resolve_policy(configured.profile, _override_of(configured), None, own).policy


def violation(configured: ConfiguredPolicy) -> str | None:
    """Return the rule that a policy breaks, which would turn scaling off; None: it breaks none."""
    return resolve_policy(configured.profile, _override_of(configured)).broken


def _override_of(configured: ConfiguredPolicy) -> AutoScalePolicyOverride | None:
    override = configured.override
    return None if override is None else AutoScalePolicyOverride.model_validate_json(override)


def _prepare_topic(history: History, record: TopicHistory) -> PreparedTopic:
    ran = resolved(history.ran, record.announced[0].layout.auto_scale_policy)
    lives = lives_of(record.announced, record.ends_at)
    demand = estimate_demand(lives, record.loads, record.began_at, record.ends_at)
    spans = [(begin, end) for begin, end in history.outages]
    if demand.reported_at - record.began_at > history.outage_ms:
        spans.append((record.began_at, demand.reported_at))
    ends = [*(begun_at for begun_at, _ in record.held[1:]), record.ends_at]
    spans += [
        (begun_at, end) for (begun_at, gate), end in zip(record.held, ends, strict=False) if gate in UNKNOWN_GATES
    ]
    gap = merged([np.array(spans, np.int64).reshape(-1, 2)], record.began_at, record.ends_at)
    return PreparedTopic(record, lives, demand, ran, {"gap": gap, "ceiling": ceiling_intervals(demand, ran)})


def _result(
    history: History,
    prepared: PreparedTopic,
    index: int,
    outcomes: Mapping[str, Outcome],
    policies: Mapping[str, ConfiguredPolicy],
) -> TopicResult:
    record = prepared.record
    counts = {RECORD: counts_on_record(prepared)}
    assumptions: dict[str, AssumedTime] = {}
    with_record: Agreement | None = None
    for name, outcome in outcomes.items():
        counts[name] = _counts_of(outcome, index)
        intervals, done = _assumed_intervals(history, prepared, index, outcome, policies[name])
        assumptions[name] = measure_assumptions(intervals, record.counted_from, record.ends_at)
        if name == RAN:
            with_record = _agreement(history, prepared, done, intervals)
    return TopicResult(
        record.name, (record.ends_at - record.counted_from) / 3_600_000, counts, assumptions, with_record
    )


def assumptions_of(
    history: History, prepared: PreparedTopic, index: int, outcome: Outcome, policy: ConfiguredPolicy
) -> AssumedTime:
    """Return the assumptions for a topic under a policy; `index`: of the topic in the outcome."""
    return measure_assumptions(
        _assumed_intervals(history, prepared, index, outcome, policy)[0],
        prepared.record.counted_from,
        prepared.record.ends_at,
    )


def _assumed_intervals(
    history: History, prepared: PreparedTopic, index: int, outcome: Outcome, policy: ConfiguredPolicy
) -> tuple[dict[str, Ints], list[RecordedAction]]:
    """Return the intervals of assumptions by kind, and the actions of the policy."""
    record = prepared.record
    mine = _actions_of(outcome, index, history.phase_ms + history.delay_ms - history.step_ms)
    layouts, ranges = layouts_of(record.announced[0].layout, record.began_at, mine)
    uneven, carried = division_intervals(layouts, prepared.lives, prepared.demand.edges, record.ends_at)
    own = record.announced[0].layout.auto_scale_policy
    intervals = {
        **prepared.known,
        "uneven": uneven,
        "carried": carried,
        "band": band_intervals(prepared.demand, resolved(policy, own), prepared.ran, history.change_threshold),
    }
    return intervals, [
        RecordedAction(acted_at, kind, *range_of_hashes)
        for (acted_at, kind, _), range_of_hashes in zip(mine, ranges, strict=True)
    ]


def _counts_of(outcome: Outcome, index: int) -> dict[str, float]:
    return {
        "splits": int(outcome.splits[index]),
        "merges": int(outcome.merges[index]),
        "reversals": int(outcome.reversals[index]),
        "sealedSegments": int(outcome.sealed[index]),
        "segmentHours": float(outcome.segment_ms[index]) / 3_600_000,
        "minutesOverThreshold": float(outcome.over_ms[index]) / 60_000,
        "consumerMinutesWaiting": float(outcome.waiting_ms[index]) / 60_000,
        "minutesAtCap": float(outcome.capped_ms[index]) / 60_000,
    }


_KINDS = {SPLIT: "split", MERGE: "merge", REBUCKET: "rebucket"}


def _actions_of(outcome: Outcome, index: int, later_ms: int) -> list[tuple[int, str, tuple[int, ...]]]:
    """Return the applied actions of a topic, each `later_ms` after its decision in the simulation's time."""
    actions = outcome.actions
    return [
        (acted_at + later_ms, _KINDS[action], (segment, other) if action == MERGE else (segment,))
        for acted_at, action, segment, other in zip(
            *(column[(actions.topic == index) & actions.is_applied].tolist() for column in actions[1:5]), strict=True
        )
    ]


def counts_on_record(prepared: PreparedTopic) -> dict[str, float]:
    """Return the counts of the recorded actions, by the keys of a simulation."""
    record, begin, end = prepared.record, prepared.record.counted_from, prepared.record.ends_at
    actions = _actions_on_record(record)
    reversals = 0
    open_actions: dict[tuple[int, ...], tuple[str, int]] = {}
    for action in actions_of(record.announced):
        before = open_actions.pop(action.parents, None)
        if action.kind == "rebucket":
            continue
        is_reversal = before is not None and before[0] != action.kind and action.at - before[1] <= REVERSAL_MS
        reversals += is_reversal and action.at >= begin
        open_actions[action.children] = action.kind, action.at
    changes = sorted(
        {
            begin,
            end,
            *(life.begins for life in prepared.lives),
            *(life.ends for life in prepared.lives),
            *(change.at for change in record.consumers),
        }
    )
    instants = np.array(changes)
    active = np.zeros(len(instants), np.int64)
    for life in prepared.lives:
        active += (instants >= life.begins) & (instants < life.ends)
    waiting = _waiting_on_record(prepared, instants, active)
    lasted = np.diff(np.clip(instants, begin, end), append=end)
    done = Counter(action.kind for action in actions)
    return {
        "splits": done["split"],
        "merges": done["merge"],
        "reversals": reversals,
        "sealedSegments": done["split"] + 2 * done["merge"] + done["rebucket"],
        "segmentHours": float((active * lasted).sum()) / 3_600_000,
        "minutesOverThreshold": length(merged([prepared.known["ceiling"]], begin, end)) / 60_000,
        "consumerMinutesWaiting": float((waiting * lasted).sum()) / 60_000,
        "minutesAtCap": float(((active >= prepared.ran.max_segments) * lasted).sum()) / 60_000,
    }


def _waiting_on_record(prepared: PreparedTopic, instants: Ints, active: Ints) -> Ints:
    """Return the number of consumers without a segment, or an entry bucket of one, at each instant."""
    capacity = active.copy()
    if prepared.ran.rebuckets:
        for announced_at, layout, _ in prepared.record.announced:
            capacity[instants >= announced_at] = sum(segment.bucket_count for segment in layout.active)
    waiting = np.zeros(len(instants), np.int64)
    subscriptions: dict[str, tuple[str, int]] = {}
    for change in prepared.record.consumers:
        subscriptions[change.subscription] = change.kind, change.sessions
        since = instants >= change.at
        shared, alone = (
            sharing_consumers(subscriptions) - capacity[since],
            unshared_consumers(subscriptions) - active[since],
        )
        waiting[since] = np.maximum(np.maximum(shared, alone), 0)
    return waiting


def _actions_on_record(record: TopicHistory) -> list[RecordedAction]:
    """Return the recorded actions of the counted time."""
    return [action for action in actions_of(record.announced) if action.at >= record.counted_from]


def _agreement(
    history: History, prepared: PreparedTopic, done: Sequence[RecordedAction], intervals: Mapping[str, Ints]
) -> Agreement:
    record = prepared.record
    segments = {
        number: (segment.start, segment.end)
        for announced in record.announced
        for number, segment in announced.layout.segments.items()
    }
    decided = [
        (
            decided_at,
            kind,
            min(segments[number][0] for number in part),
            max(segments[number][1] for number in part),
            status,
        )
        for decided_at, kind, ids, status in record.decided
        if segments.keys() >= set(ids)
        for _, part in parts_of(kind, ids)
    ]
    other = np.array(history.other_policy, np.int64).reshape(-1, 2)
    whys = {**intervals, "another policy ran": other}

    def held_at(instant: int) -> str | None:
        return next((gate for since, gate in reversed(record.held) if since <= instant), None)

    def assumption_at(instant: int) -> str | None:
        return next((kind for kind, when in whys.items() if kind != "ceiling" and covers(when, instant)), None)

    counted = [action for action in done if action.at >= record.counted_from]
    later_ms = history.delay_ms - history.step_ms
    return agreement(_actions_on_record(record), counted, decided, held_at, assumption_at, history.tick_ms, later_ms)


def _hourly(points: Iterable[tuple[int, int, int]], begin: int) -> list[tuple[int, int, int]]:
    """Return one point an hour from `begin` on, the last in it."""
    by_hour: dict[int, tuple[int, int]] = {}
    for instant, segments, over in points:
        if instant < begin:
            continue
        by_hour[instant // 3_600_000 * 3_600_000] = segments, over
    return [(instant, *by_hour[instant]) for instant in sorted(by_hour)]
