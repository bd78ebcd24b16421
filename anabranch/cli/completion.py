"""Completion scripts for shells, made from the tree of commands.

They start no Python: a completion takes milliseconds.

Stage: printed by `anabranch config completion`. Names of topics are not completed: that would read the lake.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import click

SHELLS = ("bash", "zsh")


@dataclass
class Completions:
    """Words that may follow a command."""

    path: str
    """The command without `anabranch`; empty: that itself."""
    commands: list[str] = field(default_factory=list)
    options: list[str] = field(default_factory=list)
    values: dict[str, list[str]] = field(default_factory=dict)
    """By option, where a fixed set is allowed."""
    arguments: list[str] = field(default_factory=list)
    """Values of its arguments, where a fixed set is allowed."""


def completions(command: click.Command, context: click.Context, path: str = "") -> Iterator[Completions]:
    """Yield the words of a command and of all commands within it."""
    words = Completions(path)
    for parameter in command.get_params(context):
        choices = [str(choice) for choice in parameter.type.choices] if isinstance(parameter.type, click.Choice) else []
        if isinstance(parameter, click.Argument):
            words.arguments += choices
        elif not getattr(parameter, "hidden", False):
            names = [*parameter.opts, *parameter.secondary_opts]
            words.options += [name for name in names if name.startswith("--")]
            words.values |= {name: choices for name in names if choices}
    inner: list[tuple[str, click.Command]] = []
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            # A group of entries lists commands that are hidden where they stood before.
            if child is not None and not (child.hidden and type(command) is click.Group):
                inner.append((name, child))
    words.commands = [name for name, _ in inner]
    yield words
    for name, child in inner:
        yield from completions(child, click.Context(child, parent=context, info_name=name), f"{path} {name}".strip())


def script(command: click.Command, shell: str) -> str:
    """Return the script for one of `SHELLS`."""
    tree = list(completions(command, click.Context(command, info_name="anabranch")))
    paths = "|".join(f'"{words.path}"' for words in tree if words.path)
    lines = [
        "# Completion of anabranch; made by: anabranch config completion.",
        *(["autoload -U +X bashcompinit && bashcompinit"] if shell == "zsh" else []),
        "_anabranch() {",
        '  local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}"',
        '  local command="" next="" words="" i',
        "  for ((i = 1; i < COMP_CWORD; i++)); do",
        '    next="${command:+$command }${COMP_WORDS[i]}"',
        f'    case "$next" in {paths}) command="$next" ;; esac',
        "  done",
        '  case "$command|$previous" in',
        *(
            f'    "{words.path}|{option}") words="{" ".join(values)}" ;;'
            for words in tree
            for option, values in words.values.items()
        ),
        '    *) case "$command" in',
        *(
            f'      "{words.path}") words="{" ".join([*words.commands, *words.arguments, *words.options])}" ;;'
            for words in tree
        ),
        "    esac ;;",
        "  esac",
        '  COMPREPLY=($(compgen -W "$words" -- "$current"))',
        "}",
        "complete -o default -F _anabranch anabranch",
    ]
    return "\n".join(lines)
