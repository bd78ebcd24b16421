"""Simulation as one offline HTML file (plotly): policies side by side, and over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from html import escape

from plotly.graph_objects import Figure, Scatter
from plotly.io import to_html
from plotly.subplots import make_subplots

from anabranch.simulation.topics.outcome import Outcome
from schemas.printable import printable

HEADS = (
    ("splits", "splits"),
    ("merges", "merges"),
    ("reversals", "reversals"),
    ("sealedSegments", "segments sealed"),
    ("segmentHours", "segment-hours"),
    ("minutesOverThreshold", "minutes over threshold"),
    ("consumerMinutesWaiting", "consumer-minutes waiting"),
    ("minutesAtCap", "minutes at cap"),
    ("mostSegments", "most segments"),
)
MOST_TOPICS = 50
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Simulation</title>
<style>body{{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem;color:#1f2328}}
table{{border-collapse:collapse;margin:1rem 0}}
td,th{{padding:.25rem .75rem;border-bottom:1px solid #d0d7de;text-align:right}}
td:first-child,th:first-child{{text-align:left}}</style></head>
<body><h1>Simulation</h1><p>{about}</p>{numbers}{chart}<h2>Topics that differ most</h2>{topics}</body></html>
"""


def rows_of(outcomes: Mapping[str, Outcome]) -> list[list[str]]:
    """Return a row for each policy: its name, then columns in the order of `HEADS`."""
    return [[name, *(_number(outcome.to_json()[key]) for key, _ in HEADS)] for name, outcome in outcomes.items()]


def page(outcomes: Mapping[str, Outcome], about: str) -> str:
    """Return the text of the file; `about` says what was simulated."""
    return _PAGE.format(
        about=escape(printable(about)),
        numbers=_table(("policy", *(words for _, words in HEADS)), rows_of(outcomes)),
        chart=to_html(_chart(outcomes), full_html=False, include_plotlyjs=True, default_height="34rem"),
        topics=_topics(outcomes),
    )


def _chart(outcomes: Mapping[str, Outcome]) -> Figure:
    figure = make_subplots(
        rows=2,
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.08,
        subplot_titles=("Segments of all topics", "Topics with a segment over a split threshold"),
    )
    for number, (name, outcome) in enumerate(outcomes.items()):
        times = [datetime.fromtimestamp(instant / 1000, timezone.utc) for instant, *_ in outcome.series]
        line = {"dash": _DASHES[number % len(_DASHES)]}
        for row, column in ((1, 1), (2, 2)):
            figure.add_trace(
                Scatter(
                    x=times,
                    y=[point[column] for point in outcome.series],
                    mode="lines",
                    line=line,
                    name=escape(printable(name)),
                    legendgroup=name,
                    showlegend=row == 1,
                ),
                row=row,
                col=1,
            )
    figure.update_layout(template="plotly_white", margin={"t": 40, "b": 30}, legend={"orientation": "h"})
    return figure


def _topics(outcomes: Mapping[str, Outcome]) -> str:
    """Return a table, as HTML, of segment-hours and minutes over threshold by topic and policy.

    The topics whose segment-hours differ most between policies come first, at most `MOST_TOPICS` of them.
    """
    of_each = [outcome.of_topics() for outcome in outcomes.values()]
    rows = list(zip(*of_each, strict=True))
    rows.sort(
        key=lambda row: -(max(counts["segmentHours"] for counts in row) - min(counts["segmentHours"] for counts in row))
    )
    heads = ["topic", *(f"{name}: {words}" for name in outcomes for words in ("segment-hours", "minutes over"))]
    cells = [
        [row[0]["topic"], *(_number(counts[key]) for counts in row for key in ("segmentHours", "minutesOverThreshold"))]
        for row in rows[:MOST_TOPICS]
    ]
    return _table(heads, cells)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(printable(cell))}</th>" for cell in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(printable(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"
