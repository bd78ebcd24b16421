"""A run in sentences, on hand-made rows."""

from __future__ import annotations

import json

from deltalake import write_deltalake

from anabranch.history.narrative import tell_run
from lake.rows import WholeTables
from lake.tables import create_table
from schemas.tables.arrow import to_arrow
from schemas.tables.rows import ALERTS, AlertRow
from tests.local.lake import ORDERS, at, decision, hold, layout_event, layout_json, outcome, write

CLICKS = "topic://acme/shop/clicks"
WHOLE = layout_json((0, 0, 0xFFFF))
HALVES = layout_json((1, 0, 0x7FFF), (2, 0x8000, 0xFFFF), epoch=1)


def made(decision_id: str, seconds: float, *children: int, **changed):
    return outcome(decision_id, "applied", seconds, seen=json.dumps({"children": children}), **changed)


def tell(lake, *rows, since: float = 0):
    write(str(lake), *rows)
    return tell_run(WholeTables(str(lake)), at(since), at(1_000))


def test_each_topic_tells_what_was_done_to_it_and_why(tmp_path):
    assert tell(
        tmp_path,
        layout_event(WHOLE, 1),
        layout_event(HALVES, 3, "split"),
        layout_event(WHOLE, 1, topic=CLICKS),
        decision(2, 1),
        made("d1", 2.5, 1, 2),
        decision(4, 2, reason="consumer-count"),
        outcome("d2", "superseded", 5),
        hold(6, "one-hot-key"),
    ) == [
        f"{CLICKS}: 1 segment, nothing to do.",
        f"{ORDERS}: 1 to 2 segments, split once as a segment was over its threshold; "
        "one hot key was found, which no split relieves.",
        "1 action, none of them undone by the opposite.",
    ]


def test_sizes_are_those_of_the_run(tmp_path):
    """The lake has an earlier run."""
    rows = (layout_event(WHOLE, 1), layout_event(HALVES, 3, "split"), layout_event(WHOLE, 12, "merge"))
    merge = decision(11, 2, action="merge", reason="cold", arguments='{"segments":[1,2]}')
    sentences = tell(tmp_path, *rows, merge, made("d2", 12, 3), since=10)
    assert sentences[0] == f"{ORDERS}: 2 to 1 segments, merged once as neighbours had been quiet for long enough."


def test_merge_of_what_was_split_counts_as_undone(tmp_path):
    rows = (
        layout_event(WHOLE, 1),
        decision(2, 1),
        made("d1", 3, 1, 2),
        decision(4, 2, action="merge", reason="cold", arguments='{"segments":[1,2]}'),
        made("d2", 5, 3),
        decision(6, 3, arguments='{"segments":[9]}'),
        made("d3", 7, 10, 11),
    )
    assert tell(tmp_path, *rows)[-1] == "3 actions, 1 of them undone by the opposite."


def test_only_alerts_that_fired_in_the_run_are_told(tmp_path):
    def alert(status, seconds, **changed):
        labels = json.dumps({"topic": ORDERS})
        return AlertRow(
            alert="OneHotKey",
            subject=ORDERS,
            status=status,
            at=at(seconds),
            summary=f"a key at {seconds}",
            labels=labels,
            day=at(seconds).date(),
            **changed,
        )

    alerts = [alert("firing", 5), alert("pending", 20), alert("firing", 30), alert("due", 30, notice="firing")]
    write_deltalake(create_table(str(tmp_path), ALERTS), to_arrow(ALERTS, alerts), mode="append")
    assert tell(tmp_path, since=10) == [
        "0 actions, none of them undone by the opposite.",
        "Alert OneHotKey: a key at 30.",
    ]
