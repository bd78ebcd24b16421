"""Citations in docstrings and comments, and whether they lead somewhere.

What can be cited: `PIP-483 "HEADING"` (also the beginning of a heading, its end after a dash, or a name of
docs/pips/outline.toml), `design "HEADING"` (of docs/design.md), and files of docs/ by their path, with `#anchor`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.docs.pip_pages import ROOT, outline

CODE = (
    "schemas",
    "decisions",
    "engine",
    "lake",
    "runtime",
    "streaming",
    "anabranch",
    "clients",
    "benchmarks",
    "deploy",
    "docs",
    "tests",
)
_QUOTED = r'"[^"]+"'
_PIP = re.compile(rf"PIP-(483|468),? ({_QUOTED}(?:(?:,| and|, and) {_QUOTED})*)")
_DESIGN = re.compile(rf"\b[Dd]esign ({_QUOTED}(?:(?:,| and|, and) {_QUOTED})*)")
_FORMER = re.compile(
    r"\bDESIGN\b(?:[^.;)\"]|\.\d){0,40}|\bdesign (?:section|§)[^.;)]{0,12}"
    r"|\bfacts(?: of (?:Pulsar|the stack)\b|/)[^.;)]{0,30}"
)
_DOCS = re.compile(r"\bdocs/[\w./-]*\w(?:#[\w-]+)?")


def headings(page: Path) -> list[str]:
    """The headings of a Markdown page, without their marks."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [heading.strip() for heading in re.findall(r"^#+ (.*)", text, re.MULTILINE)]


def anchor(heading: str) -> str:
    """The anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def broken_citations(text: str) -> Iterator[tuple[int, str]]:
    """Line and what to write instead, for each citation in a file's text that leads nowhere."""
    flat, lines = _flattened(text)
    for found in _PIP.finditer(flat):
        pip = f"pip-{found[1]}"
        for cited in re.findall(_QUOTED, found[2]):
            if not _is_known(cited.strip('"'), [*_headings_of(pip), *outline(pip)["names"]]):
                yield lines[found.start()], f"PIP-{found[1]} {cited}: no such heading; cite one of docs/{pip}.md"
    for found in _DESIGN.finditer(flat):
        for cited in re.findall(_QUOTED, found[1]):
            if cited.strip('"') not in headings(ROOT / "docs" / "design.md"):
                yield lines[found.start()], f"design {cited}: no such heading; cite one of docs/design.md"
    for found in _FORMER.finditer(flat):
        yield lines[found.start()], f'{found[0]!r}: cite design "HEADING" of docs/design.md, or docs/decisions/NNNN'
    for found in _DOCS.finditer(flat):
        if not _is_there(found[0]):
            yield lines[found.start()], f"{found[0]}: no such page or anchor"


def _flattened(text: str) -> tuple[str, list[int]]:
    """The text in one line, comment marks gone, and the line that each of its characters was in."""
    flat: list[str] = []
    lines: list[int] = []
    for number, line in enumerate(text.splitlines(), 1):
        part = (
            re.sub(r"^\s*#:? ?|\s+", lambda blank: "" if "#" in blank[0] else " ", line.replace('\\"', '"')).lstrip()
            + " "
        )
        flat.append(part)
        lines += [number] * len(part)
    return "".join(flat), lines


def _headings_of(pip: str) -> list[str]:
    return [heading.lstrip("# ") for heading in outline(pip)["headings"]]


def _is_known(cited: str, known: Iterable[str]) -> bool:
    """Whether a citation is a known name, or begins one, or is its part before or after a dash."""
    plain = _plain(cited)
    for name in known:
        parts = [_plain(part) for part in (name, *re.split(r"[—:/(]| and ", name))]
        if plain in parts or re.match(rf"{re.escape(plain)}\b", parts[0]):
            return True
    return False


def _plain(name: str) -> str:
    return re.sub(r"[^\w ]", " ", name.lower().replace("`", "")).strip().replace("  ", " ").replace("  ", " ")


def _is_there(cited: str) -> bool:
    path, _, wanted = cited.partition("#")
    file = ROOT / path
    if re.fullmatch(r"docs/decisions/\d{4}", path):
        return any(ROOT.glob(f"{path}-*.md"))
    if not file.exists():
        return False
    return not wanted or wanted in {anchor(heading) for heading in headings(file)}
