"""Simulation as one offline HTML file (plotly): policies side by side, and over time."""

from collections.abc import Mapping

from anabranch.simulation.pages import html_page, number, paragraphs, segments_chart, table_html
from anabranch.simulation.topics.outcome import Outcome

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


def rows_of(outcomes: Mapping[str, Outcome]) -> list[list[str]]:
    """Return a row for each policy: its name, then columns in the order of `HEADS`."""
    return [[name, *(number(outcome.to_json()[key]) for key, _ in HEADS)] for name, outcome in outcomes.items()]


def page(outcomes: Mapping[str, Outcome], about: str) -> str:
    """Return the text of the file; `about` says what was simulated."""
    body = paragraphs([about]) + table_html([["policy", *(words for _, words in HEADS)], *rows_of(outcomes)])
    body += segments_chart({name: outcome.series for name, outcome in outcomes.items()})
    return html_page("Simulation", f"{body}<h2>Topics that differ most</h2>{_topics(outcomes)}")


def _topics(outcomes: Mapping[str, Outcome]) -> str:
    """Return a table, as HTML, of segment-hours and minutes over threshold by topic and policy.

    The topics whose segment-hours differ most between policies come first, at most `MOST_TOPICS` of them.
    """
    rows = list(zip(*[outcome.of_topics() for outcome in outcomes.values()], strict=True))
    rows.sort(
        key=lambda row: -(max(counts["segmentHours"] for counts in row) - min(counts["segmentHours"] for counts in row))
    )
    heads = ["topic", *(f"{name}: {words}" for name in outcomes for words in ("segment-hours", "minutes over"))]
    cells = [
        [row[0]["topic"], *(number(counts[key]) for counts in row for key in ("segmentHours", "minutesOverThreshold"))]
        for row in rows[:MOST_TOPICS]
    ]
    return table_html([heads, *cells])
