"""One canonical name for every spelling of a topic in a URL (design "REST").

Stage: between the raw path of a request and the service. Percent triplets are spelling, not content: `a%20b` and
`a%2520b` are the same topic. The canonical form percent-encodes only characters that would not survive in a topic name
or in another client's URL: white space, control characters, `%`, `/`, `?`, `#` and the backslash. So a listed name can
be put into a path again, quoted or not.
"""

from __future__ import annotations

from urllib.parse import quote, unquote

from controller.errors import BadRequest, PreconditionFailed
from schemas.base import MAX_NAME_BYTES
from schemas.ids import topic_name

_ENCODED = frozenset("%/?#\\")
MAX_RAW_CHARACTERS = 3 * 4 * MAX_NAME_BYTES
"""Longest raw segment: a name of maximum length with every byte percent-encoded."""
MAX_DECODINGS = 8
"""Rounds of decoding; every client that quotes a name adds one."""


def topic_of_path(tenant: str, namespace: str, topic: str) -> str:
    """Return `topic://tenant/namespace/name` of three raw path segments.

    Raises `ControllerError` if invalid.
    """
    name = topic_name(*(canonical_segment(part) for part in (tenant, namespace, topic)))
    if len(name) > MAX_NAME_BYTES:
        raise PreconditionFailed(f"the topic's name has {len(name)} characters, at most {MAX_NAME_BYTES}")
    return name


def namespace_of_path(tenant: str, namespace: str) -> str:
    """Return `tenant/namespace` of two raw path segments."""
    name = f"{canonical_segment(tenant)}/{canonical_segment(namespace)}"
    if len(name) > MAX_NAME_BYTES:
        raise PreconditionFailed(f"the namespace has {len(name)} characters, at most {MAX_NAME_BYTES}")
    return name


def plain_name(segment: str, what: str) -> str:
    """Return the name of a subscription or consumer from a raw path segment: decoded once, like Pulsar."""
    name = _decoded(segment)
    if not 0 < len(name) <= MAX_NAME_BYTES:
        raise PreconditionFailed(f"the {what}'s name must have 1 to {MAX_NAME_BYTES} characters, got {len(name)}")
    return name


def canonical_segment(segment: str) -> str:
    """Return the canonical form of one raw path segment of a topic's name; equal for every spelling of it."""
    # The cost of a round grows with the length, and anonymous clients choose both: bound them before any work.
    if len(segment) > MAX_RAW_CHARACTERS:
        raise PreconditionFailed(f"a part of the path has {len(segment)} characters, at most {MAX_RAW_CHARACTERS}")
    text = _decoded(segment)
    for _ in range(MAX_DECODINGS):
        if (decoded := _decoded(text)) == text:
            break
        text = decoded
    else:
        raise BadRequest(f"a part of the path is percent-encoded more than {MAX_DECODINGS} times: {segment[:200]}")
    return "".join(quote(char, safe="") if char in _ENCODED or _unprintable(char) else char for char in text)


def _decoded(segment: str) -> str:
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError:
        raise BadRequest(f"the path holds percent-encoded bytes that are not UTF-8: {segment[:200]}") from None


def _unprintable(char: str) -> bool:
    return char.isspace() or not char.isprintable()
