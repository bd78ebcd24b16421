"""Comparison as one offline HTML file (plotly): a chart over time, the numbers, and the actions.

Stage: beside `report`, whose numbers it draws.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from plotly.graph_objects import Figure, Scatter
from plotly.io import to_html
from plotly.subplots import make_subplots

from anabranch.simulation.pages import LAYOUT, html_page, html_text, moment, table_html

THEIRS, OURS = "#1f6feb", "#d2691e"
MOST_TOPICS = 40
"""Topics with a line of their own in the chart: those with the most actions."""
MOST_ROWS = 1_000
"""Actions in the table; the JSON form has all."""
_SYMBOLS = {"split": "triangle-up", "merge": "triangle-down", "rebucket": "diamond"}
_STEPS = {"split": 1, "merge": -1}
"""Segments that an action adds."""


def page(report: dict[str, Any], numbers: Sequence[tuple[str, str, str]]) -> str:
    """Return the text of the file. `report`: from `compare`; `numbers`: rows of label, theirs, ours."""
    period = report["period"]
    begin, end = (f"{moment(period[key]):%F %H:%M}" for key in ("from", "to"))
    body = (
        f"<p>{begin} to {end} UTC, {report['topics']} topics. "
        "The cluster's own scaler acted; Anabranch only decided.</p>"
        + table_html([("", "the cluster's scaler", "Anabranch"), *numbers])
        + to_html(_chart(report), full_html=False, include_plotlyjs=True, default_height="36rem")
        + f"<h2>Action by action</h2>{_actions(report['actions'])}"
        + "".join(f'<p class="note">{html_text(doubt)}</p>' for doubt in (*report["notes"], *report["doubts"]))
    )
    return html_page("Shadow report", body, words=6)


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
                x=[moment(instant) for instant in times], y=levels, mode="lines", line=line, name=name, legendgroup=name
            ),
            row=1,
            col=1,
        )
    busiest = {name for name, _ in Counter(row["topic"] for row in actions).most_common(MOST_TOPICS)}
    shown = [row for row in actions if row["topic"] in busiest]
    links: tuple[list[datetime | None], list[str | None]] = ([], [])
    for row in shown:
        if row["theirsAt"] and row["oursAt"]:
            links[0].extend((moment(row["oursAt"]), moment(row["theirsAt"]), None))
            links[1].extend((html_text(row["topic"]), html_text(row["topic"]), None))
    grey = {"color": "#8c959f", "width": 1}
    figure.add_trace(
        Scatter(x=links[0], y=links[1], mode="lines", line=grey, name="the same action", hoverinfo="skip"), row=2, col=1
    )
    for name, column, colour in (("the cluster's scaler", "theirsAt", THEIRS), ("Anabranch", "oursAt", OURS)):
        rows = [row for row in shown if row[column]]
        figure.add_trace(
            Scatter(
                x=[moment(row[column]) for row in rows],
                y=[html_text(row["topic"]) for row in rows],
                mode="markers",
                marker={"color": colour, "size": 10, "symbol": [_SYMBOLS[row["action"]] for row in rows]},
                text=[f"{row['action']} {_ids(row)}: {html_text(row['verdict'])}" for row in rows],
                hovertemplate="%{text}<br>%{x}<br>%{y}<extra></extra>",
                name=name,
                legendgroup=name,
                showlegend=False,
            ),
            row=2,
            col=1,
        )
    figure.update_layout(**LAYOUT)
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
    return table_html([("theirs, UTC", "ours, UTC", "topic", "action", "lead", ""), *rows]) + more


def _ids(row: dict[str, Any]) -> str:
    return "+".join(map(str, row["segments"]))


def _time(milliseconds: int | None) -> str:
    return "" if milliseconds is None else f"{moment(milliseconds):%F %T}"
