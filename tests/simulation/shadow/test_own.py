"""Attribution of actions: ours or another scaler's, whatever arrives first. In memory but for the retained lake."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from anabranch.history.recorded import RecordedHistory, newest_before
from anabranch.history.state_snapshots import make_horizon
from anabranch.simulation.shadow.own import find_own, own_decisions
from anabranch.simulation.shadow.record import _Reading, read_sides
from anabranch.simulation.shadow.report import compare
from anabranch.simulation.shadow.sides import SAME, actions_in
from decisions.autoscale.decide import decide
from decisions.topic.layout import SegmentLayout
from engine.replay import AS_RECORDED, BucketReplay
from lake.retention import forget_rows
from lake.state_snapshots import write_horizon
from lake.tables import OpenTable, create_table
from schemas.tables.arrow import to_arrow
from schemas.tables.rows import EVENTS, OUTCOMES, SEGMENT_LOAD, OutcomeRow
from tests.decisions.snapshots import DEFAULT, msg_rate, snapshot
from tests.engine.buckets import CONFIGURED, SETTINGS
from tests.engine.records import consumers, layout, outcome, record, stats, tick
from tests.engine.test_engine import MINUTE, NOW, SECOND
from tests.examples import examples
from tests.history.test_explain import written
from tests.simulation.shadow.test_shadow import HOT, T0, WARM, Shadowed, read, run

HOUR = 60 * MINUTE


def sides_of(bucket, own=()):
    """Both sides of what a bucket has recorded, without a lake."""
    history = bucket.history(with_ticks=True)
    batches = list(history.of_bucket(history.topics()))
    replay = BucketReplay(AS_RECORDED, CONFIGURED, [])
    reading = _Reading(replay, find_own(replay, [batches], own), {})
    for batch in batches:
        reading.take(batch)
    return reading.end()


def hot_topic(*segments, count=4):
    """A topic whose `segments` are hot, with the decisions on it."""
    bucket = Shadowed()
    bucket.begin(T0, count)
    bucket.minute(0, t0={})
    decisions = bucket.minute(1, t0=dict.fromkeys(segments, HOT))
    return bucket, {json.loads(row["arguments"])["segments"][0]: row for row in decisions}


def test_own_split_heard_early_counts_for_nobody():
    bucket, decided = hot_topic(0)
    at = NOW + MINUTE + 5 * SECOND
    bucket.they(T0, "split", 0, at=at)
    bucket.batch(at + 2 * SECOND, outcome(decided[0]["decision_id"], "applied", topic=T0))
    sides = sides_of(bucket)
    assert (sides.both, sides.theirs, sides.ours) == ([], [], [])


def test_own_split_known_by_decision_in_layout():
    bucket, decided = hot_topic(0)
    at = NOW + MINUTE + 5 * SECOND
    bucket.layouts[T0] = bucket.layouts[T0].split_segment(0, at)
    announced = layout(bucket.layouts[T0], cause="split", at=at, topic=T0)
    named = json.loads(announced.value) | {"decisionId": decided[0]["decision_id"]}
    bucket.batch(at, record("control-events", T0, named))
    sides = sides_of(bucket)
    assert (sides.both, sides.theirs, sides.ours) == ([], [], [])


def outcome_row(decision, status):
    return OutcomeRow(
        decision_id=decision["decision_id"],
        family="autoscale",
        subject=T0,
        status=status,
        attempt=1,
        at=datetime.now(timezone.utc),
        layout_epoch=0,
        seen="{}",
        error=None,
        executor="e",
        mode="act",
        day=datetime.now(timezone.utc).date(),
    )


def test_intent_without_an_end_makes_the_action_ours(tmp_path):
    bucket, decided = hot_topic(0, 1)
    bucket.they(T0, "split", 0, at=NOW + MINUTE + 5 * SECOND)
    bucket.they(T0, "split", 1, at=NOW + MINUTE + 9 * SECOND)
    lake = written(bucket, tmp_path / "lake")
    rows = [outcome_row(decided[0], "intent"), outcome_row(decided[1], "intent"), outcome_row(decided[1], "superseded")]
    OpenTable(create_table(lake, OUTCOMES)).append(to_arrow(OUTCOMES, rows), "test", 0)
    assert own_decisions(lake) == {decided[0]["decision_id"]}
    sides = read(lake, tmp_path).sides
    assert [pair.done.what for pair in sides.both] == [("split", (1,))]
    assert (sides.theirs, sides.ours) == ([], [])


def test_further_action_of_an_evaluation_agrees():
    bucket = Shadowed()
    bucket.begin(T0, 3)
    bucket.minute(0, t0={})
    hot_at = NOW + 20 * SECOND
    bucket.batch(hot_at, stats({0: HOT, 1: HOT, 2: HOT}, hot_at, T0))
    bucket.they(T0, "split", 2, at=NOW + 40 * SECOND)
    first = decide(snapshot(3, {0: msg_rate(HOT), 1: msg_rate(HOT), 2: msg_rate(HOT)}, DEFAULT))
    assert (first.ids, [one.ids for one in first.also]) == ([0], [[1], [2]])
    assert [(one.what, one.answer) for one in sides_of(bucket).theirs] == [(("split", (2,)), SAME)]


def test_answer_ignores_our_decision_that_waits():
    """Nobody carries it out, so it is no reason against the next action."""
    bucket = Shadowed()
    bucket.begin(T0)
    assert bucket.batch(NOW, stats({0: HOT, 1: WARM}, NOW, T0), tick(NOW)).decisions
    hot_at = NOW + 20 * SECOND
    bucket.batch(hot_at, stats({1: HOT}, hot_at, T0))
    bucket.they(T0, "split", 1, at=NOW + 40 * SECOND)
    assert [(one.what, one.answer) for one in sides_of(bucket).theirs] == [(("split", (1,)), SAME)]


def test_other_answer_names_all_actions():
    bucket = Shadowed()
    bucket.begin(T0, 3)
    bucket.minute(0, t0={})
    hot_at = NOW + 20 * SECOND
    bucket.batch(hot_at, stats({0: HOT, 1: HOT, 2: WARM}, hot_at, T0))
    bucket.they(T0, "split", 2, at=NOW + 40 * SECOND)
    assert [one.answer for one in sides_of(bucket).theirs] == ["other: split 0, split 1"]


def test_superseded_decision_is_ours_with_that_end():
    bucket = Shadowed()
    bucket.begin(T0)
    (decision,) = bucket.batch(NOW, stats({0: HOT, 1: WARM}, NOW, T0), tick(NOW)).decisions
    bucket.batch(NOW + 9 * SECOND, outcome(decision["decision_id"], "superseded", topic=T0))
    assert [(one.what, one.ending) for one in sides_of(bucket).ours] == [(("split", (0,)), "superseded")]


def test_same_segments_of_a_later_life_are_told_apart():
    bucket, decided = hot_topic(0)
    bucket.they(T0, "split", 0, at=NOW + MINUTE + 5 * SECOND)
    later = NOW + 2 * MINUTE
    bucket.batch(later, layout(bucket.layouts[T0], cause="deleted", at=later, topic=T0))
    bucket.layouts[T0] = SegmentLayout.create(4, later + SECOND)
    bucket.batch(later + 2 * SECOND, layout(bucket.layouts[T0], at=later + 2 * SECOND, topic=T0))
    bucket.they(T0, "split", 0, at=later + 5 * SECOND)
    # Late, in the second life, the outcome of the first one is heard.
    bucket.batch(later + 9 * SECOND, outcome(decided[0]["decision_id"], "applied", topic=T0))
    assert [(one.what, one.at) for one in sides_of(bucket).theirs] == [(("split", (0,)), later + 5 * SECOND)]


@examples(8)
@given(st.data())
def test_attribution_does_not_depend_on_arrival_order(data):
    """Four segments: some split by us, the others by them; layouts, repeats and outcomes in any order and batching."""
    ours = data.draw(st.sets(st.integers(0, 3)), label="ours")
    order = data.draw(st.permutations(range(4)), label="order of the splits")
    bucket, decided = hot_topic(0, 1, 2, 3)
    messages, known = [], bucket.layouts[T0]
    for number, segment in enumerate(order):
        at = NOW + MINUTE + (number + 1) * SECOND
        known = known.split_segment(segment, at)
        messages.append(layout(known, cause="snapshot", at=at + 1, topic=T0))
        if data.draw(st.booleans(), label="repeated"):
            messages.append(layout(known, cause="snapshot", at=at + 2, topic=T0))
    outcomes = [outcome(decided[one]["decision_id"], "applied", topic=T0) for one in ours]
    # Layouts keep their order, as in their partition of Kafka; outcomes come at any place among them.
    places = [data.draw(st.integers(0, len(messages)), label="outcome before message") for _ in outcomes]
    for place, message in sorted(zip(places, outcomes, strict=True), key=lambda one: -one[0]):
        messages.insert(place, message)
    start = 0
    while start < len(messages):
        end = data.draw(st.integers(start + 1, len(messages)), label="batch up to")
        bucket.batch(NOW + MINUTE + 10 * SECOND + start * SECOND, *messages[start:end])
        start = end
    sides = sides_of(bucket)
    assert sorted(done.segments[0] for done in sides.all_done()) == sorted({0, 1, 2, 3} - ours)
    assert [wanted.what for wanted in sides.ours] == []
    assert {pair.wanted.segments for pair in sides.both} == {(one,) for one in {0, 1, 2, 3} - ours}


def test_report_begins_where_rows_were_retained(tmp_path):
    bucket, _ = hot_topic(0)
    bucket.they(T0, "split", 0, at=NOW + 2 * MINUTE)
    for day in (1, 2):
        at = NOW + day * 24 * HOUR
        bucket.batch(at, stats({one.segment_id: WARM + day * 2_000 for one in bucket.layouts[T0].active}, at, T0))
        bucket.they(T0, "split", bucket.layouts[T0].active[0].segment_id, at=at + MINUTE)
    lake = written(bucket, tmp_path / "lake")
    day = (datetime.fromtimestamp(NOW / 1000, timezone.utc) + timedelta(days=2)).date()
    begins = datetime.combine(day, datetime.min.time(), timezone.utc)
    write_horizon(lake, make_horizon(lake, begins, SETTINGS, CONFIGURED))
    for table in (SEGMENT_LOAD, EVENTS):
        forget_rows(lake, table, day, is_dry_run=False)
    record = RecordedHistory(lake, tmp_path / "files", with_ticks=True, horizon=newest_before(lake, None))
    recorded = read_sides(lake, record, CONFIGURED)
    midnight = int(begins.timestamp() * 1000)
    assert recorded.began_at == midnight
    assert [one.at for one in recorded.sides.theirs] == [NOW + 2 * 24 * HOUR + MINUTE]
    report = compare(recorded, NOW, recorded.ended_at)
    assert report["period"]["from"] == midnight
    assert "the record begins at" in report["notes"][0]
    assert compare(replace(recorded), None, recorded.ended_at)["notes"] == []
    (tmp_path / "settings.toml").write_text(f'[lake]\npath = "{lake}"\n')
    assert json.loads(run(tmp_path, "--output", "json").stdout)["period"]["from"] == midnight


def bucketed(count=7):
    """A topic whose consumers need more entry buckets: the decision on both segments, observed only."""
    bucket = Shadowed()
    bucket.layouts[T0] = SegmentLayout.create(2, NOW - HOUR, bucket_budget=4)
    bucket.batch(NOW - MINUTE, layout(bucket.layouts[T0], topic=T0))
    bucket.minute(0, t0={0: 100.0, 1: 100.0})
    [row] = bucket.batch(NOW + SECOND, consumers(count, topic=T0)).decisions
    assert (row["action"], json.loads(row["arguments"])) == ("rebucket", {"segments": [0, 1], "bucketCount": 4})
    return bucket, row["decision_id"]


def test_rebucket_is_paired_segment_by_segment():
    bucket, _ = bucketed()
    bucket.they(T0, "rebucket", 0, 4, at=NOW + 5 * SECOND)
    bucket.they(T0, "rebucket", 1, 4, at=NOW + 9 * SECOND)
    sides = sides_of(bucket)
    assert [(one.done.what, one.lead_ms) for one in sides.both] == [
        (("rebucket", (0,)), 4 * SECOND),
        (("rebucket", (1,)), 8 * SECOND),
    ]
    assert (sides.theirs, sides.ours) == ([], [])


def test_rebucket_done_in_part_leaves_the_rest_wanted():
    bucket, decision = bucketed()
    bucket.they(T0, "rebucket", 1, 4, at=NOW + 5 * SECOND)
    bucket.batch(NOW + 9 * SECOND, outcome(decision, "failed", topic=T0))
    sides = sides_of(bucket)
    assert [one.done.segments for one in sides.both] == [(1,)]
    assert [(one.segments, one.ending) for one in sides.ours] == [((0,), "failed")]


def test_own_rebucket_counts_for_nobody():
    bucket, decision = bucketed()
    for segment, second in ((0, 5), (1, 6)):
        bucket.they(T0, "rebucket", segment, 4, at=NOW + second * SECOND)
    bucket.batch(NOW + 9 * SECOND, outcome(decision, "applied", topic=T0))
    sides = sides_of(bucket)
    assert (sides.both, sides.theirs, sides.ours) == ([], [], [])


def test_rebucket_known_by_range_after_pruning():
    before = SegmentLayout.create(2, NOW, bucket_budget=4)
    after = before.rebucket_segment(0, 8, NOW + SECOND).prune_segment(0)
    assert list(actions_in(after, before)) == [("rebucket", (0,), (2,), NOW + SECOND)]
