"""Regular expressions of isolation policies, matched in time that is linear in the text (RE2, by pyarrow).

Stage: under `candidates`, and asked on arrival. Pulsar's are Java's, and a pattern as `(a+)+b` can keep Java's matcher,
or Python's, busy for ever. RE2 knows neither look-around nor back references: such a pattern is refused.
"""

from __future__ import annotations

from functools import lru_cache

from decisions.bundles.configuration import ConfigurationError

MAX_PATTERN = 256
"""Characters of a regular expression."""


def check(pattern: str) -> None:
    """Raises `ConfigurationError` for what is no regular expression, too long, or cannot be matched in linear time."""
    if len(pattern) > MAX_PATTERN:
        raise ConfigurationError(f"isolationPolicies: a pattern of {len(pattern)} characters, at most {MAX_PATTERN}")
    _found(pattern, "")
    matches(pattern, "")


@lru_cache(maxsize=4096)
def matches(pattern: str, text: str) -> bool:
    """Whether a pattern matches all of a text. Raises `ConfigurationError`."""
    return _found(rf"\A(?:{pattern})$", text)


def _found(pattern: str, text: str) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        return bool(pc.match_substring_regex(pa.array([text], pa.string()), pattern)[0].as_py())
    except (ValueError, UnicodeError) as error:
        why = str(error).partition("expression: ")[2] or str(error)
        raise ConfigurationError(
            f"isolationPolicies: {pattern[:80]!r} is no regular expression of RE2, which matches in linear time: {why}"
        ) from None
