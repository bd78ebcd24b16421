"""The views as their texts describe them: name, version, meaning of rows and columns, and the SQL.

Stage: under all users of the views: `anabranch.query.sql` (DataFusion), `anabranch.query.views.spark` and
`anabranch sql`. A text begins with comments: the meaning of a row; `version: 1`; for a function of an instant
`parameter at timestamp: …`; a line for each column, `name type: meaning`, in the order of the SELECT.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from anabranch.query.views.dialects import Dialect
from anabranch.query.views.scanning import Rewrite, rewrite_calls, sources
from schemas.tables.rows import TABLES

TYPES = ("bigint", "boolean", "date", "double", "string", "timestamp")
_COLUMN = re.compile(rf"(?P<name>[a-z_]+) (?P<type>{'|'.join(TYPES)}): (?P<meaning>.+)")


@dataclass(frozen=True)
class Column:
    """Column or parameter of a view."""

    name: str
    type: str
    """One of `TYPES`; instants are UTC, to the microsecond."""
    meaning: str


@dataclass(frozen=True)
class View:
    """View; with `parameters` a function, which follows FROM with its arguments."""

    name: str
    version: int
    about: str
    """Meaning of a row."""
    parameters: tuple[Column, ...]
    columns: tuple[Column, ...]
    text: str
    """The SQL, before `Dialect.translate`."""

    @property
    def signature(self) -> str:
        """Return `thrash`, or `load_at(at)`."""
        return (
            f"{self.name}({', '.join(parameter.name for parameter in self.parameters)})"
            if self.parameters
            else self.name
        )

    def sql(self, dialect: Dialect) -> str:
        """Return the SQL for an engine: called functions are expanded, its own parameters appear as `$name`."""
        return dialect.translate(write_out(self.text))

    def needs(self) -> set[str]:
        """Return the tables and views that the engine has to know before it."""
        return sources(write_out(self.text)) & {*TABLES, *views()}


def write_out(sql: str) -> str:
    """Expand the calls of functions in a text. Raises `ValueError` for an invalid call."""
    return rewrite_calls(sql, {view.name: _writer(view) for view in views().values() if view.parameters})


def _writer(view: View) -> Rewrite:
    def written(arguments: Sequence[str]) -> str:
        if len(arguments) != len(view.parameters):
            raise ValueError(f"{view.signature} takes {len(view.parameters)} argument, not {len(arguments)}")
        text = write_out(view.text)
        for parameter, argument in zip(view.parameters, arguments, strict=True):
            text = f"({argument})".join(re.split(rf"\${parameter.name}\b", text))
        return f"({text})"

    return written


@cache
def views() -> dict[str, View]:
    """Return all views by name."""
    texts = (file for file in (files("anabranch.query.views") / "sql").iterdir() if file.name.endswith(".sql"))
    return {name: _read(name) for name in sorted(file.name.removesuffix(".sql") for file in texts)}


@cache
def _read(name: str) -> View:
    """Return the view of a text. Raises `ValueError` for an invalid description of a column."""
    lines = (files("anabranch.query.views") / "sql" / f"{name}.sql").read_text(encoding="utf-8").splitlines()
    comments = [line.removeprefix("--").strip() for line in lines if line.startswith("--")]
    about, version, parameters, columns = list[str](), 0, list[Column](), list[Column]()
    for line in comments:
        key, _, value = line.partition(": ")
        if key == "version":
            version = int(value)
        elif key == "like":
            columns += _read(value).columns
        elif match := _COLUMN.fullmatch(line.removeprefix("parameter ")):
            (parameters if line.startswith("parameter ") else columns).append(Column(**match.groupdict()))
        elif columns:
            raise ValueError(f"{name}.sql: {line!r} is no column, like `topic string: The topic.`")
        else:
            about.append(line)
    text = "\n".join(line for line in lines if not line.startswith("--"))
    return View(name, version, " ".join(about), tuple(parameters), tuple(columns), text)


def in_order(wanted: Iterable[str]) -> list[View]:
    """Return the wanted views and those that they need, each after those that it needs."""
    ordered: dict[str, View] = {}

    def add(name: str) -> None:
        if name in ordered:
            return
        for needed in sorted(views()[name].needs() & set(views())):
            add(needed)
        ordered[name] = views()[name]

    for name in wanted:
        add(name)
    return list(ordered.values())
