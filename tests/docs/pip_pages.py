"""Generator of docs/pip-483.md and docs/pip-468.md: each section, rule and property of the PIPs, and where it is here.

`python -m tests.docs.pip_pages` writes the pages (`make schemas` runs it) from the maps `docs/pips/pip-483.toml` and
`pip-468.toml` and from `outline.toml`, the names of the headings and properties. A row of a map names functions as
`module:qualname` and tests as `path::name`; a name that does not exist is an error that names the row. `--mend` first
updates names whose function or test has moved to one other place.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from decisions.autoscale.policy import POLICY_FIELDS
from schemas.metadata import ScalableTopicMetadata
from schemas.settings.root import Settings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "pips"
PIPS = ("pip-483", "pip-468")
PACKAGES = ("schemas", "decisions", "runtime", "lake", "engine", "streaming", "anabranch")
_KEYS = {"rule", "property", "key", "code", "test", "not_built"}


def outline(pip: str) -> dict[str, Any]:
    """Return the names in a PIP: `headings` in order with their level as `#`, `properties`, `names`."""
    found: dict[str, Any] = tomllib.loads((FOLDER / "outline.toml").read_text())[pip]
    return found


def sections(pip: str) -> list[dict[str, Any]]:
    """Return the map of a PIP: one table for each heading, in order."""
    found: list[dict[str, Any]] = tomllib.loads((FOLDER / f"{pip}.toml").read_text())["section"]
    return found


def problems(pip: str) -> list[str]:
    """Return the faults of a map, one line each with what to write instead; empty if every name exists."""
    known, mapped = outline(pip), sections(pip)
    found = _incomplete(pip, known, mapped)
    for section in mapped:
        for row in section.get("rows", []):
            at = f'docs/pips/{pip}.toml, section "{section["heading"]}", rule "{row.get("rule", "?")}"'
            found += [f"{at}: {what}" for what in _row_problems(row)]
    return found


def _incomplete(pip: str, known: dict[str, Any], mapped: list[dict[str, Any]]) -> list[str]:
    found = []
    wanted = [heading.lstrip("# ") for heading in known["headings"]]
    given = [section["heading"] for section in mapped]
    if wanted != given:
        differing = next((w for w, g in zip(wanted, given, strict=False) if w != g), "the last ones")
        found.append(f"docs/pips/{pip}.toml: its sections are not the headings of outline.toml, first at {differing!r}")
    for section in mapped:
        if not section.get("rows") and not section.get("note"):
            found.append(
                f'docs/pips/{pip}.toml, section "{section["heading"]}": give it rows, or a note why it has none'
            )
    rows = [row for section in mapped for row in section.get("rows", [])]
    named = [row["property"] for row in rows if "property" in row]
    for name in known["properties"]:
        if named.count(name) != 1:
            found.append(f"docs/pips/{pip}.toml: property {name} is in {named.count(name)} rows, it must be in one")
    found += [
        f"docs/pips/{pip}.toml: outline.toml has no property {name}" for name in set(named) - {*known["properties"]}
    ]
    return found


def _row_problems(row: dict[str, Any]) -> Iterator[str]:
    if set(row) - _KEYS or "rule" not in row:
        yield f"a row has `rule` and of {sorted(_KEYS)} what it needs, this one has {sorted(row)}"
    for name in row.get("key", "").split():
        if name not in _keys():
            yield f"there is no key {name}; write in `key` a field of the policy, or section.key of conf/anabranch.toml"
    if "not_built" in row:
        if "code" in row or "test" in row:
            yield "it is built or not: leave out `not_built`, or `code` and `test`"
        return
    if "code" not in row or "test" not in row:
        yield 'write code = "module:qualname" and test = "path::name", or not_built = "because …"'
    for name in row.get("code", "").split():
        if not _has_code(name):
            hint = _hint(name.partition(":")[2], _definitions())
            yield f"there is no {name}; write in `code` what does this now{hint}"
    for name in row.get("test", "").split():
        if name.partition("::")[2] not in _tests().get(name.partition("::")[0], ()):
            yield f"there is no test {name}; write in `test` one that fails without the rule{_hint(*_moved_test(name))}"


def _has_code(name: str) -> bool:
    if ":" not in name:
        return (ROOT / name).exists()
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except ImportError:
        return False
    for part in path.split("."):
        if not hasattr(found, part):
            return part in getattr(found, "__annotations__", {})
        found = getattr(found, part)
    return True


def _hint(name: str, places: dict[str, list[str]]) -> str:
    found = places.get(name, [])
    return f" (perhaps {' or '.join(found)})" if found else ""


@cache
def _keys() -> set[str]:
    """Return all keys that a person can set: policy fields as Pulsar spells them, and settings as section.key."""
    found = set(POLICY_FIELDS) | {str(field.alias) for field in ScalableTopicMetadata.model_fields.values()}
    for section, field in Settings.model_fields.items():
        found |= {f"{section}.{key}" for key in getattr(field.annotation, "model_fields", {})}
    return found


@cache
def _definitions() -> dict[str, list[str]]:
    """Map the qualname of each function, class, method and constant to its `module:qualname`."""
    found: dict[str, list[str]] = {}
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            module = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            for name in _names(ast.parse(file.read_text()).body, ""):
                found.setdefault(name, []).append(f"{module}:{name}")
    return found


def _names(body: list[ast.stmt], prefix: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name
        elif isinstance(node, ast.ClassDef):
            yield prefix + node.name
            yield from _names(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (prefix + target.id for target in targets if isinstance(target, ast.Name))


@cache
def _tests() -> dict[str, set[str]]:
    """Map the path of each test module to the names of its tests."""
    return {
        str(file.relative_to(ROOT)): set(re.findall(r"^\s*(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE))
        for file in sorted((ROOT / "tests").rglob("test_*.py"))
    }


def _moved_test(name: str) -> tuple[str, dict[str, list[str]]]:
    test = name.partition("::")[2]
    return test, {test: [f"{path}::{test}" for path, names in _tests().items() if test in names]}


def mend() -> list[str]:
    """Update names in the maps that have only moved, and return a line for each change."""
    done = []
    for pip in PIPS:
        file = FOLDER / f"{pip}.toml"
        text = file.read_text()
        for name in sorted(set(re.findall(r"[\w./]+:{1,2}[\w.]+", text))):
            places = _moved_to(name)
            if len(places) == 1:
                text = re.sub(rf"{re.escape(name)}(?![\w.])", places[0], text)
                done.append(f"{pip}: {name} -> {places[0]}")
        file.write_text(text)
    return done


def _moved_to(name: str) -> list[str]:
    """Return possible new places of a missing function or test; same package or file name first."""
    if "::" in name:
        path, _, test = name.partition("::")
        if test in _tests().get(path, ()):
            return []
        found = _moved_test(name)[1][test]
        near = [place for place in found if Path(place.partition("::")[0]).name == Path(path).name]
    else:
        if _has_code(name):
            return []
        found = _definitions().get(name.partition(":")[2], [])
        near = [place for place in found if place.partition(".")[0] == name.partition(".")[0]]
    return near or found


def page(pip: str) -> str:
    """Return the text of a PIP's page."""
    known = outline(pip)
    lines = [_PAGE.format(name=pip.upper(), title=known["title"], pip=pip)]
    for heading, section in zip(known["headings"], sections(pip), strict=True):
        lines.append(f"#{heading}\n")
        if section.get("note"):
            lines.append(f"{section['note']}\n")
        if section.get("rows"):
            lines.append(_table(section["rows"]) + "\n")
    return "\n".join(lines)


def _table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as a table; the column of keys is left out where no row has one."""
    cells: list[tuple[str, ...]] = [("rule", "our key", "function", "test"), ("---",) * 4]
    for row in rows:
        rule = f"`{row['property']}`: {row['rule']}" if "property" in row else row["rule"]
        key = ", ".join(f"`{name}`" for name in row.get("key", "").split())
        if "not_built" in row:
            cells.append((rule, key, f"not built: {row['not_built']}", ""))
        else:
            code = ", ".join(_code_link(name) for name in row["code"].split())
            cells.append((rule, key, code, ", ".join(_test_link(name) for name in row["test"].split())))
    if not any("key" in row for row in rows):
        cells = [(rule, *rest) for rule, _, *rest in cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _code_link(name: str) -> str:
    module, _, path = name.partition(":")
    if not path:
        return f"[{module}](../{module})"
    file = module.replace(".", "/")
    return f"[`{path}`](../{file}.py)" if (ROOT / f"{file}.py").is_file() else f"[`{path}`](../{file}/__init__.py)"


def _test_link(name: str) -> str:
    path, _, test = name.partition("::")
    return f"[`{test}`](../{path})"


_PAGE = """# {name}: {title}

Each rule of {name}, the key that sets it, the function that implements it and a test that fails without it, under the
PIP's own headings. Generated from `docs/pips/{pip}.toml` by `make schemas`.
"""


def main() -> int:
    """Write the pages, or print the faults of the maps to stderr."""
    if "--mend" in sys.argv[1:]:
        print("\n".join(mend()))
    wrong = [line for pip in PIPS for line in problems(pip)]
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        return 1
    for pip in PIPS:
        (ROOT / "docs" / f"{pip}.md").write_text(page(pip))
    return 0


if __name__ == "__main__":
    sys.exit(main())
