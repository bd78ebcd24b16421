"""docs/views.md, from the texts of the views: `python -m ledger.views.page > docs/views.md`."""

from __future__ import annotations

from ledger.views.catalogue import View, views

_INTRODUCTION = """# Views

Made by `python -m ledger.views.page` from the texts in `ledger/views/sql/`; a test checks that it is current.

What people ask of the lake again and again. `anabranch sql` knows the views without being told, and Spark SQL after
`anabranch lake register`, with the same rows. Names, columns and their meanings are stable: a later release adds
columns at the end. What comes to mean something else gets a new `version`, and CHANGELOG says so. Questions that are
asked with them: [cookbook.md](cookbook.md).

Instants are UTC. "As the job knew it" is by the time of the batch that took a message in, as in `decisions`: a layout
stands in a view from then on, not from when the cluster made it. A view with an argument is asked as
`SELECT * FROM load_at(TIMESTAMP '2026-11-22 14:05:00')`. Of intervals a row holds at an instant `t` when
`valid_from <= t AND (valid_to IS NULL OR valid_to > t)`; several layouts that came in one batch make empty intervals.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([_INTRODUCTION, *(_section(view) for view in views().values())])


def _section(view: View) -> str:
    lines = [f"## {view.signature}", "", f"{view.about} Version {view.version}.", ""]
    lines += ["| column | type | |", "| --- | --- | --- |"]
    for kind, columns in (("argument ", view.parameters), ("", view.columns)):
        lines += [f"| {kind}`{one.name}` | {one.type} | {one.meaning} |" for one in columns]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    print(page(), end="")
