"""What a docstring or a comment cites is there: a heading of a PIP or of docs/design.md, or a page of docs/."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.citations import CODE, anchor, broken_citations, headings
from tests.docs.pip_pages import ROOT

OWN = ROOT / "tests" / "docs"
ENDINGS = ("py", "md", "toml", "conf", "yml", "jsonl", "json", "service", "svg")


@pytest.mark.parametrize("folder", CODE)
def test_every_citation_in_the_code_leads_somewhere(folder):
    broken = [
        f"{file.relative_to(ROOT)}:{line}: {what}"
        for file in sorted((ROOT / folder).rglob("*.py"))
        if OWN not in file.parents
        for line, what in broken_citations(file.read_text())
    ]
    assert not broken, "\n" + "\n".join(broken)


@pytest.mark.parametrize(
    "page", sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("checkpoints/*.md")])
)
def test_every_link_of_a_page_leads_somewhere(page):
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    broken = [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if not _leads(page, target)]
    assert not broken, f"{page.relative_to(ROOT)}: {', '.join(broken)}"


@pytest.mark.parametrize("page", sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("conf/**/*.*")]))
def test_files_that_a_page_names_are_there(page):
    text = re.sub(r"\]\([^)]*\)", "]", page.read_text())
    named = re.findall(rf"(?<![\w/.-])((?:conf|{'|'.join(CODE)})/[\w./-]*\w\.(?:{'|'.join(ENDINGS)}))\b", text)
    missing = sorted({name for name in named if not (ROOT / name).exists()})
    assert not missing, f"{page.relative_to(ROOT)}: {', '.join(missing)}"


def _leads(page: Path, target: str) -> bool:
    if "://" in target:
        return True
    path, _, wanted = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    return file.exists() and (not wanted or wanted in {anchor(heading) for heading in headings(file)})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('"""The rule (PIP-483 "Pass 1")."""', ""),
        ('"""PIP-468 "Registration\n    Flow", "Consumer Session Lifecycle"."""', ""),
        ('# as PIP-468 "Split Protocol" and\n# "Merge Protocol" say', ""),
        ('"""PIP-483 "Pruning"."""', "no such heading; cite one of docs/pip-483.md"),
        ('"""PIP-468 "Failover", "Lifecycle of\n    sessions"."""', '"Lifecycle of sessions": no such'),
        ('"""See design "Kafka messages" and docs/decisions/0004."""', ""),
        ('"""See design "Messages"."""', "no such heading; cite one of docs/design.md"),
        ('"""DESIGN section 4.1"""', "cite design"),
        ("x = 1  # facts/stack.md", "cite design"),
        ('"""docs/gates.md, docs/operations.md#sizing"""', ""),
        ('"""docs/gate.md"""', "docs/gate.md: no such page"),
        ('"""docs/operations.md#no-such"""', "no such page or anchor"),
    ],
)
def test_a_citation_that_leads_nowhere_is_found(text, said):
    found = [what for _, what in broken_citations(f"{text}\n")]
    assert (said in found[0]) if said else found == []
    assert len(found) == bool(said)
