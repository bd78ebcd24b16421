"""The commands of the guides: README and the pages of docs/, block by block and inside of sentences.

A block of commands is run by a test, word for word, unless a comment in front of it says `<!-- run by FILE -->` for a
test of its own, or `<!-- not run: REASON -->`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HOME = Path(__file__).resolve().parents[2]
PAGES = ("README.md", *sorted(f"docs/{page.name}" for page in (HOME / "docs").glob("*.md")))
_PROGRAM = re.compile(r"(?:\.venv/bin/)?(?:anabranch|python -m|make|export|pipx|kubectl|helm|cp|mv|systemctl)\s")
_COMMENT = re.compile(r"<!-- (run by|not run:) (.+?) -->")
_SENTENCE = re.compile(r"(?<!`)`(?:\.venv/bin/)?(anabranch [^`\n]+)`")


@dataclass(frozen=True)
class Block:
    """Commands that stand together in a page."""

    page: str
    line: int
    """Of the first command."""
    commands: tuple[str, ...]
    run_by: str = ""
    """The test that runs them, instead of the one of all guides."""
    not_run: str = ""
    """Why no test runs them."""

    @property
    def is_run_here(self) -> bool:
        return not self.run_by and not self.not_run


def blocks(page: str) -> Iterator[Block]:
    """Yield the blocks of commands of a page: fenced `console`, `sh` and `text`, and indented ones."""
    lines = (HOME / page).read_text().splitlines()
    language, comment = None, ("", "")
    block: list[tuple[int, str]] = []
    for number, line in enumerate([*lines, ""], 1):
        command = None
        if line.startswith("```"):
            language = None if language is not None else line[3:].strip()
        elif language is None and line.startswith("    ") and _PROGRAM.match(line[4:]):
            command = line[4:]
        elif language in ("console", "text") and line.startswith("$ "):
            command = line[2:]
        elif language == "sh" and line.strip() and not line.startswith("#"):
            command = line
        if block and block[-1][1].endswith("\\"):
            block[-1] = (block[-1][0], f"{block[-1][1][:-1].rstrip()} {line.strip()}")
        elif command is not None:
            block.append((number, command))
        elif language is None and block:
            how, reason = comment
            yield Block(
                page,
                block[0][0],
                tuple(text for _, text in block),
                reason if how == "run by" else "",
                reason if how == "not run:" else "",
            )
            block, comment = [], ("", "")
        if match := _COMMENT.fullmatch(line):
            comment = (match[1], match[2])
        elif language is None and not block and line and not line.startswith("```"):
            comment = ("", "")


def every_block() -> list[Block]:
    return [block for page in PAGES for block in blocks(page)]


def sentences() -> list[tuple[str, str]]:
    """Return page and command of each command inside of a sentence."""
    return [(page, match[1]) for page in PAGES for match in _SENTENCE.finditer((HOME / page).read_text())]
