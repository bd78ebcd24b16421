"""Demand from external series: values over days or weeks, as the load of one topic a case.

Stage: one of the sources of a simulation. A series is a CSV file of `timestamp,value`; its demand is linear between the
points, scaled so that its peak is so many split thresholds, with keys that are uniform or Zipf distributed.
"""

import csv
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

import numpy as np

from anabranch.simulation.topics.timeline import STEP_MS, Floats, Ints, Timeline, Window, even_slices
from decisions.topic.layout import SegmentLayout

DAY_MS = 86_400_000
KEYS = 10_000
"""Distinct keys of a topic whose keys are not uniform."""
SLICES = 65_536
MESSAGE_BYTES = 1_000.0
PEAK = 8.0
"""Split thresholds that the peak of a series stands for."""


class Series(NamedTuple):
    """Values over time; instants are milliseconds since 1970, UTC."""

    name: str
    at: Ints
    values: Floats

    def first(self, days: float) -> "Series":
        """Return the first days of a series. Raises `SeriesError` for less than two points."""
        chosen = self.at <= self.at[0] + days * DAY_MS
        if chosen.sum() < 2:
            raise SeriesError(f"{self.name}: the first {days:g} days have less than two points")
        return Series(self.name, self.at[chosen], self.values[chosen])

    def scaled(self, percentile: float = 100.0) -> "Series":
        """Scale the series so that a percentile becomes the peak, in split thresholds. Raises `SeriesError`."""
        if not np.percentile(self.values, percentile) > 0:
            raise SeriesError(f"{self.name}: percentile {percentile:g} of the values is 0, nothing can be scaled to it")
        return self._replace(values=self.values * (PEAK / float(np.percentile(self.values, percentile))))


class SeriesError(ValueError):
    """Invalid series; the message names the line and says what was expected."""


def read_series(path: Path) -> Series:
    """Read `timestamp,value` lines below a header; raise `SeriesError` for anything else."""
    points: list[tuple[int, float]] = []
    with path.open(newline="", encoding="utf-8") as file:
        for number, row in enumerate(csv.reader(file), 1):
            if number == 1 and row and row[0] == "timestamp":
                continue
            try:
                when, value = row[0], float(row[1])
                instant = round(datetime.fromisoformat(when).replace(tzinfo=timezone.utc).timestamp() * 1000)
            except (IndexError, ValueError):
                raise SeriesError(
                    f"{path}:{number}: expected `timestamp,value`, such as 2014-07-01 00:30:00,8127"
                ) from None
            if not 0 <= value < np.inf or (points and instant <= points[-1][0]):
                raise SeriesError(f"{path}:{number}: expected values of 0 or more and instants that ascend")
            points.append((instant, value))
    if len(points) < 2:
        raise SeriesError(f"{path}: expected at least two points")
    return Series(path.stem, np.array([instant for instant, _ in points]), np.array([value for _, value in points]))


def zipf_profile(exponent: float, seed: int) -> Floats:
    """Return the share of the load of each slice of the key space; exponent 0: all the same."""
    if exponent == 0:
        return np.full(SLICES, 1 / SLICES)
    weights = np.arange(1, KEYS + 1) ** -exponent
    slices_of_keys = np.random.default_rng(seed).integers(0, SLICES, KEYS)
    return np.bincount(slices_of_keys, weights / weights.sum(), SLICES).astype(np.float64)


class TraceDemand:
    """Demand from one series: a topic for each distribution of keys."""

    def __init__(self, series: Series, exponents: Sequence[tuple[float, int]], threshold: float) -> None:
        """`exponents`: (Zipf exponent, seed) of each topic; `threshold`: messages a second per split threshold."""
        self.topics: Sequence[str] = [
            f"topic://traces/{series.name}/zipf-{exponent:g}-{seed}" for exponent, seed in exponents
        ]
        self.began_at, self.step_ms = int(series.at[0]), STEP_MS
        self.steps = int(series.at[-1] - series.at[0]) // STEP_MS
        self._series, self._threshold = series, threshold
        self._profiles = [zipf_profile(exponent, seed) for exponent, seed in exponents]

    def layouts(self, indices: range) -> list[SegmentLayout]:
        """See `Source`: one segment."""
        return [SegmentLayout.create(1, self.began_at) for _ in indices]

    def windows(self, indices: range) -> Iterator[Window]:
        """See `Source`; each window is a day."""
        until = self.began_at + self.steps * self.step_ms
        length = max(DAY_MS // self.step_ms, 1) * self.step_ms
        factors, edges = np.array([1.0, MESSAGE_BYTES, 0.0, 0.0]), even_slices(SLICES)
        for begin in range(self.began_at, until, length):
            end = min(begin + length, until)
            instants = np.arange(begin, end, self.step_ms)
            level = np.interp(instants, self._series.at, self._series.values) * self._threshold
            which = np.zeros(len(instants), np.int64)
            yield Window(
                begin,
                end,
                [
                    Timeline(edges, self._profiles[index][None, :, None], instants, which, level, factors)
                    for index in indices
                ],
            )
