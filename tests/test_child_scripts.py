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
    """Names of our packages that a script imports, or takes from a module that it imports, and that are not there."""
    modules, wanted = {}, []
    for node in ast.walk(script):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in OURS:
            wanted += [(node.module, alias.name) for alias in node.names]
            modules |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            ours = [alias for alias in node.names if alias.name.split(".")[0] in OURS]
            wanted += [(alias.name, "") for alias in ours]
            modules |= {alias.asname: alias.name for alias in ours if alias.asname}
    for node in ast.walk(script):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            wanted.append((modules[node.value.id], node.attr))
    return [f"{module} {name}".strip() for module, name in wanted if not is_there(module, name)]


def is_there(module: str, name: str) -> bool:
    """Whether `from module import name` (or `import module`) works; a `module` that is a class or value counts too."""
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError:
        parent, _, value = module.rpartition(".")
        return bool(name and parent) and is_there(parent, value)
    if name in ("", "*") or hasattr(loaded, name):
        return True
    try:
        return bool(importlib.import_module(f"{module}.{name}"))
    except ModuleNotFoundError:
        return False


def test_names_in_child_scripts_exist():
    files = [file for folder in ("tests", "benchmarks") for file in sorted((HOME / folder).rglob("*.py"))]
    found = [(file, script) for file in files for script in scripts(ast.parse(file.read_text()))]
    assert len(found) > 20
    assert {str(file.relative_to(HOME)): names for file, script in found if (names := missing(script))} == {}
