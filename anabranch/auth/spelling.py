"""Canonical spelling of a part of a topic's name, so that scopes and requests compare equal.

Percent triplets are spelling, not content: `a%20b` and `a%2520b` are the same topic. The canonical form
percent-encodes only characters that would not survive in a topic name or in another client's URL: white space, control
characters, `%`, `/`, `?`, `#` and the backslash. So a listed name can be put into a path again, quoted or not.
"""

from urllib.parse import quote, unquote

from schemas.base import MAX_NAME_BYTES

_ENCODED = frozenset("%/?#\\")
MAX_RAW_CHARACTERS = 3 * 4 * MAX_NAME_BYTES
"""Longest raw segment: a name of maximum length with every byte percent-encoded."""
MAX_DECODINGS = 8
"""Rounds of decoding; every client that quotes a name adds one."""


class SpellingError(ValueError):
    """The segment is no part of a name; `is_too_long` tells a long one from an undecodable one."""

    def __init__(self, reason: str, is_too_long: bool = False) -> None:
        super().__init__(reason)
        self.is_too_long = is_too_long


def canonical(segment: str) -> str:
    """Return the canonical form of a raw path segment, equal for every spelling. Raises `SpellingError`."""
    # The cost of a round grows with the length, and anonymous clients choose both: bound them before any work.
    check_length(segment)
    text = decode_once(segment)
    for _ in range(MAX_DECODINGS):
        if (decoded := decode_once(text)) == text:
            break
        text = decoded
    else:
        raise SpellingError(f"a part of the path is percent-encoded more than {MAX_DECODINGS} times: {segment[:200]}")
    return "".join(quote(char, safe="") if char in _ENCODED or _is_unprintable(char) else char for char in text)


def check_length(segment: str) -> None:
    """Raise `SpellingError` if a raw segment is longer than any name can be."""
    if len(segment) > MAX_RAW_CHARACTERS:
        raise SpellingError(f"a part of the path has {len(segment)} characters, at most {MAX_RAW_CHARACTERS}", True)


def decode_once(segment: str) -> str:
    """Return the segment with one level of percent-encoding removed. Raises `SpellingError`."""
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError:
        raise SpellingError(f"the path holds percent-encoded bytes that are not UTF-8: {segment[:200]}") from None


def _is_unprintable(char: str) -> bool:
    return char.isspace() or not char.isprintable()
