"""Commands of the guides exist as they are written, and every block of them has a test or a reason."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from anabranch.cli.main import cli
from tests.docs.guides import HOME, Block, every_block, sentences

BLOCKS = every_block()
OPERATORS = re.compile(r"\|\|?|&&?|;|>")


def invocations(command: str) -> list[list[str]]:
    """Arguments of every `anabranch` in a line for the shell."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars="|&;>")
    lexer.whitespace_split = True
    parts: list[list[str]] = [[]]
    for token in lexer:
        if OPERATORS.fullmatch(token):
            parts.append([])
        else:
            parts[-1].append(token)
    return [part[1:] for part in parts if part and Path(part[0]).name == "anabranch"]


def parse_usage(arguments: list[str], is_complete: bool) -> None:
    """Raise `click.UsageError` for a command or option that does not exist, or an argument that is missing."""
    command: click.Command = cli
    context = click.Context(cli, info_name="anabranch", resilient_parsing=True)
    while isinstance(command, click.Group):
        _, remaining, _ = command.make_parser(context).parse_args(list(arguments))
        if not remaining:
            return
        name, inner, arguments = command.resolve_command(context, remaining)
        assert inner is not None
        command, context = inner, click.Context(inner, parent=context, info_name=name)
    values, remaining, _ = command.make_parser(context).parse_args(list(arguments))
    if remaining not in ([], ["…"]):
        raise click.UsageError(f"unexpected arguments {remaining}", context)
    for parameter in command.params:
        given = values.get(parameter.name or "")
        if is_complete and parameter.required and not (isinstance(given, str | list | tuple) and given):
            raise click.MissingParameter(ctx=context, param=parameter)
        if isinstance(parameter.type, click.Choice):
            for value in given if isinstance(given, list | tuple) else [given]:
                if isinstance(value, str):
                    parameter.type.convert(value, parameter, context)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{block.page}:{block.line}")
def test_guide_block_uses_existing_options(block: Block):
    for command in block.commands:
        for arguments in invocations(command):
            parse_usage(arguments, is_complete=True)


@pytest.mark.parametrize(("page", "command"), sorted(set(sentences())))
def test_guide_sentence_uses_existing_options(page: str, command: str):
    parse_usage(shlex.split(command)[1:], is_complete=False)


@pytest.mark.parametrize("wrong", ["explain", "explain orders --att 14:05", "whatif simulat", "status now"])
def test_wrong_guide_command_is_refused(wrong: str):
    with pytest.raises(click.UsageError):
        parse_usage(wrong.split(), is_complete=True)


def test_every_guide_block_has_a_test():
    assert [f"{block.page}:{block.line}" for block in BLOCKS if block.not_run] == []


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.run_by], ids=lambda block: block.page)
def test_guide_block_names_the_test_that_runs_it(block: Block):
    assert Path(block.page).name in (HOME / block.run_by).read_text()
