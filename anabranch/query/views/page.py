"""Generator of docs/views.md from the views' texts: `python -m anabranch.query.views.page > docs/views.md`."""

from __future__ import annotations

from anabranch.query.views.catalogue import View, views

_INTRODUCTION = """# Views

Made by `python -m anabranch.query.views.page` from the texts in `anabranch/query/views/sql/`; a test checks that it is
current.

What people ask of the lake again and again. `anabranch sql` knows the views without being told, and Spark SQL after
`anabranch lake register`, with the same rows. Names, columns and their meanings are stable: a later release adds
columns at the end. What comes to mean something else gets a new `version`, and CHANGELOG says so. Questions that are
asked with them: [cookbook.md](cookbook.md).

Instants are UTC. "As the job knew it" is by the time of the batch that took a message in, as in `decisions`: a layout
stands in a view from then on, not from when the cluster made it. A view with an argument is asked as
`SELECT * FROM load_at(TIMESTAMP '2026-11-22 14:05:00')`. Of intervals a row holds at an instant `t` when
`valid_from <= t AND (valid_to IS NULL OR valid_to > t)`; several layouts that came in one batch make empty intervals.

What they cost, measured on one day of 10,000 topics: 970,000 decisions, 1,220,000 holds, 3.1 million events, 21 million
loads; two shared cores, every column of every row:

| view | CPU s | memory, GB | of one topic, CPU s |
| --- | --- | --- | --- |
| `holds_now` | 0.9 | 0.7 | 0.2 |
| `thrash_since`, of three hours | 0.9 | 0.5 | |
| `decision_outcomes` | 1.7 | 0.7 | 0.2 |
| `hold_intervals` | 2.8 | 0.8 | 0.1 |
| `layout_at` | 3.3 | 0.8 | 0.2 |
| `layout_spans` | 3.6 | 1.0 | 0.1 |
| `gate_hours` | 3.8 | 0.7 | |
| `thrash` | 4.2 | 0.9 | 0.3 |
| `segment_hours` | 4.4 | 0.8 | 0.1 |
| `consumers_waiting` | 4.4 | 0.8 | 0.2 |
| `over_threshold` | 8.8 | 0.7 | 0.4 |
| `load_at` | 9.9 | 0.8 | 0.2 |
| `layout_intervals` | 10.1 | 1.1 | 0.2 |
| `fleet_health`, `fleet_health_at` | 12.0 | 1.3 | |
| `load_intervals` | 39 | 4.8 | 0.1 |

So most are not whole within a second at that size, and of one topic (`WHERE topic = '…'` or `subject`) all are. What
looks at the present or at a few hours has a view of its own: `holds_now`, `thrash_since`. Ask `layout_spans` where the
text of a layout is not wanted. No question takes more than half of the machine's memory ([sql.md](sql.md)). A
condition on `day` leaves out no file of `load_intervals`: the end of a row is in the row behind it, of any day.
"""


def page() -> str:
    """Return the whole page."""
    return "\n".join([_INTRODUCTION, *(_section(view) for view in views().values())])


def _section(view: View) -> str:
    lines = [f"## {view.signature}", "", f"{view.about} Version {view.version}.", ""]
    lines += ["| column | type | |", "| --- | --- | --- |"]
    for kind, columns in (("argument ", view.parameters), ("", view.columns)):
        lines += [f"| {kind}`{one.name}` | {one.type} | {one.meaning} |" for one in columns]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    print(page(), end="")
