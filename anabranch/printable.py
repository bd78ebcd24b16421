"""Text from outside on a terminal: names, properties and reasons may hold escape sequences and line breaks."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` in one line with every control character, line break and lone surrogate spelt out as `\\x1b`."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
