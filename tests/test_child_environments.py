"""Every program that the product starts is given an environment, and so none inherits all secrets by default."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("anabranch", "decisions", "engine", "lake", "runtime", "schemas", "streaming")
STARTS = {"Popen", "run", "check_output", "check_call", "call"}


def starts(source: str) -> list[tuple[int, bool]]:
    """Lines that start a program by `subprocess`, and whether they name its environment."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [
        (call.lineno, any(keyword.arg == "env" for keyword in call.keywords))
        for call in calls
        if isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id == "subprocess"
        and call.func.attr in STARTS
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_programs_are_given_their_environment(package: str) -> None:
    bare = [
        f"{file.relative_to(ROOT)}:{line}"
        for file in sorted((ROOT / package).rglob("*.py"))
        for line, has_environment in starts(file.read_text())
        if not has_environment
    ]
    assert bare == []


def test_program_without_environment_is_noticed() -> None:
    assert starts("subprocess.run(['a'])\nsubprocess.Popen(['a'], env={})") == [(1, False), (2, True)]
