"""Options `--output` and `--file` of reports (text, JSON, HTML), and where the text goes.

Stage: under the commands that compare and simulate, which make the text.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])


def report_options(command: _Command) -> _Command:
    """`--output` and `--file`."""
    output = click.option("--output", type=click.Choice(["text", "json", "html"]), default="text", show_default=True)
    file = click.option("--file", type=click.Path(path_type=Path, dir_okay=False), help="Write there; for html needed.")
    return output(file(command))


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
