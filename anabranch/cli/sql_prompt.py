"""The prompt of `anabranch sql`: several lines up to a semicolon, history, completion, colours.

Stage: under `anabranch.cli.commands.sql`, which answers. Each question sees the lake as it is then. Delta and Arrow are
imported with the first question, so that the prompt is there before them.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

import click
from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import PygmentsLexer
from pygments.lexers.sql import SqlLexer

from anabranch.query.views.catalogue import views
from anabranch.query.views.scanning import names
from schemas.tables.rows import TABLES

KEYWORDS = (
    "SELECT",
    "FROM",
    "WHERE",
    "GROUP BY",
    "ORDER BY",
    "HAVING",
    "LIMIT",
    "JOIN",
    "LEFT JOIN",
    "ON",
    "AND",
    "OR",
    "NOT",
    "IN",
    "BETWEEN",
    "LIKE",
    "IS NULL",
    "IS NOT NULL",
    "AS",
    "DESC",
    "DISTINCT",
    "COUNT(*)",
    "SUM(",
    "MIN(",
    "MAX(",
    "AVG(",
    "CASE WHEN",
    "THEN",
    "ELSE",
    "END",
    "INTERVAL '1 hour'",
    "NOW()",
    "DATE_TRUNC('hour', ",
    "UNION ALL",
    "WITH",
    "TIMESTAMP '",
)
_WELCOME = "SQL up to a semicolon. \\views lists tables and views, \\d NAME its columns, \\q ends. Tab completes."


class LakeCompleter(Completer):
    """Tables and views, the columns of those that the statement names, and words of SQL."""

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Yield completions of the word before the cursor."""
        word = document.get_word_before_cursor()
        if not word.strip() and not complete_event.completion_requested:
            return
        from anabranch.query.sql import columns_of

        sources = [*TABLES, *views()]
        used = names(document.text) & set(sources)
        columns = dict.fromkeys(column for name in sorted(used) for column in columns_of(name))
        for kind, offered in (("column", columns), ("", sources), ("", KEYWORDS)):
            for name in offered:
                if name.lower().startswith(word.lower()) and name.lower() != word.lower():
                    yield Completion(name, -len(word), display_meta=kind or _describe_name(name))


def _describe_name(name: str) -> str:
    return "table" if name in TABLES else "view" if name in views() else ""


def is_whole(text: str) -> bool:
    """Return True if Enter submits: the text is empty, a command, or ends with a semicolon."""
    statement = text.strip()
    return (
        not statement
        or statement.endswith(";")
        or statement.startswith("\\")
        or statement.lower() in ("quit", "exit", "help")
    )


def ask_on(
    lake: str, history: Path, answer: Callable[[str], None], describe: Callable[[str], str], overview: Callable[[], str]
) -> None:
    """Prompt for statements and answer them, errors too, until the input ends."""
    keys = KeyBindings()

    @keys.add("enter", filter=Condition(lambda: is_whole(get_app().current_buffer.text)))
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    history.parent.mkdir(parents=True, exist_ok=True)
    session: PromptSession[str] = PromptSession(
        "sql> ",
        history=FileHistory(str(history)),
        completer=LakeCompleter(),
        lexer=PygmentsLexer(SqlLexer),
        multiline=True,
        key_bindings=keys,
        complete_while_typing=False,
        prompt_continuation=lambda *_: "  -> ",
    )
    click.echo(f"{lake}\n{_WELCOME}")
    while True:
        try:
            statement = session.prompt().strip()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        if statement.rstrip(";").lower() in ("\\q", "quit", "exit"):
            return
        try:
            if statement in ("\\views", "help", "\\d", "\\?"):
                click.echo(overview())
            elif statement.startswith("\\d "):
                click.echo(describe(statement.removeprefix("\\d ").rstrip(";")))
            elif statement.rstrip("; "):
                answer(statement)
        except click.ClickException as error:
            click.echo(f"error: {error.format_message()}", err=True)
        except KeyboardInterrupt:
            click.echo("stopped", err=True)
