"""Key space `0000..ffff` of a topic as a strip of cells: segment width by hash range, shade by load.

Stage: drawing, below `anabranch.local.screen.frame`. Pure. Shade and colour say the same, so the strip reads without
colour too; the colours are those of Okabe and Ito, which all kinds of colour blindness can tell apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from anabranch.history.picture import SegmentView

KEYS = 0x10000


@dataclass(frozen=True)
class Shade:
    """Drawing of a load level, and its name in the legend."""

    glyph: str
    style: str
    meaning: str


UNKNOWN = Shade("·", "grey50", "no load seen")
COLD = Shade("░", "#56b4e9", "cold")
NORMAL = Shade("▒", "#009e73", "normal")
HIGH = Shade("▓", "#e69f00", "over 70 %")
HOT = Shade("█", "#d55e00", "over the split threshold")
SHADES = (UNKNOWN, COLD, NORMAL, HIGH, HOT)
HIGH_ABOVE = 0.7
EDGE = "│"


def shade(segment: SegmentView) -> Shade:
    """The shade of a segment's last accepted load, relative to its split and merge thresholds."""
    if segment.overload is None:
        return UNKNOWN
    if segment.overload > 1:
        return HOT
    if segment.overload > HIGH_ABOVE:
        return HIGH
    return COLD if segment.is_cold else NORMAL


def strip(segments: Sequence[SegmentView], width: int) -> Text:
    """Draw the key space in `width` cells: ids if they fit, and the most overloaded segment of a cell."""
    text = Text(no_wrap=True)
    column = 0
    for segment, first, last in _spread(segments, width):
        if first > column:
            text.append(" " * (first - column))
        look = shade(segment)
        size = last - first
        label = str(segment.id)
        if size == 1:
            text.append(look.glyph, look.style)
        elif size < len(label) + 2:
            text.append(EDGE, "grey70")
            text.append(look.glyph * (size - 1), look.style)
        else:
            text.append(EDGE, "grey70")
            text.append(label, f"bold {look.style}")
            text.append(look.glyph * (size - 1 - len(label)), look.style)
        column = last
    text.append(" " * (width - column))
    return text


def _spread(segments: Sequence[SegmentView], width: int) -> list[tuple[SegmentView, int, int]]:
    """Cells `first..last` (exclusive) of every segment that gets any."""
    owners: list[SegmentView | None] = [None] * width
    for segment in segments:
        first = segment.start * width // KEYS
        for cell in range(first, min(max(first + 1, (segment.end + 1) * width // KEYS), width)):
            owner = owners[cell]
            if owner is None or _overload(segment) > _overload(owner):
                owners[cell] = segment
    spread: list[tuple[SegmentView, int, int]] = []
    for cell, owner in enumerate(owners):
        if owner is None:
            continue
        if spread and spread[-1][0] is owner and spread[-1][2] == cell:
            spread[-1] = (owner, spread[-1][1], cell + 1)
        else:
            spread.append((owner, cell, cell + 1))
    return spread


def _overload(segment: SegmentView) -> float:
    return -1.0 if segment.overload is None else segment.overload


def ruler(width: int) -> Text:
    """The scale above the strips: hashes in hexadecimal at their cells, as many as fit."""
    for marks in (8, 4, 2, 1):
        if width >= marks * 8:
            break
    cells = [" "] * width
    for mark in range(marks):
        cell = mark * width // marks
        cells[cell : cell + 4] = f"{mark * KEYS // marks:04x}"
    if width >= 16:
        cells[-4:] = "ffff"
    return Text("".join(cells[:width]), "grey50", no_wrap=True)


def legend() -> Text:
    """Return the legend of the shades."""
    text = Text(no_wrap=True)
    for look in SHADES[1:]:
        text.append(look.glyph * 2, look.style)
        text.append(f" {look.meaning}   ", "grey62")
    return text
