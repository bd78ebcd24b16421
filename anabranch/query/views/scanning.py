"""Words and calls in a text of SQL, outside of its literals and quoted names.

Stage: under `anabranch.query.views`. No parser: the engines have theirs, and report errors.
"""

import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from itertools import pairwise

_TOKEN = re.compile(
    r"(?P<hidden>'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|--[^\n]*|/\*.*?\*/)|(?P<word>\$?[A-Za-z_][A-Za-z0-9_]*)|(?P<mark>[(),;])",
    re.DOTALL,
)
_COMMENTED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|--[^\n]*|/\*", re.DOTALL)
_NESTED = re.compile(r"/\*|\*/")

Rewrite = Callable[[Sequence[str]], str]
"""From the arguments of a call, as they are written, to what stands in its place."""


def without_comments(sql: str) -> str:
    """Return the text with a blank for each comment.

    Comments nest here, as in the engine, but not in the other functions of this module. Raises `ValueError` for one
    that is not closed.
    """
    pieces, position = [], 0
    while token := _COMMENTED.search(sql, position):
        pieces.append(sql[position : token.start()])
        position = token.end()
        if token[0] == "/*":
            depth = 1
            while depth:
                if (mark := _NESTED.search(sql, position)) is None:
                    raise ValueError("a comment is not closed")
                depth += 1 if mark[0] == "/*" else -1
                position = mark.end()
        pieces.append(" " if token[0][:2] in ("/*", "--") else token[0])
    return "".join([*pieces, sql[position:]])


def words(sql: str) -> Iterator[str]:
    """Yield every word, in lower case and in order."""
    for token in _TOKEN.finditer(sql):
        if token["word"]:
            yield token["word"].lower()


def names(sql: str) -> set[str]:
    """Return every word, and every quoted name."""
    quoted = (token["hidden"][1:-1] for token in _TOKEN.finditer(sql) if (token["hidden"] or "")[:1] in ('"', "`"))
    return {*words(sql), *quoted}


def sources(sql: str) -> set[str]:
    """Return every word directly after a FROM or JOIN."""
    return {name for before, name in pairwise(list(words(sql))) if before in ("from", "join")}


def qualify(sql: str, table_names: Container[str], database: str) -> str:
    """Prefix every known name directly after a FROM or JOIN with the database."""
    pieces, position, before = [], 0, ""
    for token in _TOKEN.finditer(sql):
        if token["word"] and before in ("from", "join") and token["word"].lower() in table_names:
            pieces += [sql[position : token.start()], f"{database}."]
            position = token.start()
        before = (token["word"] or token["mark"] or "").lower()
    return "".join([*pieces, sql[position:]])


def statements(sql: str) -> list[str]:
    """Return the statements of a text, without the semicolons between them and without empty ones."""
    ends = [token.start() for token in _TOKEN.finditer(sql) if token["mark"] == ";"]
    parts = [sql[start:end] for start, end in zip([0, *(end + 1 for end in ends)], [*ends, len(sql)], strict=True)]
    return [part.strip() for part in parts if any(True for _ in words(part))]


def replace_word(sql: str, word: str, replacement: str) -> str:
    """Replace every `word` (lower case), but not in literals, quoted names and comments."""
    pieces, position = [], 0
    for token in _TOKEN.finditer(sql):
        if (token["word"] or "").lower() == word:
            pieces += [sql[position : token.start()], replacement]
            position = token.end()
    return "".join([*pieces, sql[position:]])


def rewrite_calls(sql: str, rewrites: Mapping[str, Rewrite]) -> str:
    """Replace every call of a name in `rewrites` (lower case), those within arguments first.

    A name without parentheses after it is left alone. Raises `ValueError` when a parenthesis is not closed.
    """
    pieces, position = [], 0
    for token in _TOKEN.finditer(sql):
        if token.start() < position or not token["word"] or token["word"].lower() not in rewrites:
            continue
        if (opening := re.compile(r"\s*\(").match(sql, token.end())) is None:
            continue
        arguments, end = _arguments(sql, opening.end(), token["word"])
        rewritten = rewrites[token["word"].lower()](
            [rewrite_calls(argument, rewrites).strip() for argument in arguments]
        )
        pieces += [sql[position : token.start()], rewritten]
        position = end
    return "".join([*pieces, sql[position:]])


def _arguments(sql: str, start: int, name: str) -> tuple[list[str], int]:
    """Return the arguments of a call whose parenthesis opens before `start`, and the position after it."""
    depth, begun, arguments = 1, start, list[str]()
    for token in _TOKEN.finditer(sql, start):
        mark = token["mark"]
        depth += {"(": 1, ")": -1}.get(mark or "", 0)
        if depth == 0 or (mark == "," and depth == 1):
            arguments.append(sql[begun : token.start()])
            begun = token.end()
        if depth == 0:
            return ([] if len(arguments) == 1 and not arguments[0].strip() else arguments), token.end()
    raise ValueError(f"the parenthesis behind {name} is not closed")
