"""What would change an answer: each change does, and one step less does not; on snapshots on every boundary."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.history.explain.changes import answer_words, change_words, changes, segments_of, smallest_step
from anabranch.history.explain.inputs import inputs_of
from anabranch.query.wording import number_words
from decisions.autoscale.decide import decide, next_due
from decisions.autoscale.policy import read_policy
from decisions.autoscale.snapshot import snapshot_from_wire, snapshot_to_wire
from decisions.autoscale.split_pass import hot_keys_after
from decisions.topic.layout import SegmentLayout
from schemas.snapshot import Snapshot
from tests.decisions.snapshots import (
    COLD,
    DEFAULT,
    MINUTE,
    NOW,
    SECOND,
    load,
    msg_rate,
    random_snapshot,
    snapshot,
    stream,
)
from tests.examples import examples


def asked(answer, segment):
    if segment is not None:
        return segment in segments_of(answer)
    return None if answer.__class__.__name__ == "Hold" else (answer.action, segments_of(answer))


@examples(10)
@given(st.randoms(use_true_random=False), st.booleans(), st.booleans())
def test_found_change_flips_answer_one_less_does_not(rng, guards, about_one):
    seen = random_snapshot(rng, guards)
    segment = rng.choice(seen.layout.active).segment_id if about_one else None
    before = asked(decide(seen), segment)
    for change in changes(seen, segment):
        assert decide(change.changed) == change.answer
        assert asked(change.answer, segment) != before
        assert change.almost is None or asked(decide(change.almost), segment) == before
        assert change_words(change, seen)


@examples(10)
@given(st.randoms(use_true_random=False), st.booleans())
def test_decide_policy_agrees_with_each_change(rng, guards):
    line = snapshot_to_wire(random_snapshot(rng, guards)).to_json()
    seen = snapshot_from_wire(Snapshot.model_validate_json(line), "default")
    for change in [] if seen.policy.broken else changes(seen):
        if change.path.startswith("policy."):
            policy = read_policy(f"{change.path.removeprefix('policy.')} = {str(change.needed).lower()}")
            again = snapshot_from_wire(Snapshot.model_validate_json(line), "default", policy)
            assert answer_words(decide(again)) == answer_words(change.answer)


@examples(10)
@given(st.randoms(use_true_random=False), st.booleans())
def test_a_change_touches_one_input_alone(rng, guards):
    seen = random_snapshot(rng, guards)
    parts = {
        "now": "now",
        "loads": "loads",
        "consumers": "consumers",
        "inFlight": "in_flight",
        "failures": "failures",
        "policy": "policy",
    }
    for one in inputs_of(seen):
        changed = one.changed(1)
        if changed is None:
            continue
        head = one.path.partition(".")[0]
        same = {parts[head]: getattr(seen, parts[head])} | ({"loads": seen.loads} if head in ("now", "policy") else {})
        assert replace(changed, **same) == seen


@examples(8)
@given(st.randoms(use_true_random=False), st.booleans())
def test_waiting_is_as_long_as_the_hold_says(rng, guards):
    seen = random_snapshot(rng, guards)
    due = next_due(decide(seen))
    waits = [change.needed for change in changes(seen) if change.path == "now"]
    if due is not None and due - seen.now < 6 * 86_400_000:
        assert waits
        assert waits[0] <= due


@pytest.mark.parametrize("turn", [1, 2, 3, 7, 64, 999, 1000])
def test_smallest_step_found_where_answer_turns(turn):
    assert smallest_step(lambda step: step >= turn, 1000) == turn
    assert smallest_step(lambda step: step > 1000, 1000) is None


def told(seen, segment=None):
    return {change_words(one, seen): answer_words(one.answer) for one in changes(seen, segment)}


def test_waiting_cold_pair_shows_time_rate_policy():
    waits = snapshot(
        2,
        {0: load(COLD, modified_at=NOW - 2 * MINUTE), 1: load(COLD)},
        DEFAULT,
        consumers=stream(1),
        last_split_at=NOW - 10 * MINUTE,
    )
    found = told(waits)
    assert found["in 3m0s, at 2025-11-20T17:36:20Z, if all else stays as it is"] == "merge segments 0 and 1"
    assert found["at 10,001 msg/s in on segment 0 (now 10)"] == "split segment 0"
    assert found["with 2 more consumers of billing (3 in all)"].startswith("split segment ")
    assert found["with mergeWindowSeconds 120 (now 300)"] == "merge segments 0 and 1"


def test_window_restarting_thresholds_left_out():
    # Both segments have been cold for long and merge now; with any other merge threshold the job would wait again.
    cold = snapshot(2, {n: load(COLD, modified_at=NOW - 10 * MINUTE) for n in (0, 1)}, DEFAULT, consumers=stream(1))
    assert answer_words(decide(cold)) == "merge segments 0 and 1"
    found = told(cold)
    assert "hold, merge-window" not in {found[path] for path in found if "Threshold" in path or "Headroom" in path}
    assert any("mergeWindowSeconds" in path for path in found)


@pytest.mark.parametrize(
    ("hot", "expected"), [([], "merge segments 0 and 1"), ([20_000], "split segment 2, merge segments 0 and 1")]
)
def test_merge_by_new_threshold_awaits_window(hot, expected):
    rates = dict(enumerate([4_600, 4_600, *hot]))
    loads = {segment: msg_rate(rate, modified_at=NOW - 10 * MINUTE) for segment, rate in rates.items()}
    warm = snapshot(len(loads), loads, DEFAULT, consumers=stream(1))
    merging = {path: answer for path, answer in told(warm).items() if answer == expected}
    threshold = next(path for path in merging if path.startswith("with mergeMsgRateInThreshold"))
    assert threshold.endswith(", after another merge window")


def test_a_topic_at_its_cap_is_told_the_next_one():
    full = snapshot(8, {3: msg_rate(12_000)}, replace(DEFAULT, max_segments=8))
    assert told(full)["with maxSegments 9 (now 8)"] == "split segment 3"


def test_split_shows_what_would_prevent_or_move_it():
    one_at_a_time = replace(DEFAULT, parallel_actions=False)
    hot = snapshot(2, {0: msg_rate(12_000)}, one_at_a_time, last_split_at=NOW - 90 * SECOND)
    found = told(hot)
    assert found["at 10,000 msg/s in on segment 0 (now 12,000)"].startswith("hold, ")
    assert found["at 12,001 msg/s in on segment 1 (now 5,000)"] == "split segment 1"
    assert found["with splitCooldownSeconds 91 (now 60)"] == "hold, split-cooldown"


def test_several_actions_are_told_as_one_answer():
    hot = snapshot(4, {0: msg_rate(12_000), 1: load(COLD), 2: load(COLD), 3: msg_rate(15_000)}, DEFAULT)
    found = told(hot)
    assert found["at 10,000 msg/s in on segment 0 (now 12,000)"] == "split segment 3, merge segments 1 and 2"


def test_segment_question_gets_segment_answer():
    hot = snapshot(2, {0: msg_rate(12_000)}, DEFAULT)
    assert told(hot, 1)["at 10,001 msg/s in on segment 1 (now 5,000)"] == "split segment 0, split segment 1"


def test_expired_loads_count_when_reported_again():
    silent = snapshot(2, {n: load(COLD, seen_at=NOW - 10 * MINUTE) for n in (0, 1)}, DEFAULT)
    assert told(silent)["if the load of segments 0, 1 were reported again"] == "merge segments 0 and 1"


@pytest.mark.parametrize(
    ("value", "words"),
    [(None, "none"), (64.0, "64"), (0.25, "0.25"), (1.4908, "1.491"), (1000.6, "1,001"), (2_134_009.4, "2,134,009")],
)
def test_number_words_have_no_exponent(value, words):
    assert number_words(value) == words


def test_hot_key_is_not_evaded_by_a_policy():
    layout = SegmentLayout.create(1, NOW)
    for _ in range(8):
        layout = layout.split_segment(layout.active[0].segment_id, NOW)
    loads = {segment.segment_id: msg_rate(0.0) for segment in layout.active}
    hot = layout.active[0].segment_id
    seen = snapshot(layout=layout, loads={**loads, hot: msg_rate(50_000.0)}, policy=DEFAULT)
    seen = replace(seen, hot_keys=hot_keys_after(seen))
    assert answer_words(decide(seen)) == "hold, one-hot-key"
    splitting = {change.path for change in changes(seen) if hot in segments_of(change.answer)}
    assert {path for path in splitting if path.startswith("policy.")} == {
        "policy.hotKeySplits",
        "policy.hotKeyRetrySeconds",
    }
    assert f"loads.{hot}.msgRateIn" in splitting
