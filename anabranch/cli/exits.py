"""Exit codes of all commands, in one table (docs/operations.md, "Exit codes").

0 done; nothing found. 130 Ctrl-C.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import click

FOUND = 1
"""Something was found, refused or failed; also a gate that had nothing to look at."""
USAGE = 2
"""Wrong usage or settings; a topic that is not in the lake."""
UNREACHABLE = 3
"""No answer: Kafka, ZooKeeper, the cluster or the lake cannot be reached or read, or the lake has no topic."""
PERSON_NEEDED = 4
"""The job failed, and would fail again until a person has acted: no supervisor should start it."""


class Unreachable(click.ClickException):
    """Something outside gave no answer; the message says what, and where it is configured."""

    exit_code = UNREACHABLE


@contextmanager
def failing_on(*errors: type[Exception]) -> Iterator[None]:
    """Turn these errors, whose text is for a person, into exit code 1."""
    try:
        yield
    except errors as error:
        raise click.ClickException(str(error)) from error
