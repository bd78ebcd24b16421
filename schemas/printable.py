"""Text from outside for people to read: names, properties and reasons may hold escape sequences and line breaks.

Neighbours: whatever writes a log as text or prints to a terminal.
"""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` in one line; what a terminal would obey or not show is spelt out as `\\x1b`.

    That is every control and format character, directions of writing (bidi) among them, line breaks, and what is no
    character at all, as lone surrogates.
    """
    return text if text.isprintable() else "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
