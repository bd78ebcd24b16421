"""Generator of docs/views.md from the views' texts: `python -m anabranch.query.views.page > docs/views.md`."""

from collections.abc import Sequence

from anabranch.query.views.catalogue import Column, View, views

_INTRODUCTION = """# Views

Made by `python -m anabranch.query.views.page` from the texts in `anabranch/query/views/sql/`.

`anabranch sql` knows the views, and so does Spark SQL after `anabranch lake register`, with the same rows. Names and
columns are stable: later releases add columns at the end; a changed meaning gets a new `version` and a line in
CHANGELOG. Queries to start from: [sql.md](sql.md). Columns in their order: `anabranch sql --views NAME`.

- Instants are UTC, and those of batches: a layout stands in a view from when the job took it in.
- A row with `valid_from` and `valid_to` holds at `t` when `valid_from <= t AND (valid_to IS NULL OR valid_to > t)`.
  Layouts of one batch make empty intervals.
- A view with an argument is asked as `SELECT * FROM load_at(TIMESTAMP '2026-11-22 14:05:00')`.

On a day of 10,000 topics (21 million loads) a view takes 1 to 12 CPU seconds and up to 1.3 GB for all topics, under
half a second for one (`WHERE topic = '…'` or `subject`); `load_intervals` takes 39 s and 4.8 GB, and a condition on
`day` does not help it. Prefer `holds_now` and `thrash_since` for the present, `layout_spans` where the text of a layout
is not wanted.
"""
_SHARED = 6
"""Columns that two views must share for the page to describe them once."""


def page() -> str:
    """Return the whole page."""
    known = list(views().values())
    sections = (_section(view, known[:index]) for index, view in enumerate(known))
    return "\n".join([_INTRODUCTION, *sections])


def _section(view: View, earlier: Sequence[View]) -> str:
    lines = [f"## {view.signature}", "", f"{view.about} Version {view.version}.", ""]
    lines += [_line(parameter, "argument ") for parameter in view.parameters]
    base = max(earlier, key=lambda other: len({*other.columns} & {*view.columns}), default=view)
    shared = {*base.columns} & {*view.columns} if base is not view else set()
    if len(shared) < _SHARED:
        shared = set()
    else:
        names = ", ".join(f"`{column.name}`" for column in view.columns if column in shared)
        lines.append(f"- as in `{base.name}`: {names}")
    return "\n".join([*lines, *(_line(column) for column in view.columns if column not in shared), ""])


def _line(column: Column, kind: str = "") -> str:
    return f"- {kind}`{column.name}` {column.type}: {column.meaning}"


if __name__ == "__main__":
    print(page(), end="")
