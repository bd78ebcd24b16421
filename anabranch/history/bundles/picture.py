"""Picture of a cluster's brokers over time: a band for each broker, an arrow for each moved bundle.

Time runs from left to right; a band is darker where the broker is fuller.

Stage: above `history`. Plain SVG, written here: it opens in any viewer and needs no browser, script or font of its own.
"""

from collections.abc import Iterator
from datetime import datetime, timezone
from xml.sax.saxutils import escape

import numpy as np

from anabranch.history.bundles.history import ClusterHistory, Move, columns
from schemas.printable import printable

WIDTH, LEFT, RIGHT, TOP, BAND, GAP, BOTTOM = 1200, 220, 24, 64, 26, 8, 40
_MOST_COLUMNS, _MARKS = 240, 6
_STYLE = (
    "text{font:12px sans-serif;fill:#000}.title{font-size:16px;font-weight:bold}.quiet{fill:#444}.end{text-anchor:end}"
    ".middle{text-anchor:middle}.full{fill:#1f4e79}.away{fill:#fff;stroke:#999;stroke-dasharray:2 3}"
    ".move{stroke:#b00020;stroke-width:1.5;fill:none}.head{fill:#b00020}"
)


def picture(history: ClusterHistory, is_alone: bool = True) -> str:
    """Return the text of the file; if not alone, an element of a page whose style sheet has the colours."""
    height = TOP + len(history.brokers) * (BAND + GAP) + BOTTOM
    heading = f"{printable(history.cluster)}: {len(history.brokers)} brokers, {len(history.moves)} moves"
    size, look = f'viewBox="0 0 {WIDTH} {height}" role="img"', f"<title>{escape(heading)}</title>"
    head = f'<svg class="brokers" {size}>{look}'
    if is_alone:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" {size}>{look}'
            f'<style>{_STYLE}</style><rect width="{WIDTH}" height="{height}" fill="#fff"/>'
        )
    parts = [
        head,
        f'<text class="title" x="{LEFT}" y="24">{escape(heading)}</text>',
        f'<text class="quiet" x="{LEFT}" y="44">{_time(history.since)} to {_time(history.until)} UTC; a band for each '
        "broker, darker where it is fuller; arrows are bundles that were moved</text>",
        *_bands(history),
        *(_arrow(history, move) for move in history.moves),
        *_marks(history, height),
        "</svg>\n",
    ]
    return "\n".join(parts)


def _bands(history: ClusterHistory) -> Iterator[str]:
    means = columns(history.usage, _MOST_COLUMNS)
    width = (WIDTH - LEFT - RIGHT) / len(means)
    for index, broker in enumerate(history.brokers):
        top = _top(index)
        yield f'<text class="end" x="{LEFT - 8}" y="{top + BAND / 2 + 4:.0f}">{escape(printable(broker))}</text>'
        for column, value in enumerate(means[:, index].tolist()):
            x = f'x="{LEFT + column * width:.1f}" y="{top}" width="{width + 0.3:.1f}" height="{BAND}"'
            if np.isnan(value):
                yield f'<rect class="away" {x}/>'
            else:
                shade = 0.06 + 0.94 * min(max(value, 0.0), 1.0)
                yield f'<rect class="full" {x} fill-opacity="{shade:.2f}"><title>{value:.0%}</title></rect>'


def _arrow(history: ClusterHistory, move: Move) -> str:
    brokers = list(history.brokers)
    source, destination = brokers.index(move.source), brokers.index(move.destination)
    x = _x(history, move.at)
    down = destination > source
    begin, end = _top(source) + BAND / 2, _top(destination) + (0 if down else BAND)
    tip = -6 if down else 6
    caption = escape(
        f"{_time(move.at)} {printable(move.bundle)}: {printable(move.source)} to {printable(move.destination)}"
    )
    return (
        f'<g><title>{caption}</title><path class="move" d="M{x:.1f} {begin:.1f}V{end:.1f}"/>'
        f'<path class="head" d="M{x:.1f} {end:.1f}l-4 {tip}h8z"/></g>'
    )


def _marks(history: ClusterHistory, height: int) -> Iterator[str]:
    for number in range(_MARKS + 1):
        instant = history.since + (history.until - history.since) * number // _MARKS
        x, where = _x(history, instant), "end" if number == _MARKS else "middle"
        yield f'<text class="{where} quiet" x="{x:.1f}" y="{height - 14}">{_time(instant)[5:16]}</text>'


def _top(index: int) -> int:
    return TOP + index * (BAND + GAP)


def _x(history: ClusterHistory, instant: int) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * (instant - history.since) / max(history.until - history.since, 1)


def _time(instant: int) -> str:
    return f"{datetime.fromtimestamp(instant / 1000, timezone.utc):%F %T}"
