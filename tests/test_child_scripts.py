"""Python text that tests, benchmarks and docs hand to another process imports names that exist."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

HOME = Path(__file__).resolve().parents[1]
OURS = {"schemas", "decisions", "engine", "lake", "runtime", "streaming", "anabranch", "tests", "benchmarks", "docs"}


def scripts(tree: ast.Module) -> list[ast.Module]:
    """The string constants of a file that are whole Python programs with imports."""
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    parsed = []
    for text in texts:
        if "import " in text:
            try:
                parsed.append(ast.parse(text))
            except SyntaxError:
                continue  # a sentence, or a template with braces
    return parsed


def missing(script: ast.Module) -> list[str]:
    """Names of our packages that a script imports and that are not there."""
    absent = []
    for node in ast.walk(script):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in OURS:
            names = [(node.module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [(alias.name, "") for alias in node.names if alias.name.split(".")[0] in OURS]
        else:
            continue
        absent += [f"{module} {name}".strip() for module, name in names if not is_there(module, name)]
    return absent


def is_there(module: str, name: str) -> bool:
    """Whether `from module import name` (or `import module`) would work."""
    try:
        loaded = importlib.import_module(module)
        return name in ("", "*") or hasattr(loaded, name) or bool(importlib.import_module(f"{module}.{name}"))
    except ModuleNotFoundError:
        return False


def test_imports_of_child_scripts_exist():
    files = [file for folder in ("tests", "benchmarks") for file in sorted((HOME / folder).rglob("*.py"))]
    found = [(file, script) for file in files for script in scripts(ast.parse(file.read_text()))]
    assert len(found) > 20
    assert {str(file.relative_to(HOME)): names for file, script in found if (names := missing(script))} == {}
