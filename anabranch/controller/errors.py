"""Refusals of the controller: an HTTP status and one sentence for the caller.

`StartError` is for the person who starts the process.
"""


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
    """The caller is known and lacks permission."""

    status = 403


class NotFound(ControllerError):
    """No such topic, segment, subscription or consumer."""

    status = 404


class Conflict(ControllerError):
    """The request does not fit the current state, or another change was made at the same moment."""

    status = 409


class PreconditionFailed(ControllerError):
    """The request is well formed but asks for something that is never allowed."""

    status = 412


class TooMany(ControllerError):
    """A limit per client is exceeded. Retry after `retry_seconds`, when earlier work is done."""

    status = 429

    def __init__(self, reason: str, retry_seconds: int = 1) -> None:
        super().__init__(reason)
        self.retry_seconds = retry_seconds


class Unavailable(ControllerError):
    """The store is unreachable, or no node leads the topic at this moment. Retry later."""

    status = 503


class NotLeader(ControllerError):
    """Another node leads the topic: ask there (PIP-468 "Request Routing")."""

    status = 307

    def __init__(self, topic: str, url: str) -> None:
        super().__init__(f"the controller of {topic} is at {url}")
        self.url = url


class StartError(Exception):
    """The controller cannot start; the message says what is wrong and what to do."""
