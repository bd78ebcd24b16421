"""Table of profiles on weeks of demand: each series with uniform and Zipf keys, static and oracle.

Stage: above `traces` and `run`; printed by `anabranch whatif simulate --trace FILE`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np

from anabranch.simulation.topics.outcome import Outcome
from anabranch.simulation.topics.run import simulate
from anabranch.simulation.topics.timeline import STEP_MS, Floats
from anabranch.simulation.topics.traces import Series, TraceDemand, zipf_profile
from engine.autoscale.topics import ConfiguredPolicy
from schemas.metadata import Profile

_ROUNDING = 1e-9


class HalvingBound(NamedTuple):
    """Fewest segment-hours with the fewest minutes over the threshold, with foresight, of a policy that halves ranges.

    Actions are free and immediate, and halves are joined again. A range is halved if it carries more than a split
    threshold, so a topic needs one segment more than there are such ranges among its halves, their halves, and so on.
    Where one hash alone is over the threshold the topic is over it in any layout; the bound has a single segment then,
    and counts the time.
    """

    segment_hours: float
    minutes_over: float


def levels(series: Series) -> Floats:
    """Return the load at each step, in split thresholds."""
    return np.interp(np.arange(series.at[0], series.at[-1], STEP_MS), series.at, series.values)


def fewest_halves(load: Floats, shares: Floats) -> tuple[Floats, Floats]:
    """Return for each load the fewest segments, and 1 where one hash alone is over the threshold.

    `shares`: of the load, by slices of the key space; their number is a power of two.
    """
    limit = (1 + _ROUNDING) / np.maximum(load, _ROUNDING)
    is_over = shares.max() > limit
    halves, ranges = shares, []
    while len(halves) > 1:
        halves = halves.reshape(-1, 2).sum(axis=1)
        ranges.append(halves)
    split = np.sort(np.concatenate(ranges))
    segments = 1.0 + len(split) - np.searchsorted(split, limit, side="right")
    return np.where(is_over, 1.0, segments), is_over.astype(np.float64)


def halving_bound(series: Series, shares: Floats) -> HalvingBound:
    """Return the bound for a series whose load is spread over the key space by `shares`."""
    segments, is_over = fewest_halves(levels(series), shares)
    return HalvingBound(float(segments.sum()) * STEP_MS / 3_600_000, float(is_over.sum()) * STEP_MS / 60_000)


PROFILES: tuple[Profile, ...] = ("pip-483", "default")
EXPONENTS = (0.0, 0.63, 1.21, 1.51)
"""Of Zipf distributed keys; 0: uniform. The others are the quartiles of 51 public cache traces."""
THRESHOLD = 10_000.0
"""Messages a second: `splitMsgRateInThreshold` of both profiles."""
CLIENTS = 11
"""Of a segment: ten producers and a consumer, which reconnect when it is sealed."""
HEADS = (
    "splits",
    "merges",
    "reversals",
    "segment-h",
    "least h",
    "x oracle",
    "min over",
    "least over",
    "slack %",
    "clients moved",
    "most",
)


@dataclass(frozen=True)
class WeeksRow:
    """Profile on a series with one distribution of keys."""

    series: str
    exponent: float
    profile: str
    splits: int
    merges: int
    reversals: int
    segment_hours: float
    oracle_hours: float
    static_hours: float
    minutes_over: float
    slack: float
    """1 - load / capacity."""
    clients_moved: int
    most_segments: int
    least_hours: float
    """Lower bound of policies that only halve ranges (`anabranch.simulation.topics.weeks`)."""
    least_minutes_over: float

    def to_json(self) -> dict[str, object]:
        """Return the row for scripts."""
        return asdict(self)


def weeks(
    series: Sequence[Series],
    seeds: Sequence[int],
    processes: int = 1,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> Iterator[WeeksRow]:
    """Yield a row for every profile, series and distribution of keys, averaged over the seeds."""
    for done, recorded in enumerate(series):
        progress(done, len(series))
        keys = [(exponent, seed) for exponent in EXPONENTS for seed in (seeds if exponent else seeds[:1])]
        outcomes = simulate(
            TraceDemand(recorded, keys, THRESHOLD),
            {name: ConfiguredPolicy(name, None) for name in PROFILES},
            processes=processes,
        )
        for exponent in EXPONENTS:
            indices = [index for index, (exponent_of_keys, _) in enumerate(keys) if exponent_of_keys == exponent]
            least = np.mean([halving_bound(recorded, zipf_profile(*keys[index])) for index in indices], axis=0)
            yield from (_row(recorded, exponent, name, outcomes[name], indices, least) for name in PROFILES)
    progress(len(series), len(series))


def static_and_oracle(series: Series) -> tuple[float, float, float]:
    """Return three figures in segment-hours: static, oracle, and the load itself.

    Static has the peak's segments all the time, the oracle ceil(load) segments at each instant.
    """
    load = levels(series)
    hours = STEP_MS / 3_600_000
    needed = np.maximum(np.ceil(load - 1e-9), 1.0)
    return float(needed.max() * len(load)) * hours, float(needed.sum()) * hours, float(load.sum()) * hours


def _row(
    series: Series, exponent: float, profile: str, outcome: Outcome, indices: Sequence[int], least: Floats
) -> WeeksRow:
    static, oracle, load = static_and_oracle(series)
    chosen = np.array(indices)
    splits, merges = outcome.splits[chosen].mean(), outcome.merges[chosen].mean()
    hours = float(outcome.segment_ms[chosen].mean()) / 3_600_000
    return WeeksRow(
        series.name,
        exponent,
        profile,
        round(splits),
        round(merges),
        round(outcome.reversals[chosen].mean()),
        hours,
        oracle,
        static,
        float(outcome.over_ms[chosen].mean()) / 60_000,
        1 - load / hours,
        round(outcome.sealed[chosen].mean()) * CLIENTS,
        int(outcome.most_segments[chosen].max()),
        *least.tolist(),
    )


def as_text(rows: Sequence[WeeksRow]) -> str:
    """Return the table in Markdown."""
    lines = ["| demand | keys | profile | " + " | ".join(HEADS) + " |", "|---|---|---|" + "---:|" * len(HEADS)]
    for row in rows:
        keys = f"Zipf {row.exponent:g}" if row.exponent else "uniform"
        cells = [
            f"{row.splits:,}",
            f"{row.merges:,}",
            f"{row.reversals:,}",
            f"{row.segment_hours:,.0f}",
            f"{row.least_hours:,.0f}",
            f"{row.segment_hours / row.oracle_hours:.2f}",
            f"{row.minutes_over:,.1f}",
            f"{row.least_minutes_over:,.1f}",
            f"{100 * row.slack:.0f}",
            f"{row.clients_moved:,}",
            f"{row.most_segments}",
        ]
        demand = f"{row.series} (oracle {row.oracle_hours:,.0f}, static {row.static_hours:,.0f})"
        lines.append(f"| {demand} | {keys} | {row.profile} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
