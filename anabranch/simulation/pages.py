"""Parts of the offline HTML files (plotly) and of tables in a terminal, for all simulations."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from html import escape
from typing import Any

from schemas.printable import printable

LAYOUT: Mapping[str, Any] = {"template": "plotly_white", "margin": {"t": 40, "b": 30}, "legend": {"orientation": "h"}}
"""Layout of a chart."""
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>body{{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:76rem;padding:0 1rem;color:#1f2328}}
table{{border-collapse:collapse;margin:1rem 0}}pre{{background:#f6f8fa;padding:1rem}}.note{{color:#9a6700}}
td,th{{padding:.25rem .7rem;border-bottom:1px solid #d0d7de;text-align:right}}
td:nth-child(-n+{words}),th:nth-child(-n+{words}){{text-align:left}}</style></head>
<body><h1>{title}</h1>{body}</body></html>
"""


def html_page(title: str, body: str, words: int = 1) -> str:
    """Return the text of a file; `words`: first columns of its tables that hold words and not numbers."""
    return _PAGE.format(title=title, body=body, words=words)


def html_text(text: object) -> str:
    """Return text from anywhere, visible and without markup."""
    return escape(printable(str(text)))


def paragraphs(lines: Sequence[str]) -> str:
    """Return a paragraph for each line."""
    return "".join(f"<p>{html_text(line)}</p>" for line in lines)


def table_html(rows: Sequence[Sequence[object]]) -> str:
    """Return an HTML table; the first row is the head."""
    head = "".join(f"<th>{html_text(cell)}</th>" for cell in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{html_text(cell)}</td>" for cell in row) + "</tr>" for row in rows[1:])
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def table_text(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return aligned lines of a table for a terminal."""
    shown = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in shown) for column in range(len(shown[0]))]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in shown]


def number(value: float) -> str:
    """Return a number with one digit after the point unless it is whole."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def moment(milliseconds: int) -> datetime:
    """Return an instant, UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc)


def add_line(figure: Any, row: int, index: int, name: str, points: tuple[Sequence[Any], Sequence[float]]) -> None:
    """Draw a line in a row of a chart; lines of an index share dashes and an entry of the legend."""
    from plotly.graph_objects import Scatter

    line = {"dash": _DASHES[index % len(_DASHES)]}
    shown = Scatter(x=points[0], y=points[1], mode="lines", line=line, name=html_text(name), legendgroup=name)
    figure.add_trace(shown.update(showlegend=row == 1), row=row, col=1)


def segments_chart(series: Mapping[str, Sequence[tuple[int, int, int]]]) -> str:
    """Return a chart over time; points are instant (ms), segments, and topics over a split threshold."""
    from plotly.io import to_html
    from plotly.subplots import make_subplots

    titles = ("Segments of all topics", "Topics with a segment over a split threshold")
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.08, subplot_titles=titles)
    for index, (name, points) in enumerate(series.items()):
        times = [moment(instant) for instant, *_ in points]
        for row in (1, 2):
            add_line(figure, row, index, name, (times, [point[row] for point in points]))
    figure.update_layout(**LAYOUT)
    return str(to_html(figure, full_html=False, include_plotlyjs=True, default_height="34rem"))
