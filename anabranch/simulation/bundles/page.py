"""Comparison of balancers as one offline HTML file (plotly): the table, and the spread over time."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from plotly.graph_objects import Figure, Scatter
from plotly.io import to_html
from plotly.subplots import make_subplots

from anabranch.simulation.bundles.compare import COLUMNS, Compared, rows_of
from schemas.printable import printable

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Balancers</title>
<style>body{{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:84rem;padding:0 1rem;color:#1f2328}}
table{{border-collapse:collapse;margin:1rem 0}}
td,th{{padding:.25rem .75rem;border-bottom:1px solid #d0d7de;text-align:right}}
td:nth-child(-n+2),th:nth-child(-n+2){{text-align:left}}</style></head>
<body><h1>Balancers</h1><p>{about}</p>{numbers}{chart}</body></html>
"""
_HEIGHT = 260
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")


def page(compared: Sequence[Compared], about: str) -> str:
    """Return the text of the file; `about` says what was simulated."""
    heads = "".join(f"<th>{escape(head)}</th>" for head in ("shape", "balancer", *(words for _, words in COLUMNS)))
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(printable(cell))}</td>" for cell in row) + "</tr>" for row in rows_of(compared)
    )
    return _PAGE.format(
        about=escape(printable(about)),
        numbers=f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>",
        chart=to_html(_chart(compared), full_html=False, include_plotlyjs=True),
    )


def _chart(compared: Sequence[Compared]) -> Figure:
    """Return a chart of the spread of usage over the minutes of the first seed, a plot for each shape."""
    shapes = list(dict.fromkeys(result.shape for result in compared))
    balancers = list(dict.fromkeys(result.balancer for result in compared))
    figure = make_subplots(
        rows=len(shapes), cols=1, subplot_titles=[f"{shape}: standard deviation of usage" for shape in shapes]
    )
    for result in compared:
        row = shapes.index(result.shape) + 1
        line = {"dash": _DASHES[balancers.index(result.balancer) % len(_DASHES)]}
        figure.add_trace(
            Scatter(
                x=list(range(result.outcomes[0].minutes)),
                y=result.outcomes[0].deviations,
                mode="lines",
                line=line,
                name=escape(printable(result.balancer)),
                legendgroup=result.balancer,
                showlegend=row == 1,
            ),
            row=row,
            col=1,
        )
    figure.update_layout(
        template="plotly_white",
        margin={"t": 40, "b": 30},
        legend={"orientation": "h"},
        height=_HEIGHT * len(shapes) + 80,
    )
    return figure
