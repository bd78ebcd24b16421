"""Views that find a part without putting everything into order, against those that do, and against plain Python."""

from __future__ import annotations

import json
from random import Random

import pytest

from anabranch.query.sql import LakeSql
from tests.local.lake import POLICY, decision, load, write
from tests.query.views.test_views import INSTANTS, literal

REASONS = {
    "msgRateIn": ("msg_rate_in", "splitMsgRateInThreshold"),
    "bytesRateIn": ("bytes_rate_in", "splitBytesRateInThreshold"),
    "msgRateOut": ("msg_rate_out", "splitMsgRateOutThreshold"),
    "bytesRateOut": ("bytes_rate_out", "splitBytesRateOutThreshold"),
}


def rows_of(lake, sql, as_of=None):
    """Sorted, as text: instants and nulls have no order of their own."""
    return sorted(map(str, LakeSql(lake, as_of).ask(sql).read_all().to_pylist()))


@pytest.mark.parametrize("as_of", INSTANTS[1:])
def test_current_holds_are_intervals_without_end(lake, as_of):
    columns = "family, subject, gate, measured, bound, margin, eligible_at, trigger, layout_epoch, held_from, seconds"
    now = rows_of(lake, f"SELECT {columns} FROM holds_now", as_of)
    assert now
    assert now == rows_of(lake, f"SELECT {columns} FROM hold_intervals WHERE held_until IS NULL", as_of)


@pytest.mark.parametrize("since", INSTANTS)
def test_thrash_since_instant_is_all_undone_after(lake, since):
    narrowed = rows_of(lake, f"SELECT * FROM thrash_since({literal(since)})")
    assert narrowed == rows_of(lake, f"SELECT * FROM thrash WHERE undone_at > {literal(since)}")


def test_layouts_without_their_text_are_those_with_it(lake):
    columns = "topic, life, epoch, cause, decision_id, active_segments, changed_at, valid_from, valid_to"
    spans = rows_of(lake, f"SELECT {columns} FROM layout_spans")
    assert spans
    assert spans == rows_of(lake, f"SELECT {columns} FROM layout_intervals")


def test_time_over_threshold_matches_single_loads(tmp_path):
    random, lake = Random(7), str(tmp_path / "lake")
    known = [("topic://a/b/c", 0), ("topic://a/b/c", 1), ("topic://a/b/d", 0)]
    rates = [5_000.0, 10_000.0, 10_000.1, 40_000.0, 70_000.0]
    loads = [
        # Few instants, so that many loads of a segment come in one batch; around the thresholds, often on one.
        load(segment, random.choice(rates), random.randrange(12) * 60, topic).model_copy(
            update={"kafka_partition": random.randrange(2), "kafka_offset": number}
        )
        for number, (topic, segment) in enumerate(known * 12)
    ]
    loads.sort(key=lambda row: (row.accepted_at, row.kafka_partition, row.kafka_offset))
    for topic, segment in known:
        index = next(i for i, row in enumerate(loads) if (row.topic, row.segment_id) == (topic, segment))
        loads[index] = loads[index].model_copy(update={"cause": "first"})
    asked_for = [(*one, reason) for one in [*known, ("topic://a/b/d", 9)] for reason in REASONS] * 8
    splits = [
        decision(
            random.randrange(13) * 60,
            number,
            subject=topic,
            reason=reason,
            arguments=f'{{"segments":[{segment}]}}',
            inputs=json.dumps({"policy": POLICY}, separators=(",", ":")),
        )
        for number, (topic, segment, reason) in enumerate(asked_for)
    ]
    write(lake, *loads, *splits)
    expected = {}
    for split in splits:
        column, threshold = REASONS[split.reason]
        segment = json.loads(split.arguments)["segments"][0]
        before = sorted(
            (one.accepted_at, one.kafka_partition, one.kafka_offset, getattr(one, column))
            for one in loads
            if (one.topic, one.segment_id) == (split.subject, segment) and one.accepted_at <= split.decided_at
        )
        over = None
        for since, _, _, rate in before:
            over = (over or since) if rate > POLICY[threshold] else None
        # Of a split that nothing on record asked for only the split is known.
        expected[split.decision_id] = (over, before[-1][3] if over else None)
    asked = LakeSql(lake).ask("SELECT decision_id, over_since, rate FROM over_threshold").read_all().to_pylist()
    assert {row["decision_id"]: (row["over_since"], row["rate"]) for row in asked} == expected
    assert len(asked) == len(splits)
    assert 20 < sum(over is None for over, _ in expected.values()) < 100
