"""Comparison as one offline HTML file (plotly): a chart over time, the numbers, and the actions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timezone
from html import escape
from typing import Any

from plotly.graph_objects import Figure, Scatter
from plotly.io import to_html
from plotly.subplots import make_subplots

from schemas.printable import printable

THEIRS, OURS = "#1f6feb", "#d2691e"
MOST_TOPICS = 40
"""Topics with a line of their own in the chart: those with the most actions."""
MOST_ROWS = 1_000
"""Actions in the table; the JSON form has all."""
_SYMBOLS = {"split": "triangle-up", "merge": "triangle-down", "rebucket": "diamond"}
_STEPS = {"split": 1, "merge": -1}
"""Segments that an action adds."""
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Shadow report</title>
<style>body{{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem;color:#1f2328}}
table{{border-collapse:collapse;margin:1rem 0}}
td,th{{padding:.25rem .75rem;border-bottom:1px solid #d0d7de;text-align:left}}.note{{color:#9a6700}}</style></head>
<body><h1>Shadow report</h1><p>{period}, {topics} topics. The cluster's own scaler acted; Anabranch only decided.</p>
{numbers}{chart}<h2>Action by action</h2>{actions}{notes}</body></html>
"""


def page(report: dict[str, Any], numbers: Sequence[tuple[str, str, str]]) -> str:
    """Return the text of the file. `report`: from `compare`; `numbers`: rows of label, theirs, ours."""
    period = report["period"]
    return _PAGE.format(
        period=f"{_instant(period['from']):%F %H:%M} to {_instant(period['to']):%F %H:%M} UTC",
        topics=report["topics"],
        numbers=_table(("", "the cluster's scaler", "Anabranch"), numbers),
        chart=to_html(_chart(report), full_html=False, include_plotlyjs=True, default_height="36rem"),
        actions=_actions(report["actions"]),
        notes="".join(f'<p class="note">{_text(doubt)}</p>' for doubt in (*report["notes"], *report["doubts"])),
    )


def _chart(report: dict[str, Any]) -> Figure:
    actions = report["actions"]
    figure = make_subplots(
        rows=2,
        cols=1,
        shared_xaxes=True,
        row_heights=[0.35, 0.65],
        vertical_spacing=0.08,
        subplot_titles=("Splits less merges, since the beginning", "Actions by topic: up is a split, down a merge"),
    )
    for name, column, colour in (("the cluster's scaler", "theirsAt", THEIRS), ("Anabranch", "oursAt", OURS)):
        steps = sorted((row[column], _STEPS.get(row["action"], 0)) for row in actions if row[column])
        times, level, levels = [report["period"]["from"]], 0, [0]
        for instant, step in steps:
            level += step
            times.append(instant)
            levels.append(level)
        times.append(report["period"]["to"])
        levels.append(level)
        line = {"color": colour, "shape": "hv"}
        figure.add_trace(
            Scatter(
                x=[_instant(instant) for instant in times],
                y=levels,
                mode="lines",
                line=line,
                name=name,
                legendgroup=name,
            ),
            row=1,
            col=1,
        )
    busiest = {name for name, _ in Counter(row["topic"] for row in actions).most_common(MOST_TOPICS)}
    shown = [row for row in actions if row["topic"] in busiest]
    links: tuple[list[datetime | None], list[str | None]] = ([], [])
    for row in shown:
        if row["theirsAt"] and row["oursAt"]:
            links[0].extend((_instant(row["oursAt"]), _instant(row["theirsAt"]), None))
            links[1].extend((_text(row["topic"]), _text(row["topic"]), None))
    grey = {"color": "#8c959f", "width": 1}
    figure.add_trace(
        Scatter(x=links[0], y=links[1], mode="lines", line=grey, name="the same action", hoverinfo="skip"), row=2, col=1
    )
    for name, column, colour in (("the cluster's scaler", "theirsAt", THEIRS), ("Anabranch", "oursAt", OURS)):
        rows = [row for row in shown if row[column]]
        figure.add_trace(
            Scatter(
                x=[_instant(row[column]) for row in rows],
                y=[_text(row["topic"]) for row in rows],
                mode="markers",
                marker={"color": colour, "size": 10, "symbol": [_SYMBOLS[row["action"]] for row in rows]},
                text=[f"{row['action']} {_ids(row)}: {_text(row['verdict'])}" for row in rows],
                hovertemplate="%{text}<br>%{x}<br>%{y}<extra></extra>",
                name=name,
                legendgroup=name,
                showlegend=False,
            ),
            row=2,
            col=1,
        )
    figure.update_layout(template="plotly_white", margin={"t": 40, "b": 30}, legend={"orientation": "h"})
    return figure


def _actions(actions: Sequence[dict[str, Any]]) -> str:
    rows = [
        (
            _time(row["theirsAt"]),
            _time(row["oursAt"]),
            row["topic"],
            f"{row['action']} {_ids(row)}",
            "" if row["leadSeconds"] is None else f"{row['leadSeconds']:.0f} s",
            row["verdict"],
        )
        for row in actions[:MOST_ROWS]
    ]
    left = len(actions) - len(rows)
    more = f"<p>{left} more: <code>--output json</code> has all.</p>" if left else ""
    return _table(("theirs, UTC", "ours, UTC", "topic", "action", "lead", ""), rows) + more


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{_text(cell)}</th>" for cell in heads)
    body = "".join("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _ids(row: dict[str, Any]) -> str:
    return "+".join(map(str, row["segments"]))


def _text(value: object) -> str:
    return escape(printable(str(value)))


def _instant(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc)


def _time(milliseconds: int | None) -> str:
    return "" if milliseconds is None else f"{_instant(milliseconds):%F %T}"
