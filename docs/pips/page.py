"""docs/pip-483.md and docs/pip-468.md: every section, rule and property of the PIPs, and where it is here.

`python -m docs.pips.page` writes the pages (`make schemas` does). They are made from `pip-483.toml` and `pip-468.toml`,
the maps, and `outline.toml`, the PIPs' headings and properties by name. A row of a map names functions as
`module:qualname`, which are imported, and tests as `path::name`, which are looked up; what does not exist is an error
that names the row. `--mend` first follows what was only moved: a name that is now at one other place.
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
FOLDER = Path(__file__).resolve().parent
PIPS = ("pip-483", "pip-468")
PACKAGES = (
    "schemas",
    "decisions",
    "admin",
    "lake",
    "messaging",
    "telemetry",
    "engine",
    "streaming",
    "executor",
    "controller",
    "ledger",
    "lab",
    "anabranch",
)
_KEYS = {"rule", "property", "key", "code", "test", "not_built"}


def outline(pip: str) -> dict[str, Any]:
    """What a PIP contains, by name: `headings` in order with their level as `#`, `properties`, `names`."""
    found: dict[str, Any] = tomllib.loads((FOLDER / "outline.toml").read_text())[pip]
    return found


def sections(pip: str) -> list[dict[str, Any]]:
    """The map of a PIP: one table for each heading, in order."""
    found: list[dict[str, Any]] = tomllib.loads((FOLDER / f"{pip}.toml").read_text())["section"]
    return found


def problems(pip: str) -> list[str]:
    """What is wrong with a map, a line each with what to write; empty when all of it leads somewhere."""
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
    """What a person can set: fields of the policy as Pulsar spells them, and keys of the settings by section."""
    found = set(POLICY_FIELDS) | {str(field.alias) for field in ScalableTopicMetadata.model_fields.values()}
    for section, field in Settings.model_fields.items():
        found |= {f"{section}.{key}" for key in getattr(field.annotation, "model_fields", {})}
    return found


@cache
def _definitions() -> dict[str, list[str]]:
    """Every function, class, method and constant of the packages: qualname to `module:qualname`."""
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
    """Path of a test module to the names of its tests."""
    return {
        str(file.relative_to(ROOT)): set(re.findall(r"^\s*(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE))
        for file in sorted((ROOT / "tests").rglob("test_*.py"))
    }


def _moved_test(name: str) -> tuple[str, dict[str, list[str]]]:
    test = name.partition("::")[2]
    return test, {test: [f"{path}::{test}" for path, names in _tests().items() if test in names]}


def mend() -> list[str]:
    """Follows in the maps what was only moved; answers what was changed."""
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
    """Where a function or test that is gone may be now: in the same package or a file of the same name, if in any."""
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
    """The page of a PIP."""
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
    cells = [("rule", "our key", "function", "test"), ("---",) * 4]
    for row in rows:
        rule = f"`{row['property']}`: {row['rule']}" if "property" in row else row["rule"]
        key = ", ".join(f"`{name}`" for name in row.get("key", "").split()) or "-"
        if "not_built" in row:
            cells.append((rule, key, f"not built, because {row['not_built']}", "-"))
        else:
            code = ", ".join(_code_link(name) for name in row["code"].split())
            cells.append((rule, key, code, ", ".join(_test_link(name) for name in row["test"].split())))
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _code_link(name: str) -> str:
    module, _, path = name.partition(":")
    if not path:
        return f"[{module}](../{module})"
    file = module.replace(".", "/")
    return f"[`{path}`](../{file}.py)" if (ROOT / f"{file}.py").is_file() else f"[`{path}`](../{file}/__init__.py)"


def _test_link(name: str) -> str:
    path, _, test = name.partition("::")
    return f"[{test.removeprefix('test_').replace('_', ' ')}](../{path})"


_PAGE = """# {name}: {title}

Every section, rule and property of {name}, and where it is here: the key by which a person sets it, the function that
does it, and a test of it. The headings are those of the PIP. This page is generated from `docs/pips/{pip}.toml`:
`make schemas`.
"""


def main() -> int:
    """Writes the pages, or says on stderr what is wrong with the maps."""
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
