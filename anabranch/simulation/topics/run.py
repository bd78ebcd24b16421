"""Policies on a demand, in virtual time: many topics at once, on one process or several.

Stage: above `timeline` (the demand) and `outcome` (the results); the entry point of a simulation. Topics go in chunks,
so that memory holds a window of a few hundred rows.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from anabranch.simulation.topics.kernel import Kernel
from anabranch.simulation.topics.outcome import Outcome, together
from anabranch.simulation.topics.rows import Rows
from anabranch.simulation.topics.tally import Tally
from anabranch.simulation.topics.timeline import Source
from anabranch.simulation.topics.window import Subscriptions, WindowColumns
from anabranch.simulation.workers import in_processes
from decisions.autoscale.policy import Policy, resolve_policy
from decisions.autoscale.policy_columns import PolicyColumns
from decisions.topic.layout import SegmentLayout
from engine.autoscale.topics import ConfiguredPolicy
from schemas.metadata import AutoScalePolicyOverride

TICK_MS = 60_000
CHANGE_THRESHOLD = 0.25
CHUNK_ROWS = 2_048
"""Topics times policies that are simulated together: enough to make numpy's calls cheap, few enough for the cache."""


class _Job(NamedTuple):
    """Settings of the job and of its executor, keywords of `Kernel`."""

    tick_ms: int
    change_threshold: float
    delay_steps: int
    outages: Sequence[tuple[int, int]]


Progress = Callable[[float, float], None]
"""Called now and then with the finished topic-hours (of every policy), and their total."""


def simulate(
    source: Source,
    policies: Mapping[str, ConfiguredPolicy],
    *,
    yardstick: ConfiguredPolicy | None = None,
    tick_ms: int = TICK_MS,
    change_threshold: float = CHANGE_THRESHOLD,
    delay_ms: int = 0,
    outages: Sequence[tuple[int, int]] = (),
    counted_from: int | None = None,
    processes: int = 1,
    progress: Progress = lambda *_: None,
) -> dict[str, Outcome]:
    """Simulate every policy on the same demand; return the outcomes by name.

    Each topic's own override (in its layout) is laid over all of the policies. `yardstick`: the policy whose split
    thresholds are the capacity of a segment; None: the first one. `tick_ms` and `change_threshold`: the job's.
    `delay_ms`: from a decision to its layout (`delay_in_steps`). `outages`: when the job is down. Time before
    `counted_from`, which is where a window of the source begins, is in `Outcome.actions` and `Outcome.series` only.
    Topics go in chunks, each through all windows of its time; `processes` share the chunks. `KeyboardInterrupt` ends
    the run with the topics that are done (see `Outcome.topics`), and passes through when there is none yet. Raises
    `ValueError` for a demand without topics, or an invalid timeline, and `WorkerLost`.
    """
    if not (count := len(source.topics)):
        raise ValueError("there is no topic in the demand")
    # As many chunks for each process, all of about the same size.
    turns = -(-count // (max(1, CHUNK_ROWS // len(policies)) * processes))
    size = -(-count // (turns * processes))
    chunks = [range(first, min(first + size, count)) for first in range(0, count, size)]
    hours = source.steps * source.step_ms / 3_600_000 * len(policies)
    done: list[list[Outcome]] = []
    job = _Job(tick_ms, change_threshold, delay_in_steps(delay_ms, source.step_ms), outages)
    simulate_chunk = partial(_simulate_chunk, source, list(policies.values()), yardstick, job, counted_from)
    try:
        progress(0.0, count * hours)
        for outcomes in in_processes(simulate_chunk, chunks, processes):
            done.append(outcomes)
            progress(sum(len(part[0].topics) for part in done) * hours, count * hours)
    except KeyboardInterrupt:
        if not done:
            raise
    return {name: together([part[index] for part in done]) for index, name in enumerate(policies)}


def delay_in_steps(delay_ms: int, step_ms: int) -> int:
    """Return the delay of actions in steps: the nearest number, and at least one."""
    return max(1, (delay_ms + step_ms // 2) // step_ms)


def _simulate_chunk(
    source: Source,
    policies: Sequence[ConfiguredPolicy],
    yardstick: ConfiguredPolicy | None,
    job: _Job,
    counted_from: int | None,
    indices: range,
) -> list[Outcome]:
    """Simulate some topics under each of the policies."""
    layouts = source.layouts(indices)
    rows = [
        (resolved(policy, layout), policy_index, topic)
        for policy_index, policy in enumerate(policies)
        for topic, layout in enumerate(layouts)
    ]
    order: dict[Policy, int] = {}
    for policy, *_ in rows:
        order.setdefault(policy, len(order))
    rows.sort(key=lambda row: order[row[0]])
    topic = np.array([topic for *_, topic in rows])
    measure = [resolved(yardstick or policies[0], layout) for layout in layouts]
    tally = Tally(np.array([policy_index for _, policy_index, _ in rows]), topic, source.steps)
    state = Rows(
        layouts,
        topic,
        np.array([order[policy] for policy, *_ in rows]),
        PolicyColumns(list(order), any(layout.has_buckets for layout in layouts)),
        source.began_at,
        source.step_ms,
    )
    capacities = np.array([policy.split_thresholds for policy in measure])[topic]
    kernel = Kernel(state, capacities, tally, **job._asdict())
    subscriptions: list[Subscriptions] = [{} for _ in layouts]
    for window in source.windows(indices):
        if window.begin == counted_from:
            tally.begin((counted_from - source.began_at) // source.step_ms)
        kernel.run(WindowColumns(window, source.began_at, source.step_ms, subscriptions))
    acted, actions = kernel.actions()
    return tally.outcomes(source.topics[indices.start : indices.stop], source.began_at, source.step_ms, acted, actions)


def resolved(policy: ConfiguredPolicy, layout: SegmentLayout) -> Policy:
    """Return the effective policy of a topic, as the job resolves it."""
    override = None if policy.override is None else AutoScalePolicyOverride.model_validate_json(policy.override)
    return resolve_policy(policy.profile, override, None, layout.auto_scale_policy).policy
