"""Names: public classes exist once, locals are nouns, tests say subject and outcome, the formatter is never off."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

HOME = Path(__file__).resolve().parents[1]
VAGUE = {"one", "found", "said", "told", "place", "taken", "given", "gone", "what", "rest", "others", "standing"}


@cache
def product() -> list[tuple[Path, str]]:
    """Read the product."""
    packages = ("schemas", "decisions", "engine", "lake", "runtime", "streaming", "anabranch")
    files = (file for package in packages for file in sorted((HOME / package).rglob("*.py")))
    return [(file.relative_to(HOME), file.read_text()) for file in files]


@cache
def files_of_tests() -> list[tuple[Path, str]]:
    """Read the tests."""
    return [(file.relative_to(HOME), file.read_text()) for file in sorted((HOME / "tests").rglob("*.py"))]


def locals_of(tree: ast.Module) -> set[str]:
    """Names that functions bind, parameters included."""
    functions = (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
    nodes = [node for function in functions for node in ast.walk(function)]
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return stored | {node.arg for node in nodes if isinstance(node, ast.arg)}


def test_public_class_names_are_unique():
    homes = defaultdict(list)
    for file, text in product():
        for name in re.findall(r"^ *class ([^_]\w*)[(:\[]", text, re.MULTILINE):
            homes[name].append(str(file))
    assert len(homes) > 500
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


def test_locals_are_not_vague():
    vague = {str(file): names for file, text in product() if (names := locals_of(ast.parse(text)) & VAGUE)}
    assert vague == {}


def test_test_names_have_at_most_70_characters():
    defined = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)
    names = [(str(file), name) for file, text in files_of_tests() for name in defined.findall(text)]
    assert len(names) > 2_000
    assert [name for name in names if len(name[1]) > 70] == []


def test_formatter_is_never_off():
    marker = "# " + "fmt:"
    assert [str(file) for file, text in product() + files_of_tests() if marker in text] == []


def test_no_test_patches_the_clock_of_all_threads():
    """A server of the session, in another thread, would sleep for as long as the clocks differ."""
    patched = re.compile(r'setattr\(\s*(?:(?:\w+\.)*time, "|"[^"]*\btime\.)(?:monotonic|perf_counter|sleep|time)"')
    assert patched.search('setattr(module.time, "monotonic"')
    assert patched.search('setattr("a.time.sleep"')
    own = Path(__file__).relative_to(HOME)
    assert [str(file) for file, text in files_of_tests() if file != own and patched.search(text)] == []
