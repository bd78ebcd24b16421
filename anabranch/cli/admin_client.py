"""Admin client of the command line, with a message and an exit code for each fault.

Exit codes: 1 refused by the server, 2 wrong usage, 3 no answer. Nothing is retried.
"""

import ssl
from collections.abc import Iterator, Sequence
from typing import TypeVar

import click

from anabranch.admin.answers import Answered, Denied, Fault, Lost, Misdirected, Nonsense, NotConnected, Reply
from anabranch.admin.credentials import Credentials
from anabranch.admin.topics import ScalableTopics
from anabranch.admin.transport import BadAddress, PasswordInAddress, Transport, check_address
from anabranch.admin.watch import NoWatch
from anabranch.cli.exits import Unreachable
from decisions.topic.layout import SegmentLayout
from schemas.printable import printable

TIMEOUT_SECONDS = 30.0
"""Longest silence of the server; a split on a busy Pulsar takes about a second."""
DEADLINE_SECONDS = 600.0
"""Longest time for a whole answer: enough for a long list over a slow line."""

T = TypeVar("T")


class RefusedByServer(click.ClickException):
    """The server refused the call; the message is the server's."""


class ClusterUnreachable(Unreachable):
    """No admin interface answered at the URL; the message names it and a remedy."""


class WatchUnsupported(Exception):
    """The server does not push layouts."""


class AdminInterface:
    """Admin interface of a server: `topics` makes the calls, `expect` unwraps their replies."""

    def __init__(
        self,
        url: str,
        token: str | Credentials | None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        nodes: Sequence[str] = (),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`url` is the base, without `/admin/v2`; `nodes`: other servers that may get the token.

        Raises `click.UsageError` for a bad `url`.
        """
        try:
            check_address(url)
        except PasswordInAddress:
            raise click.UsageError(
                "--url holds a password: give a token by ANABRANCH_CONTROLLER_TOKEN instead"
            ) from None
        except BadAddress as error:
            raise click.UsageError(f"--url: {printable(str(error))}") from None
        transport = Transport(
            url,
            token,
            user_agent="anabranch-topics",
            timeout_seconds=timeout_seconds,
            deadline_seconds=DEADLINE_SECONDS,
            nodes=nodes,
            tls=tls,
        )
        self.url = transport.url
        self.topics = ScalableTopics(transport)

    def expect(self, reply: Reply[T]) -> T:
        """Return the reply's value; raise `RefusedByServer` or `ClusterUnreachable`."""
        if isinstance(reply, Answered):
            return reply.value
        raise self._exception_for(reply)

    def layout(self, topic: str) -> SegmentLayout:
        """Return the current layout. Raises `RefusedByServer` also if the record is no layout."""
        reply = self.topics.layout(topic)
        if isinstance(reply, Nonsense):
            raise RefusedByServer(f"the layout of {printable(topic)} cannot be read: {printable(reply.why)}")
        return self.expect(reply)

    def watch(self, topic: str, since: int) -> Iterator[SegmentLayout]:
        """Yield every layout after epoch `since`, until the server ends the stream.

        Raises `WatchUnsupported` if the server does not push, and `ClusterUnreachable` if it falls silent.
        """
        for pushed in self.topics.watch(topic, since):
            if isinstance(pushed, NoWatch):
                raise WatchUnsupported
            if isinstance(pushed, Nonsense):
                raise RefusedByServer(f"a layout that was pushed cannot be read: {printable(pushed.why)}")
            if not isinstance(pushed, SegmentLayout):
                raise self._exception_for(pushed)
            yield pushed

    def _exception_for(self, fault: Fault) -> click.ClickException:
        match fault:
            case NotConnected():
                return ClusterUnreachable(
                    f"nothing answers at {self.url} ({printable(fault.why)}): start it with anabranch serve "
                    "controller, or say where it is with --url or ANABRANCH_CONTROLLER_URL"
                )
            case Lost():
                hint = "it may have been done, so look before you try again" if fault.may_be_done else "try again"
                return ClusterUnreachable(f"no answer from {self.url} ({printable(fault.why)}): {hint}")
            case Misdirected():
                return ClusterUnreachable(printable(fault.why))
            case Nonsense():
                return ClusterUnreachable(
                    f"{self.url} is no admin interface of scalable topics ({printable(fault.why)}): check --url"
                )
            case Denied(status=401):
                return RefusedByServer(
                    f"{printable(fault.reason or fault.phrase)}; set ANABRANCH_CONTROLLER_TOKEN (401)"
                )
            case _:
                return RefusedByServer(f"{printable(fault.reason or fault.phrase)} ({fault.status})")
