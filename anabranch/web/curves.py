"""Loads and layouts of a topic as columns for plots. Pure.

Stage: beside the drawings. A load on record counts until the next one: the job records only what moved.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from anabranch.history.lineage.record import Reach, River
from anabranch.web.past import Sample

MAX_CURVES: Final = 16
"""Segments that have a curve: the fullest ones."""
MAX_POINTS: Final = 2_000
"""Instants of a plot: more than a screen has are no use, and slow."""
NO_CURVES: Final[Mapping[str, Any]] = {"at": [], "segments": [], "active": []}

Silence = tuple[int, int]
"""From when until when the job was not at work, milliseconds."""


def load_columns(
    river: River, loads: Mapping[int, Sequence[Sample]], silences: Sequence[Silence], load_of: Callable[[Sample], float]
) -> dict[str, Any]:
    """Return `at` (seconds), `segments` (`id`, `load` by instant), `active` (their number) and the `window`."""
    reaches = {reach.segment_id: reach for reach in river.reaches}
    peaks = {segment: max(map(load_of, samples)) for segment, samples in loads.items() if segment in reaches}
    chosen = sorted(sorted(peaks, key=lambda segment: -peaks[segment])[:MAX_CURVES])
    instants = _instants(
        river, [reaches[segment] for segment in chosen], [loads[segment] for segment in chosen], silences
    )
    silent = [any(since < at < until for since, until in silences) for at in instants]
    begins = sorted(reach.begins for reach in river.reaches)
    ends = sorted(reach.ends for reach in river.reaches if reach.ends is not None)
    return {
        "at": [at / 1000 for at in instants],
        "segments": [
            {"id": segment, "load": _curve(reaches[segment], loads[segment], instants, silent, load_of)}
            for segment in chosen
        ],
        "active": [
            None if is_silent else bisect_right(begins, at) - bisect_right(ends, at)
            for at, is_silent in zip(instants, silent, strict=True)
        ],
        "window": [river.since / 1000, river.until / 1000],
    }


def _instants(
    river: River, chosen: Iterable[Reach], curves: Iterable[Sequence[Sample]], silences: Sequence[Silence]
) -> list[int]:
    """Return when something is to be drawn: at loads, at changes of the layout, and beside silences."""
    sampled = _thinned(sample.at for curve in curves for sample in curve if river.since <= sample.at <= river.until)
    changes = _thinned(at for at in _changes(river.reaches) if river.since <= at <= river.until)
    edges = {instant for since, until in silences for instant in (since, since + 1, until - 1, until)}
    inside = {at for at in {*_changes(chosen), *edges} if river.since <= at <= river.until}
    return sorted({*sampled, *changes, *inside, river.since, river.until})


def _changes(reaches: Iterable[Reach]) -> Iterator[int]:
    return (instant for reach in reaches for instant in (reach.begins, reach.ends) if instant is not None)


def _thinned(instants: Iterable[int]) -> list[int]:
    distinct = sorted(set(instants))
    return distinct[:: max(1, -(-len(distinct) // MAX_POINTS))]


def _curve(
    reach: Reach,
    samples: Sequence[Sample],
    instants: Sequence[int],
    silent: Sequence[bool],
    load_of: Callable[[Sample], float],
) -> list[float | None]:
    curve: list[float | None] = []
    for at, is_silent in zip(instants, silent, strict=True):
        index = bisect_right(samples, at, key=lambda sample: sample.at)
        # A record of before it was made is of an earlier incarnation of the name. The end belongs to the curve: of a
        # segment with one load on record there would be nothing else to draw.
        is_there = reach.is_there(at) or at == reach.ends
        is_known = index and samples[index - 1].at >= reach.begins and is_there and not is_silent
        curve.append(round(load_of(samples[index - 1]), 4) if is_known else None)
    return curve
