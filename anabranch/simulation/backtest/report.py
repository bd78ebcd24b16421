"""Report of a backtest or a search: rows of tables, JSON, or an HTML file that needs no network.

Stage: above `running` and `suggesting`. Charts are plotly's, whose script is embedded in the file.
"""

from collections.abc import Sequence
from html import escape
from typing import Any

from anabranch.simulation.backtest.assumptions import KINDS
from anabranch.simulation.backtest.running import COUNTS, RAN, RECORD, Backtest, TopicResult
from anabranch.simulation.backtest.suggesting import Suggestion
from anabranch.simulation.backtest.trying import TrialResult
from anabranch.simulation.pages import html_page, number, paragraphs, segments_chart, table_html
from schemas.printable import printable

COLUMN_TITLES = {
    "splits": "splits",
    "merges": "merges",
    "reversals": "reversals",
    "sealedSegments": "disruptions",
    "segmentHours": "segment-hours",
    "minutesOverThreshold": "minutes over threshold",
    "consumerMinutesWaiting": "consumer-minutes waiting",
    "minutesAtCap": "minutes at cap",
}
ASSUMPTION_MEANINGS = {
    "gap": "nothing was reported",
    "ceiling": "over a split threshold: more may have been wanted",
    "band": "known to within the filter's band, and a threshold lies in it",
    "uneven": "splits hashes that were never apart",
    "carried": "splits hashes that were apart at another time",
}
MOST_TOPICS = 50
VALIDATION_TITLE = "The same policies on the last third, which was not searched"


def policy_names(results: Backtest) -> list[str]:
    """Return the names of the policies, the one that ran first."""
    return list(results.topics[0].assumed) if results.topics else []


def total_rows(results: Backtest) -> list[list[str]]:
    """Return a table of the counts: head, record, policy that ran, other policies."""
    rows = [["policy", *COLUMN_TITLES.values(), "confidence"]]
    for name in (RECORD, *policy_names(results)):
        totals = results.totals(name)
        share = "" if name == RECORD else f"{results.confidence(name).confidence:.0%}"
        rows.append([name, *(number(totals[key]) for key in COUNTS), share])
    return rows


def assumption_rows(results: Backtest) -> list[list[str]]:
    """Return a table of the share of time that rests on each kind of assumption, by policy."""
    rows = [["guessed, of the time", *KINDS]]
    for name in policy_names(results):
        assumed = results.confidence(name)
        rows.append([name, *(f"{assumed.by_kind[kind] / max(1, assumed.total):.1%}" for kind in KINDS)])
    return rows


def differing_rows(results: Backtest, most: int) -> list[list[str]]:
    """Return a table of the `most` topics whose results differ most between policies."""
    names = policy_names(results)
    rows = [
        [
            "topic",
            *(f"{name}: {words}" for name in names for words in ("segment-hours", "minutes over")),
            *(f"{name}: confidence" for name in names),
        ]
    ]

    def spread(topic: TopicResult) -> float:
        hours = [topic.counts[name]["segmentHours"] for name in names]
        over = [topic.counts[name]["minutesOverThreshold"] for name in names]
        return float(max(hours) - min(hours) + (max(over) - min(over)) / 60)

    for topic in sorted(results.topics, key=lambda each: (-spread(each), each.topic))[:most]:
        cells = [number(topic.counts[name][key]) for name in names for key in ("segmentHours", "minutesOverThreshold")]
        rows.append([topic.topic, *cells, *(f"{topic.assumed[name].confidence:.0%}" for name in names)])
    return rows


def agreement_text(results: Backtest) -> list[str]:
    """Return lines on how well the backtest of the policy that ran agrees with the record."""
    agreement = results.agreement
    if agreement.share is None:
        return [f"{RAN}: no action on record, and none in its backtest"]
    lines = [
        f"{RAN}, against the record: {agreement.share:.1%} of actions agree within a tick "
        f"({agreement.matched} matched, {agreement.missed.total()} missed, {agreement.extra.total()} extra)"
    ]
    for title, counted in (("missed", agreement.missed), ("extra", agreement.extra)):
        if counted:
            lines.append(f"  {title}: " + ", ".join(f"{why} {times}" for why, times in counted.most_common()))
    return lines


def to_json(results: Backtest) -> dict[str, Any]:
    """Return the whole result for scripts."""
    names = policy_names(results)
    return {
        "topicHours": round(results.topic_hours, 3),
        "onRecord": results.totals(RECORD),
        "policies": {name: {**results.totals(name), **results.confidence(name).to_json()} for name in names},
        "agreement": results.agreement.to_json(),
        "topics": [
            {
                "topic": topic.topic,
                "hours": round(topic.hours, 3),
                "onRecord": topic.counts[RECORD],
                "policies": {name: {**topic.counts[name], **topic.assumed[name].to_json()} for name in names},
                "agreement": None if topic.agreement is None else topic.agreement.to_json(),
            }
            for topic in results.topics
        ],
    }


def backtest_page(results: Backtest, about: Sequence[str]) -> str:
    """Return the HTML file of a backtest; `about` introduces it."""
    body = paragraphs([*about, *agreement_text(results)]) + table_html(total_rows(results))
    body += segments_chart(results.series) + "<h2>What had to be guessed</h2>" + table_html(assumption_rows(results))
    body += paragraphs([f"{kind}: {words}" for kind, words in ASSUMPTION_MEANINGS.items()])
    body += "<h2>Topics that differ most</h2>" + table_html(differing_rows(results, MOST_TOPICS))
    return html_page("Backtest", body)


def suggestion_rows(suggestion: Suggestion) -> list[list[str]]:
    """Return a table of the frontier and today's policy; a star marks the suggestion."""
    listed = [*suggestion.frontier, *([] if suggestion.today in suggestion.frontier else [suggestion.today])]
    return _trial_rows(suggestion, sorted(listed, key=lambda each: (each.segment_hours, each.minutes_over)))


def validation_rows(suggestion: Suggestion) -> list[list[str]]:
    """Return a table of the same policies, in the same order, on the time that was not searched."""
    order = [row[0].removeprefix("* ") for row in suggestion_rows(suggestion)[1:]]
    return _trial_rows(suggestion, [suggestion.validation[name] for name in order if name in suggestion.validation])


def _trial_rows(suggestion: Suggestion, listed: Sequence[TrialResult]) -> list[list[str]]:
    rows = [
        [
            "policy",
            "segment-hours",
            "minutes over threshold",
            "reversals",
            "splits",
            "merges",
            "consumer-minutes waiting",
            "confidence",
        ]
    ]
    best = suggestion.best
    for tried in listed:
        mark = "* " if best is not None and tried.name == best.name else ""
        rows.append(
            [
                f"{mark}{tried.name}",
                number(round(tried.segment_hours, 1)),
                number(round(tried.minutes_over, 1)),
                *(str(count) for count in (tried.reversals, tried.splits, tried.merges)),
                number(round(tried.minutes_waiting, 1)),
                f"{tried.confidence:.0%}",
            ]
        )
    return rows


def suggestion_page(suggestion: Suggestion, about: Sequence[str], advice: str) -> str:
    """Return the HTML file of a search: every policy that was tried, and the frontier."""
    from plotly.graph_objects import Figure, Scatter
    from plotly.io import to_html

    def trace(policies: Sequence[TrialResult], name: str, mode: str, size: int) -> Scatter:
        return Scatter(
            x=[tried.segment_hours for tried in policies],
            y=[tried.minutes_over for tried in policies],
            text=[f"{tried.name} ({tried.confidence:.0%})" for tried in policies],
            mode=mode,
            name=name,
            marker={"size": size},
        )

    allowed = suggestion.allowed
    figure = Figure(
        [
            trace([tried for tried in suggestion.tried if tried not in allowed], "too many reversals", "markers", 6),
            trace(allowed, "tried", "markers", 7),
            trace(suggestion.frontier, "frontier", "lines+markers+text", 9),
            trace([suggestion.today], "today", "markers+text", 14),
        ]
    )
    figure.update_layout(
        template="plotly_white",
        xaxis_title="segment-hours",
        yaxis_title="minutes over threshold",
        title="Policies, confidence in brackets",
    )
    body = paragraphs(about) + table_html(suggestion_rows(suggestion))
    if suggestion.validation:
        body += f"<h2>{VALIDATION_TITLE}</h2>" + table_html(validation_rows(suggestion))
    body += to_html(figure, full_html=False, include_plotlyjs=True, default_height="34rem")
    escaped_advice = "\n".join(map(printable, advice.splitlines()))
    return html_page("Suggestion", body + f"<pre>{escape(escaped_advice)}</pre>")
