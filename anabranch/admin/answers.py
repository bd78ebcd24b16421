"""Results of a call as values: the answer, or a fault and the side responsible.

Stage: first in the client; pure. Callers choose by type: only `Refused` will be the same next time, and only `Lost` and
`ServerFault` leave open whether a change was made.
"""

import json
import re
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

MAX_REASON = 1000
"""Maximum length of a server's recorded reason, in characters."""

T = TypeVar("T")

_AGAIN_LATER = frozenset({408, 425, 429})
# Pulsar 5.0.0 does not map the layout's exceptions: a wrong argument is a 500 with their stack trace.
_WRONG_ARGUMENT = re.compile(r"Stacktrace:\s*java\.lang\.Illegal(?:Argument|State)Exception\b")
_MESSAGE = re.compile(r"^Message: (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Response:
    """Whole response of a server after redirects, not interpreted yet."""

    status: int
    phrase: str
    body: bytes
    url: str
    """Address that responded: the last one after redirects."""
    encoding: str = "utf-8"
    """Encoding of text in the body."""


@dataclass(frozen=True)
class Answered(Generic[T]):
    """Success; `value` is the requested value."""

    value: T


@dataclass(frozen=True)
class Refused:
    """Fault of the caller: the same call will fail again (4xx, or Pulsar's 500 for a wrong argument)."""

    status: int
    reason: str
    """On one line; of a stack trace only its message. Empty if the server gives none."""
    from_interface: bool
    """True if the admin interface itself refused, not a proxy in front of it: a JSON body with a `reason`."""
    phrase: str = ""
    """The server's name of the status."""

    def __str__(self) -> str:
        return f"{self.status} {self.reason}".rstrip()


@dataclass(frozen=True)
class _Fault:
    status: int
    reason: str
    phrase: str = ""

    def __str__(self) -> str:
        return f"{self.status} {self.reason}".rstrip()


class Denied(_Fault):
    """Fault of the credentials: no token, a wrong one, or one whose role does not allow this (401, 403)."""


class ServerFault(_Fault):
    """Fault of the server: any other status. A later call may succeed, and this one may have taken effect."""


@dataclass(frozen=True)
class Nonsense:
    """Fault of the server, or not an admin interface: a success without the requested value."""

    why: str

    def __str__(self) -> str:
        return self.why


@dataclass(frozen=True)
class Misdirected:
    """Fault of the server: a redirect that is not followed. Nothing was done."""

    why: str

    def __str__(self) -> str:
        return self.why


@dataclass(frozen=True)
class NotConnected:
    """Fault of the network, or no server listens: nothing was sent."""

    asked: str
    """Method and address."""
    why: str

    def __str__(self) -> str:
        return f"{self.asked}: no connection: {self.why}"


@dataclass(frozen=True)
class Lost:
    """Fault of the network or the server: the call was sent, and no complete response came in time."""

    asked: str
    """Method and address."""
    why: str
    may_be_done: bool
    """False if it was only a query."""

    def __str__(self) -> str:
        return f"{self.asked}: {self.why}"


Unanswered: TypeAlias = Misdirected | NotConnected | Lost
"""No server has responded to the call."""
Rejection: TypeAlias = Refused | Denied | ServerFault
"""A server responded with a status other than success."""
Fault: TypeAlias = Rejection | Nonsense | Unanswered
Reply: TypeAlias = Answered[T] | Fault


def judge_response(response: Response) -> Answered[bytes] | Rejection:
    """Return the body of a success, or the fault."""
    status, phrase = response.status, response.phrase
    if 200 <= status < 300:
        return Answered(response.body)
    text, is_reason = _answer_text(response)
    message = _MESSAGE.search(text)
    line = " ".join((message[1] if message else text).split())[:MAX_REASON]
    if status in (401, 403):
        return Denied(status, line, phrase)
    if status == 500 and is_reason and _WRONG_ARGUMENT.search(text):
        return Refused(status, line, is_reason, phrase)
    if 400 <= status < 500 and status not in _AGAIN_LATER:
        return Refused(status, line, is_reason, phrase)
    return ServerFault(status, line, phrase)


def _answer_text(response: Response) -> tuple[str, bool]:
    """Return the text of a response, and if it is its `reason`; else a `message` or the body's beginning."""
    try:
        parsed: Any = json.loads(response.body)
    except (ValueError, RecursionError):
        parsed = None
    if isinstance(parsed, dict) and "reason" in parsed:
        reason = parsed["reason"]
        return str(reason), isinstance(reason, str)
    if isinstance(parsed, dict) and "status" in parsed and isinstance(parsed.get("message"), str):
        # Pulsar's web server, for a token that it rejects.
        return parsed["message"], False
    start = response.body[: 4 * MAX_REASON]
    try:
        text = start.decode(response.encoding, "replace")
    except (LookupError, ValueError):  # the server may name any codec of Python's, "hex" too
        text = start.decode("utf-8", "replace")
    return text[:MAX_REASON], False
