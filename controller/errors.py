"""Refusals of the controller: an HTTP status and one sentence for the caller.

Stage: raised by the service and what it calls, answered by the app. `StartError` is for the person who starts the
process.
"""

from __future__ import annotations


class ControllerError(Exception):
    """An operation was refused; nothing was changed. `reason` goes into the body `{"reason": ...}`."""

    status = 500

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class BadRequest(ControllerError):
    """The request cannot be read: wrong JSON, wrong type, unknown field."""

    status = 400


class Forbidden(ControllerError):
    """The caller is known and may not do this."""

    status = 403


class NotFound(ControllerError):
    """No such topic, segment, subscription or consumer."""

    status = 404


class Conflict(ControllerError):
    """What was asked for does not fit the present state, or somebody else changed it at the same moment."""

    status = 409


class PreconditionFailed(ControllerError):
    """The request is well formed and asks for something that is never allowed."""

    status = 412


class TooMany(ControllerError):
    """More than one client may have. Asking again helps when some of it is done; `retry_seconds` says when to."""

    status = 429

    def __init__(self, reason: str, retry_seconds: int = 1) -> None:
        super().__init__(reason)
        self.retry_seconds = retry_seconds


class Unavailable(ControllerError):
    """Not now: the store is away, or nobody leads the topic at this moment. Asking again helps."""

    status = 503


class NotLeader(ControllerError):
    """Another node leads the topic: ask there (PIP-468 "Request Routing")."""

    status = 307

    def __init__(self, topic: str, url: str) -> None:
        super().__init__(f"the controller of {topic} is at {url}")
        self.url = url


class StartError(Exception):
    """The controller cannot start; the message says what is wrong and what to do."""
