"""Picture of the river: time from left to right, the key space from top to bottom, an arm per segment.

Stage: above `record`. Plain SVG, written here: it opens in any viewer and needs no browser, script or font of its own.
Water is grey and banks are black, so that it is legible without colours. An island opens at a split, and closes at a
merge.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from xml.sax.saxutils import escape

from anabranch.history.lineage.record import Reach, River, Turn
from decisions.topic.layout import HASH_SPACE
from schemas.printable import printable

WIDTH, HEIGHT = 1200, 640
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 64, 56
ISLAND = 5.0
"""Half the width of the land between two arms, pixels; less where an arm is narrow."""
BEND = 22.0
"""Over how many pixels an island opens or closes; less where an arm is short."""
_NARROWEST = 9.0
"""Height of an arm, pixels, below which it has no number."""
STEPS = (
    1,
    2,
    5,
    10,
    15,
    30,
    60,
    120,
    300,
    600,
    900,
    1800,
    3600,
    7200,
    10_800,
    21_600,
    43_200,
    86_400,
    172_800,
    604_800,
    1_209_600,
    2_592_000,
    7_776_000,
    31_536_000,
)
"""Seconds between two marks of the time scale."""
_STYLE = (
    "text{font:12px sans-serif;fill:#000}.arm{fill:#d9e2ea}.bank{fill:none;stroke:#000}.mark{stroke:#000;fill:#000}"
    ".grid{stroke:#888;stroke-width:.5;stroke-dasharray:2 4}.title{font-size:16px;font-weight:bold}.quiet{fill:#444}"
    ".number{text-anchor:middle;dominant-baseline:central}.middle{text-anchor:middle}.end{text-anchor:end}"
)


def picture(river: River) -> str:
    """Return the text of the file."""
    coordinates = Places(river)
    splits, merges = (sum(turn.kind == kind for turn in river.turns) for kind in ("split", "merge"))
    heading = f"{printable(river.topic)}: {splits} splits, {merges} merges"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'role="img"><title>{escape(heading)}</title><style>{_STYLE}</style>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text class="title" x="{LEFT}" y="24">{escape(heading)}</text>',
        f'<text class="quiet" x="{LEFT}" y="44">{_time(river.since)} to {_time(river.until)} UTC; hashes from top to '
        "bottom, time from left to right; ▸ split, ◂ merge, numbers are segments</text>",
        *_scales(river, coordinates),
        *(_arm(reach, river, coordinates) for reach in river.reaches),
        *_numbers(river.reaches, coordinates),
        *_marks(river.turns, coordinates),
        "</svg>\n",
    ]
    return "\n".join(parts)


class Places:
    """Coordinates of instants and hashes, pixels."""

    def __init__(self, river: River) -> None:
        self._since, self._span = river.since, max(river.until - river.since, 1)
        self.until = river.until
        # Which hashes an arm begins at, and when: so it is known whether land lies between it and its neighbour.
        self._starts: dict[int, list[Reach]] = {}
        for reach in river.reaches:
            self._starts.setdefault(reach.start, []).append(reach)
        self._land: dict[tuple[int, int], float] = {}
        for reach in river.reaches:
            room = min(ISLAND, (self.y(reach.end + 1) - self.y(reach.start)) * 0.2)
            for bank in (reach.start, reach.end + 1):
                self._land[reach.life, bank] = min(room, self._land.get((reach.life, bank), ISLAND))
        self._parents = {(reach.life, parent) for reach in river.reaches for parent in reach.parents}

    def x(self, instant: int) -> float:
        return LEFT + min(max((instant - self._since) / self._span, 0.0), 1.0) * (WIDTH - LEFT - RIGHT)

    def y(self, hash_value: int) -> float:
        return TOP + hash_value / HASH_SPACE * (HEIGHT - TOP - BOTTOM)

    def land(self, hash_value: int, life: int) -> float:
        """Return half the width of the land at a hash: that of the narrowest arm that ever meets it."""
        return self._land[life, hash_value]

    def goes_on(self, reach: Reach) -> bool:
        """Return True if the hashes continue in other segments: a deleted topic's do not."""
        return (reach.life, reach.segment_id) in self._parents

    def is_bank(self, hash_value: int, instant: int, life: int, *, before: bool) -> bool:
        """Return True if two arms meet at a hash, just before an instant or at it."""
        if hash_value in (0, HASH_SPACE):
            return True
        for reach in self._starts.get(hash_value, ()):
            if reach.life != life:
                continue
            if before and reach.begins < instant and (reach.ends is None or reach.ends >= instant):
                return True
            if not before and reach.is_there(instant):
                return True
        return False


def outline(reach: Reach, until: int, coordinates: Places) -> tuple[str, str]:
    """Return the paths of a segment: its water, and its two banks."""
    ends = until if reach.ends is None else reach.ends
    left = coordinates.x(reach.begins)
    right = max(coordinates.x(ends), left + 0.5)
    bend = min(BEND, (right - left) / 2)
    columns = (left, left + bend, right - bend, right)
    upper = _bank(reach.start, +1, reach, ends, columns, coordinates)
    lower = _bank(reach.end + 1, -1, reach, ends, columns, coordinates)
    (x0, y0), (x3, y3) = upper[0], lower[3]
    water = f"M{x0:.1f} {y0:.1f}{_along(upper)}L{x3:.1f} {y3:.1f}{_along(lower[::-1])}Z"
    banks = f"M{x0:.1f} {y0:.1f}{_along(upper)}M{lower[0][0]:.1f} {lower[0][1]:.1f}{_along(lower)}"
    return water, banks


def _arm(reach: Reach, river: River, coordinates: Places) -> str:
    """Return the elements of a segment: its water, and its two banks."""
    water, banks = outline(reach, river.until, coordinates)
    still = "still active" if reach.ends is None else f"to {_time(reach.ends)}"
    title = f"segment {reach.segment_id}, hashes {reach.start:04x}-{reach.end:04x}, {_time(reach.begins)} {still}"
    name = f"segment-{reach.life}-{reach.segment_id}"
    arm = f'<path class="arm" id="{name}" d="{water}"><title>{escape(title)}</title></path>'
    return f'{arm}<path class="bank" d="{banks}"/>'


_Bank = tuple[tuple[float, float], ...]


def _bank(
    hash_value: int,
    inwards: int,
    reach: Reach,
    ends: int,
    columns: tuple[float, float, float, float],
    coordinates: Places,
) -> _Bank:
    """Return the four points of a bank, begin, two bends and end, at these `columns` from the left."""
    y, land = coordinates.y(hash_value), coordinates.land(hash_value, reach.life)
    was = land if not reach.parents or coordinates.is_bank(hash_value, reach.begins, reach.life, before=True) else 0.0
    stays = not coordinates.goes_on(reach) or coordinates.is_bank(hash_value, ends, reach.life, before=False)
    return (
        (columns[0], y + inwards * was),
        (columns[1], y + inwards * land),
        (columns[2], y + inwards * land),
        (columns[3], y + inwards * (land if stays else 0.0)),
    )


def _along(bank: _Bank) -> str:
    """Return the path from the first point of a bank to the last, in curves."""
    (x0, y0), (x1, y1), (x2, y2), (x3, y3) = bank
    return f"{_curve(x0, y0, x1, y1)}L{x2:.1f} {y2:.1f}{_curve(x2, y2, x3, y3)}"


def _curve(x0: float, y0: float, x1: float, y1: float) -> str:
    middle = (x0 + x1) / 2
    return f"C{middle:.1f} {y0:.1f} {middle:.1f} {y1:.1f} {x1:.1f} {y1:.1f}"


def _numbers(reaches: Sequence[Reach], coordinates: Places) -> Iterator[str]:
    for reach in reaches:
        left, right = (
            coordinates.x(reach.begins),
            coordinates.x(coordinates.until if reach.ends is None else reach.ends),
        )
        top, bottom = coordinates.y(reach.start), coordinates.y(reach.end + 1)
        if bottom - top >= _NARROWEST and right - left >= 8 + 7 * len(str(reach.segment_id)):
            size = min(12.0, bottom - top - 2)
            yield (
                f'<text class="number" style="font-size:{size:.0f}px" x="{(left + right) / 2:.1f}" '
                f'y="{(top + bottom) / 2:.1f}">{reach.segment_id}</text>'
            )


def _marks(turns: Sequence[Turn], coordinates: Places) -> Iterator[str]:
    """Yield a triangle above the key space for each split and merge, opening or closing as it does."""
    y = TOP - 7
    for turn in turns:
        if turn.kind not in ("split", "merge"):
            continue
        x = coordinates.x(turn.at)
        points = f"{x:.1f},{y - 4} {x:.1f},{y + 4} {x + (6 if turn.kind == 'split' else -6):.1f},{y}"
        parents, children = (" and ".join(map(str, ids)) for ids in (turn.parents, turn.children))
        title = f"{turn.kind} {parents} into {children} at {_time(turn.at)} UTC, {turn.reason or 'by somebody else'}"
        yield f'<polygon class="mark" points="{points}"><title>{escape(title)}</title></polygon>'


def _scales(river: River, coordinates: Places) -> Iterator[str]:
    bottom = HEIGHT - BOTTOM
    for hash_value in range(0, HASH_SPACE + 1, HASH_SPACE // 8):
        y = coordinates.y(hash_value)
        name = f"{min(hash_value, HASH_SPACE - 1):04x}"
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="end quiet" x="{LEFT - 8}" y="{y + 4:.1f}">{name}</text>'
    span = max((river.until - river.since) / 1000, 1)
    step = next((seconds for seconds in STEPS if span / seconds <= 10), STEPS[-1]) * 1000
    form = "%m-%d %H:%M" if span > 86_400 else "%H:%M" if step >= 60_000 else "%H:%M:%S"
    instant = -(-river.since // step) * step
    while instant <= river.until:
        x = coordinates.x(instant)
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}"/>'
        yield f'<text class="middle quiet" x="{x:.1f}" y="{bottom + 18}">{_time(instant, form)}</text>'
        instant += step
    yield f'<text class="middle quiet" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{bottom + 38}">UTC</text>'


def _time(instant: int, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    return datetime.fromtimestamp(instant / 1000, timezone.utc).strftime(form)
