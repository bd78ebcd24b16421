"""Current key space of a topic: segments as wide as their hash ranges, filled by load. Pure.

A load is one of a few levels, each with a class of the style sheet and words.
"""

from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

from anabranch.history.picture import SegmentView
from decisions.topic.layout import HASH_SPACE

WIDTH, HEIGHT = 256, 20
LEVELS: Final = {
    "hu": "no load seen",
    "hc": "cold",
    "h1": "below half",
    "h2": "half to full",
    "h3": "nearly full",
    "h4": "over the split threshold",
}
"""Class to words, from nothing to hot."""


def level(load: float | None, is_cold: bool = False) -> str:
    """The class of a load: the largest rate / split threshold."""
    if load is None:
        return "hu"
    if load > 1:
        return "h4"
    if load > 0.8:
        return "h3"
    if load > 0.5:
        return "h2"
    return "hc" if is_cold else "h1"


def strip(segments: Sequence[SegmentView]) -> Markup:
    """An `svg` element with words for those who do not see it."""
    parts = [
        Markup('<svg class="strip" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">').format(
            WIDTH, HEIGHT, told(segments)
        )
    ]
    for segment in segments:
        left, right = segment.start / HASH_SPACE * WIDTH, (segment.end + 1) / HASH_SPACE * WIDTH
        width = max(right - left - 0.6, 0.4)
        high = HEIGHT * min(max(segment.overload or 0.0, 0.06), 1.0)
        parts.append(
            Markup('<g><title>{}</title><rect class="bed" x="{:.2f}" y="0" width="{:.2f}" height="{}"/>').format(
                segment_words(segment), left, width, HEIGHT
            )
            + Markup('<rect class="{}" x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}"/></g>').format(
                level(segment.overload, segment.is_cold), left, HEIGHT - high, width, high
            )
        )
    return Markup("").join([*parts, Markup("</svg>")])


def segment_words(segment: SegmentView) -> str:
    """A segment in words."""
    load = "no load seen" if segment.overload is None else f"load {segment.overload:.0%} of its split threshold"
    return f"segment {segment.id}, hashes {segment.start:04x} to {segment.end:04x}, {load}"


def told(segments: Sequence[SegmentView]) -> str:
    """The strip in words."""
    loads = [segment.overload for segment in segments if segment.overload is not None]
    hot = sum(load > 1 for load in loads)
    full = f", the fullest at {max(loads):.0%} of its split threshold" if loads else ", load not seen yet"
    return f"{len(segments)} segments{full}{f', {hot} above it' if hot else ''}"
