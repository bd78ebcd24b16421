"""Load as one of a few levels, each with a class of the style sheet and words. Pure."""

from __future__ import annotations

from typing import Final

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
