"""Comparison of balancers as one offline HTML file (plotly): the table, and the spread over time."""

from collections.abc import Sequence

from plotly.graph_objects import Figure
from plotly.io import to_html
from plotly.subplots import make_subplots

from anabranch.simulation.bundles.compare import COLUMNS, Compared, rows_of
from anabranch.simulation.pages import LAYOUT, add_line, html_page, paragraphs, table_html

_HEIGHT = 260


def page(compared: Sequence[Compared], about: str) -> str:
    """Return the text of the file; `about` says what was simulated."""
    heads = ("shape", "balancer", *(words for _, words in COLUMNS))
    chart = to_html(_chart(compared), full_html=False, include_plotlyjs=True)
    return html_page("Balancers", paragraphs([about]) + table_html([heads, *rows_of(compared)]) + chart, words=2)


def _chart(compared: Sequence[Compared]) -> Figure:
    """Return a chart of the spread of usage over the minutes of the first seed, a plot for each shape."""
    shapes = list(dict.fromkeys(result.shape for result in compared))
    balancers = list(dict.fromkeys(result.balancer for result in compared))
    figure = make_subplots(
        rows=len(shapes), cols=1, subplot_titles=[f"{shape}: standard deviation of usage" for shape in shapes]
    )
    for result in compared:
        points = list(range(result.outcomes[0].minutes)), result.outcomes[0].deviations
        row, index = shapes.index(result.shape) + 1, balancers.index(result.balancer)
        add_line(figure, row, index, result.balancer, points)
    figure.update_layout(**LAYOUT, height=_HEIGHT * len(shapes) + 80)
    return figure
