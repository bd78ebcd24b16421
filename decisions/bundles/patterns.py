"""Regular expressions of isolation policies, matched in linear time (RE2, by pyarrow).

Stage: under `candidates`. Pulsar's are Java's, and a pattern as `(a+)+b` can keep Java's matcher, or Python's, busy for
ever. RE2 knows neither look-around nor back references. A pattern with these is inexact: it is widened to one that
matches all that Java's does, and more. Look-around only restricts, so it is left out; a back reference becomes `.*`.
Whoever asks about an inexact pattern must treat a match as "perhaps".
"""

import re
from functools import lru_cache
from typing import NamedTuple

MAX_PATTERN = 1024
"""Characters of a regular expression."""
_EVERYTHING = r"(?s:.*)"
_LOOK_AROUND = ("(?=", "(?!", "(?<=", "(?<!")
_TOKEN = re.compile(r"\\Q.*?(?:\\E|\Z)|\\k<\w+>|\\[1-9]\d?|\\.|\(\?<?[=!]|\(\?>|(?<=[*+?}])\+|\[\^?\]?|.", re.DOTALL)
"""Parts that `_widen_pattern` reads: quotations, back references, escapes, groups, possessive signs, classes."""


class Pattern(NamedTuple):
    """A pattern as it is matched."""

    expression: str
    """In the words of RE2."""
    inexact: str | None
    """Why it matches more than Java's would; None: it matches the same."""


@lru_cache(maxsize=4096)
def read_pattern(pattern: str) -> Pattern:
    """Translate a pattern of Java for RE2."""
    if len(pattern) > MAX_PATTERN:
        return Pattern(_EVERYTHING, f"{len(pattern)} characters, at most {MAX_PATTERN}")
    fault, widened = _pattern_fault(pattern), _widen_pattern(pattern)
    if fault is None and widened is not None and "&&" not in pattern:
        return Pattern(pattern, None)
    if "&&" in pattern or widened is None or _pattern_fault(widened) is not None:
        widened = _EVERYTHING
    return Pattern(widened, fault or "a class of characters inside of another")


def inexact_reason(pattern: str) -> str | None:
    """Return why a pattern cannot be matched as Java would, or None."""
    return read_pattern(pattern).inexact


@lru_cache(maxsize=4096)
def matching_texts(pattern: str, texts: tuple[str, ...]) -> frozenset[str]:
    """Return those of many texts that a pattern matches as a whole, or may match."""
    import pyarrow as pa
    import pyarrow.compute as pc

    is_matching = pc.match_substring_regex(pa.array(texts, pa.string()), rf"\A(?:{read_pattern(pattern).expression})\z")
    return frozenset(text for text, is_match in zip(texts, is_matching.to_pylist(), strict=True) if is_match)


def _widen_pattern(pattern: str) -> str | None:
    """Leave out look-around, back references and the possessive; None where groups do not close.

    The text is used only for a pattern that RE2 refuses, and counts as inexact even if it matches the same.
    """
    tokens, position = list[str](), 0
    while position < len(pattern):
        part = _TOKEN.match(pattern, position)
        assert part is not None
        token, position = part[0], part.end()
        if token in _LOOK_AROUND:
            if (end := _end_of_group(pattern, position)) is None:
                return None
            position = end
            token = "(?:)"  # a quantifier may follow
        elif token.startswith("\\k<") or (token.startswith("\\") and token[1:].isdigit() and token != "\\0"):
            token = "(?:.*)"
        elif token == "(?>":
            token = "(?:"
        elif token == "+" and tokens and tokens[-1] in ("*", "+", "?", "}"):
            token = ""
        elif token.startswith("["):
            if (end := _end_of_class(pattern, position)) is None:
                return None
            token, position = token + pattern[position:end], end
        tokens.append(token)
    return "".join(tokens)


def _end_of_group(pattern: str, position: int) -> int | None:
    depth = 1
    while position < len(pattern):
        part = _TOKEN.match(pattern, position)
        assert part is not None
        token, position = part[0], part.end()
        if token.startswith("["):
            if (end := _end_of_class(pattern, position)) is None:
                return None
            position = end
        depth += token.startswith("(") - (token == ")")
        if depth == 0:
            return position
    return None


def _end_of_class(pattern: str, position: int) -> int | None:
    """Return the index after an open class; None if it does not close, or nests another (Java only)."""
    while position < len(pattern):
        if pattern[position] == "[":
            return None
        if pattern[position] == "]":
            return position + 1
        position += 2 if pattern[position] == "\\" else 1
    return None


def _pattern_fault(pattern: str) -> str | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    for expression in (pattern, rf"\A(?:{pattern})\z"):
        try:
            pc.match_substring_regex(pa.array([""], pa.string()), expression)
        except (ValueError, UnicodeError) as error:
            return str(error).partition("expression: ")[2] or str(error)
    return None
