"""Options `--output` and `--file` of reports (text, JSON, HTML), and lakes that cannot be read."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from anabranch.cli.exits import Unreachable
from schemas.printable import printable

_UNFOLDED = 10_000
"""Columns of a table that is read by another program."""
_Command = TypeVar("_Command", bound=Callable[..., Any])


def report_options(command: _Command) -> _Command:
    """`--output` and `--file`."""
    output = click.option("--output", type=click.Choice(["text", "json", "html"]), default="text", show_default=True)
    file = click.option("--file", type=click.Path(path_type=Path, dir_okay=False), help="Write there; for html needed.")
    return output(file(command))


def refuse_options(options: Mapping[str, str], purpose: str) -> None:
    """Raise a usage error for a given option that has another purpose; by the names of parameters."""
    context = click.get_current_context()
    for name, option in options.items():
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise click.UsageError(f"{option} is not for {purpose}")


@contextmanager
def reading_lake(lake: str, *refusals: type[Exception], action: str = "read") -> Iterator[None]:
    """Turn errors into exit codes: 1 for `refusals`, 2 for an unknown topic, 3 for a lake without any."""
    from deltalake.exceptions import DeltaError

    from anabranch.query.topics import NoTopics, UnknownTopic
    from lake.tables import LakeError

    try:
        yield
    except BrokenPipeError:
        raise
    except (LakeError, NoTopics) as error:
        raise Unreachable(printable(str(error))) from error
    except UnknownTopic as error:
        raise click.UsageError(printable(str(error))) from error
    except refusals as error:
        raise click.ClickException(printable(str(error))) from error
    except (DeltaError, OSError) as error:
        # Errors of Delta go on with a stack of Rust.
        reason = printable(str(error).strip().partition("\n")[0])
        raise Unreachable(f"the lake {lake} cannot be {action}: {reason}") from error


def print_table(table: object) -> None:
    """Print a table of rich: as wide as the terminal; in a pipe or a file one line a row, unfolded."""
    from rich.console import Console

    Console(highlight=False, width=None if sys.stdout.isatty() else _UNFOLDED).print(table)


def counting(noun: str) -> Callable[[float, float], None]:
    """Return a function that shows on one line of a terminal how many are done, of how many."""
    if not sys.stderr.isatty():
        return lambda *_: None

    def show(done: float, total: float) -> None:
        click.echo(f"\r{done:,.0f} of {total:,.0f} {noun}\x1b[K", nl=done >= total, err=True)

    return show


def check_report(output: str, file: Path | None) -> None:
    """Raise a usage error, before any work, when a page has no file to be in."""
    if output == "html" and file is None:
        raise click.UsageError("--output html needs --file")


def write_report(text: str, file: Path | None, about: str) -> None:
    """Print a report, or write it to a file and say so on stderr, with its subject."""
    if file is None:
        click.echo(text, nl=False)
        return
    try:
        file.write_text(text)
    except OSError as error:
        raise click.ClickException(f"cannot write {file}: {error.strerror}") from error
    click.echo(f"{file}: {about}", err=True)
