"""Demand of a topic, estimated from the loads of its segments, by slices that any layout can add up.

Stage: above `incarnations`, under `source`. Pure. Slices end at every hash where a segment ever ended. The load of a
segment is spread over its slices in the proportion that they had as segments of their own, last before or, failing
that, first after; and evenly over the hashes of a slice. Between two records a load is assumed to be constant: it moved
by less than the filter's band. (Assuming a linear change to the next record made predictions of other policies no
better.)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from anabranch.simulation.backtest.incarnations import Life
from anabranch.simulation.topics.timeline import Floats, Ints
from decisions.topic.layout import HASH_SPACE

_NOTHING = 1e-6
"""Rate per second below which a load counts as none."""


class Loads(NamedTuple):
    """The accepted loads of a topic, ascending by `at`."""

    at: Ints
    segment: Ints
    rates: Floats
    """n x 4, per second."""


class DemandSeries(NamedTuple):
    """Load of a segment: `rates[i]` from `at[i]` on."""

    at: Ints
    rates: Floats


@dataclass(frozen=True)
class Piece:
    """Life of a segment, over slices `first` to before `last`."""

    life: Life
    first: int
    last: int
    carried: DemandSeries
    """From the beginning of the life on."""
    shape: Floats
    """slices x 4: the part of each rate that each slice carries; each column adds up to 1."""


@dataclass(frozen=True)
class EstimatedDemand:
    """Estimated demand of a topic, from `began_at` until before `ends_at`."""

    edges: Ints
    pieces: Sequence[Piece]
    began_at: int
    ends_at: int
    reported_at: int
    """Instant of the first accepted load; its value is assumed to have held before, too."""

    def between(self, begin: int, end: int, step_ms: int) -> tuple[Ints, Floats]:
        """Return the instants (n) of changes in a window, and the demand of each slice from then on.

        The demand is n x slices x 4. Changes count from the next step on; the first instant is `begin`.
        """
        alive = [piece for piece in self.pieces if piece.life.begins < end and piece.life.ends > begin]
        instants = [np.array([begin])]
        for piece in alive:
            near = slice(*np.searchsorted(piece.carried.at, (begin, end)))
            instants += [piece.carried.at[near], np.array([piece.life.begins, piece.life.ends])]
        steps = np.unique(-((begin - np.concatenate(instants)) // step_ms))
        changed_at: Ints = begin + steps[(steps >= 0) & (steps * step_ms < end - begin)] * step_ms
        rates = np.zeros((len(changed_at), len(self.edges) - 1, 4))
        for piece in alive:
            lives = slice(*np.searchsorted(changed_at, (piece.life.begins, piece.life.ends)))
            positions = np.searchsorted(piece.carried.at, changed_at[lives], "right") - 1
            rates[lives, piece.first : piece.last] = (
                piece.carried.rates[positions][:, None, :] * piece.shape[None, :, :]
            )
        return changed_at, rates


def estimate_demand(lives: Sequence[Life], loads: Loads, began_at: int, ends_at: int) -> EstimatedDemand:
    """Estimate the demand of a topic; `loads` may begin before `began_at`."""
    edges = np.unique([0, HASH_SPACE, *(life.start for life in lives), *(life.end + 1 for life in lives)])
    widths = np.diff(edges).astype(float)
    spans = [tuple(np.searchsorted(edges, (life.start, life.end + 1)).tolist()) for life in lives]
    raw = [_series(life, loads) for life in lives]
    # Where nothing is ever on record of a slice alone, it has its width's part of the whole.
    first_lives = [series.rates for life, series in zip(lives, raw, strict=True) if life.begins <= lives[0].begins]
    whole = sum((_first_of(rates) for rates in first_lives if len(rates)), np.zeros(4))
    cells = widths[:, None] / HASH_SPACE * np.maximum(whole, _NOTHING)
    for (first, last), series in zip(reversed(spans), reversed(raw), strict=True):
        if len(series.at):
            _lay(cells[first:last], _first_of(series.rates), widths[first:last])
    # What the first segments are taken to carry before their first record has the shape that came later.
    pieces: list[Piece] = []
    open_: list[int] = []
    for index, (life, (first, last), series) in enumerate(zip(lives, spans, raw, strict=True)):
        for other in [earlier for earlier in open_ if lives[earlier].ends <= life.begins]:
            open_.remove(other)
            ended = pieces[other]
            its = slice(ended.first, ended.last)
            _lay(cells[its], ended.carried.rates[-1], widths[its])
        open_.append(index)
        total = cells[first:last].sum(axis=0)
        shape = np.where(
            total > 0,
            cells[first:last] / np.where(total > 0, total, 1.0),
            (widths[first:last] / widths[first:last].sum())[:, None],
        )
        is_first = life.begins <= began_at or not pieces or all(piece.life.begins == life.begins for piece in pieces)
        if not len(series.at):
            series = DemandSeries(np.array([life.begins]), np.zeros((1, 4)) if is_first else total[None, :])
        elif series.at[0] > life.begins:
            before = series.rates[0] if is_first else total
            series = DemandSeries(np.r_[life.begins, series.at], np.r_[before[None, :], series.rates])
        pieces.append(Piece(life, first, last, series, shape))
        _lay(cells[first:last], series.rates[0], widths[first:last])
    return EstimatedDemand(edges, pieces, began_at, ends_at, int(loads.at[0]) if len(loads.at) else ends_at)


def _series(life: Life, loads: Loads) -> DemandSeries:
    """Return the recorded loads of a life; one from before it counts from its beginning."""
    mine = np.flatnonzero(loads.segment == life.segment)
    mine = mine[loads.at[mine] < life.ends]
    instants, rates = np.maximum(loads.at[mine], life.begins), loads.rates[mine]
    last = np.r_[instants[1:] != instants[:-1], np.ones(min(1, len(instants)), bool)]
    return DemandSeries(instants[last], rates[last])


def _first_of(rates: Floats) -> Floats:
    """Return the first value of each row that is not 0."""
    there = rates > 0
    first: Floats = np.where(there.any(axis=0), rates[there.argmax(axis=0), np.arange(4)], 0.0)
    return first


def _lay(cells: Floats, rates: Floats, widths: Floats) -> None:
    """Scale slices to a total load, in their previous proportion; keep the proportion if the load is 0."""
    total, rates = cells.sum(axis=0), np.maximum(rates, _NOTHING)
    even = widths / widths.sum()
    cells[:] = np.where(total > 0, cells * (rates / np.where(total > 0, total, 1.0)), even[:, None] * rates)
