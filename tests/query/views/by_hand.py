"""Answers to questions of docs/sql.md in plain Python, from the raw rows of a recorded story: no view, no SQL."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from statistics import median
from typing import Any

from schemas.tables.rows import BATCHES, DEAD_LETTERS, DECISIONS, EVENTS, HOLDS, SEGMENT_LOAD, Table
from tests.query.views.recorded import CLICKS, ORDERS, Story

Row = tuple[Any, ...]
HOUR = timedelta(hours=1)


def at(hour: int, minute: int) -> datetime:
    """A time of the day of the story."""
    return datetime(2026, 11, 22, hour, minute, tzinfo=timezone.utc)


def rows(story: Story, table: Table) -> list[dict[str, Any]]:
    """All rows of a table."""
    found: list[dict[str, Any]] = story.bucket.table(table).to_pylist()
    return found


def decisions(story: Story) -> list[dict[str, Any]]:
    """In the order in which they were taken."""
    return sorted(rows(story, DECISIONS), key=lambda row: row["decided_at"])


def layouts(story: Story) -> dict[str, list[tuple[datetime, dict[str, Any] | None]]]:
    """By topic since when which layout stood; None: the topic was deleted."""
    found = defaultdict(list)
    for row in rows(story, EVENTS):
        if row["type"] == "layout":
            layout = None if row["cause"] == "deleted" else json.loads(row["body"])["layout"]
            found[row["subject"]].append((row["accepted_at"], layout))
    return found


def newest(steps: list[tuple[datetime, Any]], instant: datetime) -> Any:
    """The last value up to an instant."""
    return next((value for since, value in reversed(steps) if since <= instant), None)


def active(layout: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The active segments of a layout."""
    segments = [] if layout is None else layout["segments"].values()
    return [one for one in segments if one["state"] == "ACTIVE"]


def loads(story: Story, instant: datetime) -> dict[tuple[str, int], tuple[float | None, float | None, datetime | None]]:
    """Of each active segment at an instant: messages and bytes in, and since when they are known."""
    known = defaultdict(list)
    for row in rows(story, SEGMENT_LOAD):
        entry = row["msg_rate_in"], row["bytes_rate_in"], row["accepted_at"]
        known[row["topic"], row["segment_id"]].append((row["accepted_at"], entry))
    return {
        (topic, one["segmentId"]): newest(known[topic, one["segmentId"]], instant) or (None, None, None)
        for topic, steps in layouts(story).items()
        for one in active(newest(steps, instant))
    }


def segments_of(row: dict[str, Any]) -> str:
    """Of a decision, as views say them."""
    return ",".join(map(str, json.loads(row["arguments"])["segments"]))


def ends(story: Story) -> dict[str, dict[str, Any]]:
    """The end of each decision."""
    return {row["decision_id"]: row for row in story.outcomes if row["status"] != "intent"}


def held(story: Story) -> Iterator[tuple[str, str, datetime, datetime | None]]:
    """Subject, gate, from and until of each hold."""
    steps = defaultdict(list)
    for row in rows(story, HOLDS):
        steps[row["subject"]].append((row["since"], row["gate"]))
    for row in rows(story, DECISIONS):
        steps[row["subject"]].append((row["decided_at"], None))
    for topic, known in layouts(story).items():
        steps[topic] += [(since, None) for since, layout in known if layout is None]
    for topic, found in steps.items():
        found.sort(key=lambda one: one[0])
        for number, (since, gate) in enumerate(found):
            if gate is not None:
                yield topic, gate, since, found[number + 1][0] if number + 1 < len(found) else None


def end_of_record(story: Story) -> datetime:
    """Time of the last batch."""
    last: datetime = max(row["batch_at"] for row in rows(story, BATCHES))
    return last


def why_not_split(story: Story) -> list[Row]:
    instant = at(11, 20)
    rates = [load[0] for (topic, _), load in loads(story, instant).items() if topic == ORDERS]
    last = max(
        (row for row in decisions(story) if row["subject"] == ORDERS and row["decided_at"] <= instant),
        key=lambda row: row["decided_at"],
    )
    threshold = json.loads(last["inputs"])["policy"]["splitMsgRateInThreshold"]
    open_then = [
        row
        for row in decisions(story)
        if row["subject"] == ORDERS and row["decided_at"] <= instant < ends(story)[row["decision_id"]]["at"]
    ]
    consumers = [
        (row["accepted_at"], json.loads(row["body"])["consumers"])
        for row in rows(story, EVENTS)
        if row["type"] == "consumer" and row["subject"] == ORDERS
    ]
    waiting = max(0, (newest(consumers, instant) or 0) - len(rates))
    return [(len(rates), max(rates), threshold, waiting, len(open_then))]


def what_was_done(story: Story) -> list[Row]:
    found = sorted((row for row in decisions(story) if row["subject"] == ORDERS), key=lambda row: row["decided_at"])
    end = ends(story)
    return [
        (
            row["decided_at"],
            row["action"],
            segments_of(row),
            row["reason"],
            row["trigger"],
            end[row["decision_id"]]["status"],
            (end[row["decision_id"]]["at"] - row["decided_at"]).total_seconds(),
        )
        for row in found
    ]


def what_holds_now(story: Story) -> list[Row]:
    since = defaultdict(list)
    for _, gate, begun, until in held(story):
        if until is None:
            since[gate].append(begun)
    return sorted(((gate, len(begun), min(begun)) for gate, begun in since.items()), key=lambda row: (-row[1], row[0]))


def what_undoes(story: Story) -> list[Row]:
    end, pairs = ends(story), defaultdict(list)
    done = []
    for row in decisions(story):
        if end[row["decision_id"]]["status"] == "applied":
            segments = json.loads(row["arguments"])["segments"]
            seen = json.loads(end[row["decision_id"]]["seen"])["segments"]
            children = set(seen[str(segments[0])]["children"])
            done.append((row["subject"], row["action"], set(segments), children, end[row["decision_id"]]["at"]))
    for topic, action, _, children, first in done:
        for other, undoing, segments, _, second in done:
            if topic == other and action != undoing and children & segments and timedelta(0) <= second - first <= HOUR:
                pairs[topic, action].append((second - first).total_seconds() / 60)
    found = [(topic, action, len(minutes), median(minutes)) for (topic, action), minutes in pairs.items()]
    return sorted(found, key=lambda row: (-row[2], row[1]))


def how_long_until_applied(story: Story) -> list[Row]:
    begun = {row["decision_id"]: row["at"] for row in story.outcomes if row["status"] == "intent"}
    seconds = defaultdict(list)
    for row in decisions(story):
        end = ends(story)[row["decision_id"]]
        if end["status"] == "applied":
            times = begun[row["decision_id"]], end["at"]
            seconds[row["action"]].append([(one - row["decided_at"]).total_seconds() for one in times])
    return [
        (
            action,
            len(found),
            median(one[0] for one in found),
            median(one[1] for one in found),
            max(one[1] for one in found),
        )
        for action, found in sorted(seconds.items())
    ]


def what_failed(story: Story) -> list[Row]:
    found = [(row, ends(story)[row["decision_id"]]) for row in decisions(story)]
    return [
        (
            row["decided_at"],
            row["subject"],
            row["action"],
            segments_of(row),
            end["status"],
            end["attempt"],
            end["error"],
        )
        for row, end in found
        if end["status"] in ("failed", "rejected", "superseded")
    ]


def hours_of_topics(story: Story) -> dict[str, float]:
    """Segment-hours by topic."""
    found, last = defaultdict(float), end_of_record(story)
    for topic, steps in layouts(story).items():
        for number, (since, layout) in enumerate(steps):
            until = steps[number + 1][0] if number + 1 < len(steps) else last
            found[topic] += len(active(layout)) * ((until - since) / HOUR)
    return found


def what_it_cost(story: Story) -> list[Row]:
    return [(at(0, 0).date(), "acme", "shop", sum(hours_of_topics(story).values()))]


def what_cost_most(story: Story) -> list[Row]:
    most = {
        # Layouts that another one of their batch replaced stood for no time.
        topic: max(len(active(newest(steps, since))) for since, _ in steps)
        for topic, steps in layouts(story).items()
    }
    return sorted(
        ((topic, hours, most[topic]) for topic, hours in hours_of_topics(story).items()), key=lambda row: -row[1]
    )


def layout_of_clicks(story: Story) -> list[Row]:
    steps = [(since, (since, layout)) for since, layout in layouts(story)[CLICKS]]
    since, layout = newest(steps, at(11, 5))
    return sorted(
        (
            (one["segmentId"], one["hashRange"]["start"], one["hashRange"]["end"], layout["epoch"], since)
            for one in active(layout)
        ),
        key=lambda row: row[1],
    )


def what_is_hottest(story: Story) -> list[Row]:
    found = [(*key, *load) for key, load in loads(story, at(11, 5)).items() if load[0] is not None]
    return sorted(found, key=lambda row: (-row[2], row[0], row[1]))[:5]


def how_even(story: Story) -> list[Row]:
    rates = defaultdict(list)
    for (topic, _), load in loads(story, at(11, 5)).items():
        rates[topic].append(load[0])
    found = [
        (topic, len(known), sum(known) / len(known), max(known) * len(known) / sum(known))
        for topic, known in rates.items()
    ]
    return sorted(found, key=lambda row: (-row[3], row[0]))


def what_held_longest(story: Story) -> list[Row]:
    last = end_of_record(story)
    found = [
        (topic, gate, since, until, ((until or last) - since).total_seconds() / 60)
        for topic, gate, since, until in held(story)
    ]
    return sorted(found, key=lambda row: (-row[4], row[0]))[:5]


def what_led_to_actions(story: Story) -> list[Row]:
    found = Counter(
        (row["decided_at"].replace(minute=0, second=0, microsecond=0), row["action"], row["reason"])
        for row in decisions(story)
    )
    return sorted((*key, number) for key, number in found.items())


def was_all_accounted_for(story: Story) -> list[Row]:
    counts = rows(story, BATCHES)
    names = ("messages", "messages_accepted", "messages_suppressed", "dead_letters")
    [letter] = rows(story, DEAD_LETTERS)
    return [(*(sum(row[name] for row in counts) for name in names), f"{letter['reason']}: {letter['detail']}")]


ANSWERS: dict[int, Callable[[Story], list[Row]]] = {
    1: why_not_split,
    2: what_was_done,
    3: what_holds_now,
    4: what_undoes,
    7: how_long_until_applied,
    8: what_failed,
    10: what_it_cost,
    11: what_cost_most,
    13: layout_of_clicks,
    14: what_is_hottest,
    15: how_even,
    17: what_held_longest,
    18: what_led_to_actions,
    19: was_all_accounted_for,
}
"""By the number of the question."""
