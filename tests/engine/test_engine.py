"""The bucket engine over whole stories: events and samples in, decisions, holds, loads and dead letters out. No JVM.

Long, as it goes through everything that can happen to a bucket; the stories share `started` and the instants below.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decisions.topic.layout import SegmentLayout
from engine.autoscale import fleet_view, topics
from engine.autoscale.family import LOADS, TOPICS
from engine.autoscale.fleet_columns import columns_of
from engine.autoscale.loads_codec import LOADS_VERSION
from engine.autoscale.policies import Policies
from engine.autoscale.topics_codec import STATE_VERSION, pack_topics, unpack_topics
from engine.kernel.packed import Packed, StateError, StoredPart
from engine.kernel.records import HOLDS, LAYOUTS
from schemas.snapshot import Snapshot
from tests.engine.buckets import CONFIGURED, ONE_AT_A_TIME, SETTINGS, Bucket, loads_of, topics_of
from tests.engine.records import (
    TOPIC,
    configured,
    consumers,
    delivery,
    layout,
    outcome,
    policy,
    record,
    sent_by,
    stats,
    tick,
)
from tests.examples import examples

NOW = 1_763_660_000_000
SECOND = 1_000
MINUTE = 60 * SECOND


def two_segments():
    return SegmentLayout.create(2, NOW - 10 * MINUTE)


def started(*records, settings=SETTINGS, configured=CONFIGURED):
    bucket = Bucket(settings, configured=configured)
    bucket.batch(NOW, layout(two_segments()), *records)
    return bucket


def test_consumer_without_segment_splits_at_once():
    bucket = started(stats({0: 10.0, 1: 20.0}, NOW))
    output = bucket.batch(NOW + SECOND, consumers(3))
    (decision,) = output.decisions
    assert (decision["action"], decision["reason"], decision["trigger"]) == ("split", "consumer-count", "consumer")
    assert json.loads(decision["arguments"]) == {"segments": [1]}
    assert decision["seq"] == 1


def test_hot_segment_splits_on_tick_only():
    bucket = started()
    assert not bucket.batch(NOW + SECOND, stats({0: 50_000.0, 1: 1.0}, NOW)).decisions
    (decision,) = bucket.batch(NOW + 2 * SECOND, tick(NOW)).decisions
    assert (decision["reason"], decision["trigger"]) == ("msgRateIn", "tick")
    assert json.loads(decision["arguments"]) == {"segments": [0]}


def test_two_cold_neighbours_merge_after_the_window():
    bucket = started(stats({0: 1.0, 1: 1.0}, NOW))
    assert not bucket.batch(NOW + 4 * MINUTE, stats({0: 1.0, 1: 1.0}, NOW + 4 * MINUTE), tick(1)).decisions
    (decision,) = bucket.batch(NOW + 5 * MINUTE, stats({0: 1.0, 1: 1.0}, NOW + 5 * MINUTE), tick(1)).decisions
    assert (decision["action"], decision["reason"]) == ("merge", "cold")


def test_topic_decision_open_until_outcome_and_layout():
    bucket = started(stats({0: 50_000.0, 1: 40_000.0}, NOW), configured=ONE_AT_A_TIME)
    (decision,) = bucket.batch(NOW, tick(1)).decisions
    later = NOW + 2 * MINUTE
    after = two_segments().split_segment(0, NOW + SECOND)
    assert bucket.batch(later, tick(2)).holds[0]["gate"] == "in-flight"
    assert not bucket.batch(later, layout(after, "split"), tick(3)).decisions
    assert not bucket.batch(later, stats({1: 45_000.0, 2: 1.0, 3: 1.0}, later)).decisions
    output = bucket.batch(later + SECOND, outcome(decision["decision_id"], "applied"), tick(4))
    assert [json.loads(row["arguments"]) for row in output.decisions] == [{"segments": [1]}]
    assert output.decisions[0]["seq"] == 2


def test_key_range_open_until_outcome_and_layout():
    """Each part of the key space has one open decision."""
    bucket = started(stats({0: 50_000.0, 1: 40_000.0}, NOW))
    first, second = bucket.batch(NOW, tick(1)).decisions
    assert [json.loads(row["arguments"]) for row in (first, second)] == [{"segments": [0]}, {"segments": [1]}]
    assert (first["seq"], second["seq"], first["decided_at"]) == (1, 2, second["decided_at"])
    assert first["decision_id"] != second["decision_id"]
    assert first["inputs"] == second["inputs"]
    half = two_segments().split_segment(0, NOW + SECOND)
    bucket.batch(NOW + SECOND, outcome(first["decision_id"], "applied"), outcome(second["decision_id"], "applied"))
    bucket.restart()
    later = NOW + 2 * MINUTE
    rates = stats({1: 45_000.0, 2: 20_000.0, 3: 1.0}, later)
    assert not bucket.batch(later, layout(half, "split"), rates, tick(2)).decisions
    assert topics_of(bucket.packed).topics[TOPIC].hold_gate == "in-flight"
    assert [one.decision_id for one in topics_of(bucket.packed).topics[TOPIC].all_open] == [second["decision_id"]]
    whole = half.split_segment(1, NOW + SECOND)
    output = bucket.batch(later + SECOND, layout(whole, "split"), tick(3))
    assert [json.loads(row["arguments"]) for row in output.decisions] == [{"segments": [2]}]


def cold_pair_merged():
    """A bucket with a merge of its topic's two segments open; and the decision."""
    bucket = started(stats({0: 1.0, 1: 1.0}, NOW))
    (merge,) = bucket.batch(NOW + 5 * MINUTE, stats({0: 1.0, 1: 1.0}, NOW + 5 * MINUTE), tick(1)).decisions
    assert merge["action"] == "merge"
    return bucket, merge


def test_an_open_merge_holds_no_split_of_its_topic():
    bucket, merge = cold_pair_merged()
    assert bucket.batch(NOW + 6 * MINUTE, tick(2)).holds[0]["gate"] == "in-flight"
    hot = stats({0: 50_000.0, 1: 1.0}, NOW + 7 * MINUTE)
    (split,) = bucket.batch(NOW + 7 * MINUTE, hot, tick(3)).decisions
    assert (split["action"], json.loads(split["arguments"])) == ("split", {"segments": [0]})
    assert json.loads(split["inputs"])["inFlight"] == {
        "decisionId": merge["decision_id"],
        "since": NOW + 5 * MINUTE,
        "action": "merge",
    }
    held = bucket.batch(NOW + 8 * MINUTE, stats({0: 50_000.0, 1: 50_000.0}, NOW + 8 * MINUTE), tick(4))
    assert (held.decisions, [row["gate"] for row in held.holds]) == ([], ["in-flight"])


def test_an_applied_merge_holds_splits_until_it_shows():
    bucket, merge = cold_pair_merged()
    hot = stats({0: 50_000.0, 1: 50_000.0}, NOW + 7 * MINUTE)
    output = bucket.batch(NOW + 7 * MINUTE, hot, outcome(merge["decision_id"], "applied"), tick(3))
    assert (output.decisions, [row["gate"] for row in output.holds]) == ([], ["in-flight"])


def test_outcome_before_layout_keeps_decision_open():
    bucket = started(stats({0: 50_000.0, 1: 40_000.0}, NOW), configured=ONE_AT_A_TIME)
    (decision,) = bucket.batch(NOW, tick(1)).decisions
    bucket.batch(NOW + SECOND, outcome(decision["decision_id"], "applied"))
    assert not bucket.batch(NOW + 2 * MINUTE, tick(2)).decisions
    output = bucket.batch(NOW + 3 * MINUTE, layout(two_segments().split_segment(0, NOW), "split"), tick(3))
    assert len(output.decisions) == 1


def test_failed_decision_retried_with_new_id():
    bucket = started(stats({0: 50_000.0, 1: 1.0}, NOW))
    (first,) = bucket.batch(NOW, tick(1)).decisions
    held = bucket.batch(NOW + SECOND, outcome(first["decision_id"], "failed"), tick(2))
    assert [row["gate"] for row in held.holds] == ["retry-backoff"]
    again = bucket.batch(NOW + 30 * MINUTE, stats({0: 50_000.0, 1: 1.0}, NOW + 30 * MINUTE), tick(3))
    (second,) = again.decisions
    assert second["arguments"] == first["arguments"]
    assert second["decision_id"] != first["decision_id"]
    assert second["seq"] == 2


def test_outcome_of_other_decision_ignored():
    bucket = started(stats({0: 50_000.0, 1: 1.0}, NOW))
    bucket.batch(NOW, tick(1))
    bucket.batch(NOW + SECOND, outcome("someone-else", "failed"))
    assert bucket.batch(NOW + MINUTE, tick(2)).holds[0]["gate"] == "in-flight"


def test_hold_recorded_on_change_of_binding_gate():
    bucket = started(stats({0: 1.0, 1: 1.0}, NOW))
    holds = [bucket.batch(NOW + i * SECOND, tick(i)).holds for i in range(1, 5)]
    assert [len(rows) for rows in holds] == [1, 0, 0, 0]
    assert holds[0][0]["gate"] == "merge-window"
    assert holds[0][0]["eligible_at"] == NOW + 5 * MINUTE


def test_consumer_burst_schedules_tick_after_cooldown():
    bucket = started(stats({0: 1.0, 1: 1.0}, NOW), configured=ONE_AT_A_TIME)
    (decision,) = bucket.batch(NOW, consumers(4)).decisions
    at = NOW + 100
    segment = json.loads(decision["arguments"])["segments"][0]
    after = two_segments().split_segment(segment, at)
    output = bucket.batch(NOW + 200, layout(after, "split"), outcome(decision["decision_id"], "applied"))
    next_tick = (NOW // MINUTE + 1) * MINUTE
    due = at + MINUTE
    assert output.due == ([(TOPIC, due)] if due < next_tick else [])
    output = bucket.batch(due, tick(due, TOPIC))
    assert [row["reason"] for row in output.decisions] == ["consumer-count"]


def test_consumer_shortage_splits_all_possible_at_once():
    """The remaining splits follow once the new segments exist."""
    bucket = started(stats({0: 1.0, 1: 1.0}, NOW))
    decisions = bucket.batch(NOW, consumers(7)).decisions
    assert [json.loads(row["arguments"])["segments"] for row in decisions] == [[0], [1]]
    four = two_segments().split_segment(0, NOW + 100).split_segment(1, NOW + 200)
    applied = [outcome(row["decision_id"], "applied") for row in decisions]
    output = bucket.batch(NOW + 300, layout(four, "split"), *applied)
    assert [json.loads(row["arguments"])["segments"] for row in output.decisions] == [[2], [3], [4]]
    assert {row["trigger"] for row in output.decisions} == {"consumer"}


def test_severe_load_rechecked_before_next_tick():
    bucket = started(stats({0: 50_000.0, 1: 1.0}, NOW))
    output = bucket.batch(NOW, tick(1))
    assert len(output.decisions) == 1
    next_tick = (NOW // MINUTE + 1) * MINUTE
    assert output.due == ([(TOPIC, NOW + 20 * SECOND)] if next_tick > NOW + 20 * SECOND else [])


def said_of_batch(output):
    """All but what was known before: only who has decoded the state says that."""
    return {kind: body for kind, body in output.bodies().items() if kind != LAYOUTS}


def test_restart_with_stored_state_changes_nothing():
    story = [
        (NOW + SECOND, [consumers(2)]),
        (NOW + 2 * SECOND, [stats({0: 50_000.0, 1: 1.0}, NOW + 2 * SECOND), tick(1)]),
        (NOW + 3 * SECOND, [tick(2)]),
        (NOW + 4 * MINUTE, [stats({0: 52_000.0, 1: 1.0}, NOW + 4 * MINUTE), tick(3)]),
    ]
    steady, restarted = started(), Bucket()
    restarted.packed = steady.packed
    for now, records in story:
        restarted.restart()
        one, other = steady.batch(now, *records), restarted.batch(now, *records)
        one.counts.operator_ms = other.counts.operator_ms = 0.0
        assert said_of_batch(one) == said_of_batch(other)
        assert steady.packed == restarted.packed


def test_replayed_batch_gives_same_rows_and_state():
    bucket = started(stats({0: 1.0, 1: 1.0}, NOW))
    before = bucket.packed
    records = [consumers(3), stats({0: 50_000.0, 1: 9.0}, NOW + SECOND), tick(1)]
    first, packed = bucket.batch(NOW + SECOND, *records), bucket.packed
    bucket.packed = before
    second = bucket.batch(NOW + SECOND, *records)
    first.counts.operator_ms = second.counts.operator_ms = 0.0
    assert said_of_batch(first) == said_of_batch(second)
    assert bucket.packed == packed


def test_delivery_report_recorded_without_effect():
    bucket = started(stats({0: 50_000.0, 1: 1.0}, NOW))
    before = bucket.packed
    slow = {"id": 0, "subscription": "s", "backlog": 9, "msgRateOut": 0.0, "consumers": 0, "readyConsumers": 0}
    output = bucket.batch(NOW + SECOND, delivery(slow, reported=2, at=NOW))
    assert bucket.packed == before
    assert (output.counts.messages_accepted, output.counts.events, output.counts.dead_letters) == (1, 1, 0)


def test_worker_decodes_only_unknown_fingerprints():
    bucket = started(stats({0: 1.0, 1: 1.0}, NOW))
    before = bucket.packed
    assert bucket.engine.has_decoded(0, before.fingerprint)
    bucket.engine.run(0, Packed(before.fingerprint), [tick(1)], NOW + SECOND)
    assert not bucket.engine.has_decoded(0, before.fingerprint)
    written, output = bucket.engine.run(0, before, [tick(1)], NOW + SECOND)
    assert output.counts.evaluations == 1
    assert bucket.engine.has_decoded(0, written.fingerprint)


def test_state_that_is_not_what_was_stored_is_refused():
    bucket = started(stats({0: 1.0, 1: 1.0}, NOW))
    with pytest.raises(StateError, match="fingerprint"):
        Bucket().engine.run(0, replace(bucket.packed, fingerprint=b"x" * 64), [], NOW)


def test_decision_inputs_are_its_snapshot():
    bucket = started(stats({0: 50_000.0, 1: 1.0}, NOW), consumers(2))
    (decision,) = bucket.batch(NOW + SECOND, tick(1)).decisions
    snapshot = Snapshot.model_validate_json(decision["inputs"])
    assert (snapshot.topic, snapshot.now, snapshot.layout.epoch) == (TOPIC, NOW + SECOND, 0)
    assert snapshot.loads[0].msg_rate_in == 50_000.0
    assert snapshot.consumers["billing"].count == 2


def test_an_older_layout_does_not_replace_a_newer_one():
    bucket = started()
    newer = two_segments().split_segment(0, NOW)
    bucket.batch(NOW + SECOND, layout(newer, "split"), layout(two_segments(), "snapshot"))
    bucket.batch(NOW + 2 * SECOND, stats({1: 50_000.0, 2: 1.0, 3: 1.0}, NOW + 2 * SECOND))
    (decision,) = bucket.batch(NOW + 2 * MINUTE, tick(1)).decisions
    assert decision["layout_epoch"] == 1


OLD, NEW = 1_700_000_000_000, 1_700_000_000_001
"""The number of a sender that froze, and that of the one who took over."""


def known_after(*records):
    """What is stored after the announcements, each in a batch of its own and read by another worker."""
    bucket = Bucket()
    for number, announced in enumerate(records):
        bucket.restart()
        bucket.batch(NOW + number, announced)
    return topics_of(bucket.packed)


def max_segments_of(known):
    return json.loads(known.topics[TOPIC].override)["maxSegments"]


def test_replaced_senders_layout_ignored():
    """It is ignored even when its epoch is the newest."""
    split = two_segments().split_segment(0, NOW)
    known = known_after(sent_by(NEW, layout(two_segments())), sent_by(OLD, layout(split)))
    assert known.topics[TOPIC].layout.epoch == 0
    nine, seven = (layout(split, policy={"maxSegments": number}) for number in (9, 7))
    assert max_segments_of(known_after(sent_by(OLD, nine), sent_by(NEW, seven), sent_by(OLD, nine))) == 7
    assert max_segments_of(known_after(sent_by(OLD, nine), sent_by(NEW, seven), nine)) == 9


def test_replaced_senders_consumer_count_ignored():
    first = [sent_by(OLD, layout(two_segments())), sent_by(NEW, consumers(3))]
    for late in (consumers(8), consumers(0, event="deleted"), consumers(2, sub="another")):
        assert known_after(*first, sent_by(OLD, late)).topics[TOPIC].consumers == {"billing": ("STREAM", 3)}
    for later in (sent_by(NEW, consumers(4)), consumers(4)):
        assert known_after(*first, later).topics[TOPIC].consumers == {"billing": ("STREAM", 4)}


def test_subscription_without_consumers_is_forgotten_when_deleted():
    """Its count stays what it was, 0: the deletion is news all the same."""
    known = known_after(layout(two_segments()), consumers(0, event="unregistered"))
    assert known.topics[TOPIC].consumers == {"billing": ("STREAM", 0)}
    gone = known_after(layout(two_segments()), consumers(0, event="unregistered"), consumers(0, event="deleted"))
    assert gone.topics[TOPIC].consumers == {}


def test_deleted_topic_returns_by_creation_only():
    gone = [sent_by(OLD, layout(two_segments())), sent_by(NEW, layout(two_segments(), "deleted"))]
    late = [sent_by(OLD, layout(two_segments(), "snapshot")), sent_by(OLD, consumers(3))]
    assert not known_after(*gone, *late).topics
    again = sent_by(NEW, layout(SegmentLayout.create(1, NOW)))
    topic = known_after(*gone, again, *late, sent_by(OLD, layout(two_segments(), "deleted"))).topics[TOPIC]
    assert (len(topic.layout.segments), topic.consumers) == (1, {})


def test_replaced_senders_policy_ignored():
    """It stays ignored after the policy's removal."""
    eight = sent_by(OLD, policy({"maxSegments": 8}, "acme/shop"))
    nine = sent_by(OLD, policy({"maxSegments": 9}, "acme/shop"))
    for newest in (policy({"maxSegments": 7}, "acme/shop"), policy(None, "acme/shop")):
        found = known_after(eight, sent_by(NEW, newest), nine).namespace_policies
        assert found == known_after(newest).namespace_policies


def test_repetition_makes_its_sender_the_newest():
    eight = policy({"maxSegments": 8}, "acme/shop")
    one = layout(two_segments(), policy={"maxSegments": 8})
    three = consumers(3)
    said = known_after(
        *(sent_by(OLD, each) for each in (one, three, eight)), *(sent_by(NEW, each) for each in (one, three, eight))
    )
    late = [layout(two_segments(), policy={"maxSegments": 9}), consumers(8), policy({"maxSegments": 9}, "acme/shop")]
    then = known_after(
        *(sent_by(OLD, each) for each in (one, three, eight)),
        *(sent_by(NEW, each) for each in (one, three, eight)),
        *(sent_by(OLD, each) for each in late),
    )
    assert (max_segments_of(then), then.topics[TOPIC].consumers, then.namespace_policies) == (
        max_segments_of(said),
        said.topics[TOPIC].consumers,
        said.namespace_policies,
    )
    assert max_segments_of(then) == 8


def test_of_deleted_topics_the_newest_are_remembered(monkeypatch):
    monkeypatch.setattr(topics, "MAX_DELETED", 2)
    known = topics.BucketState()
    for number, name in enumerate(("a", "b", "a", "c")):
        known.end(name, topics.TopicEnd(NOW, None, NEW, NOW + number))
    assert list(unpack_topics(StoredPart(pack_topics(known))).ended) == ["a", "c"]


def test_untiled_layout_is_dead_letter_and_old_stays():
    bucket = started()
    broken = json.loads(two_segments().to_metadata().to_json())
    broken["segments"]["1"]["hashRange"]["start"] += 1
    body = {"v": 1, "type": "layout", "topic": TOPIC, "cause": "split", "layout": broken, "at": 1}
    output = bucket.batch(NOW + SECOND, record("control-events", TOPIC, body))
    assert [row["reason"] for row in output.dead_letters] == ["bad-layout"]
    assert len(bucket.batch(NOW + 2 * SECOND, stats({0: 50_000.0, 1: 1.0}, NOW), tick(1)).decisions) == 1


def test_sealed_samples_stale_and_early_ones_kept():
    """Samples that come before their layout are kept."""
    bucket = started(stats({0: 1.0, 1: 1.0}, NOW))
    bucket.batch(NOW + SECOND, stats({2: 30_000.0, 3: 1.0}, NOW + SECOND))
    bucket.batch(NOW + 2 * SECOND, layout(two_segments().split_segment(0, NOW), "split"))
    output = bucket.batch(NOW + 3 * SECOND, stats({0: 500.0, 1: 5.0}, NOW + 3 * SECOND))
    assert (output.counts.samples_stale, output.counts.samples_accepted) == (1, 1)
    (decision,) = bucket.batch(NOW + 10 * MINUTE, stats({2: 31_000.0}, NOW + 10 * MINUTE), tick(1)).decisions
    assert json.loads(decision["arguments"]) == {"segments": [2]}


def test_deleted_topic_forgotten_and_recreatable():
    bucket = started(stats({0: 50_000.0, 1: 1.0}, NOW))
    bucket.batch(NOW + SECOND, layout(two_segments().split_segment(0, NOW), "deleted"))
    assert not bucket.batch(NOW + MINUTE, tick(1)).decisions
    bucket.batch(NOW + 2 * MINUTE, layout(SegmentLayout.create(1, NOW + 2 * MINUTE)))
    assert bucket.batch(NOW + 3 * MINUTE, tick(2)).counts.evaluations == 1


def test_namespace_policy_applies_and_falls_back():
    bucket = started(stats({0: 50_000.0, 1: 1.0}, NOW))
    held = bucket.batch(NOW + SECOND, policy({"enabled": False}, "acme/shop"), tick(1))
    assert [row["gate"] for row in held.holds] == ["disabled"]
    bucket.batch(NOW + 2 * SECOND, policy(None, "acme/shop"))
    assert len(bucket.batch(NOW + 3 * SECOND, tick(2)).decisions) == 1


def test_other_namespaces_policy_ignored():
    bucket = started(stats({0: 50_000.0, 1: 1.0}, NOW), policy({"enabled": False}, "acme/other"))
    assert len(bucket.batch(NOW + SECOND, tick(1)).decisions) == 1


def test_layout_policy_overrides_namespace():
    bucket = Bucket()
    bucket.batch(NOW, layout(two_segments(), policy={"enabled": True}), policy({"enabled": False}, "acme/shop"))
    bucket.batch(NOW, stats({0: 50_000.0, 1: 1.0}, NOW))
    assert len(bucket.batch(NOW + SECOND, tick(1)).decisions) == 1


def test_ticks_of_a_batch_are_one_evaluation():
    bucket = started()
    assert bucket.batch(NOW + SECOND, tick(1), tick(2), tick(3, TOPIC)).counts.evaluations == 1


def test_a_record_for_every_topic_counts_only_at_home():
    bucket = started()
    output = bucket.batch(
        NOW + SECOND, tick(1, home=False), policy(None, home=False), record("control-events", "*", b"x", home=False)
    )
    assert (output.counts.messages, output.events, output.dead_letters) == (0, [], [])
    output = bucket.batch(NOW + SECOND, tick(1), record("control-events", "*", b"x"))
    assert (output.counts.messages, len(output.events), len(output.dead_letters)) == (2, 1, 1)


def test_far_future_sample_is_dead_letter():
    output = started().batch(NOW, stats({0: 1.0}, NOW + 10 * MINUTE))
    assert [row["reason"] for row in output.dead_letters] == ["from-the-future"]


bodies = st.one_of(
    st.none(),
    st.binary(max_size=60),
    st.builds(
        lambda rates, at: stats(rates, at).value,
        st.dictionaries(st.integers(0, 4), st.floats(0, 1e5), max_size=3),
        st.integers(NOW - 9, NOW + 9),
    ),
    st.builds(
        lambda n, kind, event: consumers(n, kind=kind, event=event).value,
        st.integers(0, 9),
        st.sampled_from(["STREAM", "QUEUE", "CHECKPOINT"]),
        st.sampled_from(["registered", "deleted", "snapshot"]),
    ),
    st.just(layout(two_segments()).value),
    st.just(layout(two_segments().split_segment(1, NOW), "split").value),
    st.just(layout(two_segments(), "deleted").value),
    st.just(tick(3).value),
    st.just(tick(3, TOPIC).value),
)
anything = st.builds(
    lambda source, key, body: record(source, key, body),
    st.sampled_from(["segment-stats", "consumer-events", "control-events"]),
    st.sampled_from([TOPIC, TOPIC, TOPIC, "*", "topic://acme/shop/other", None]),
    bodies,
)


@given(st.lists(st.lists(anything, max_size=6), max_size=5))
def test_every_message_counted_once_without_error(batches):
    bucket = Bucket()
    for number, records in enumerate(batches):
        output = bucket.batch(NOW + number * MINUTE, *records)
        counts = output.counts
        assert counts.messages == len(records)
        assert counts.messages == counts.messages_accepted + counts.messages_suppressed + counts.dead_letters
        assert counts.samples == counts.samples_accepted + counts.samples_insignificant + counts.samples_stale
        assert counts.samples_accepted == (0 if output.loads is None else output.loads.num_rows)
        assert counts.events == len(output.events)
        assert counts.dead_letters == len(output.dead_letters)


STORY = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from(["stats", "consumers", "failed", "applied", "absent", "nothing"]),
        st.sampled_from([1.0, 900.0, 5_000.0, 60_000.0]),
        st.integers(0, 6 * MINUTE),
    ),
    min_size=1,
    max_size=12,
)


@given(STORY)
@examples(15)
def test_fleet_tick_equals_single_ticks(story):
    """The evaluation in columns, which looks closer only where something changes, against `decide` on every topic."""
    together, apart = Bucket(), Bucket()
    names = [f"topic://acme/shop/t{number}" for number in range(4)]
    for bucket in (together, apart):
        bucket.batch(NOW, *(layout(SegmentLayout.create(2 + i, NOW - MINUTE), topic=n) for i, n in enumerate(names)))
    now, open_decisions = NOW, {}
    for number, (which, kind, rate, later) in enumerate(story):
        now += later
        name = names[which]
        records = {
            "stats": [stats(dict.fromkeys(range(2 + which), rate), now, topic=name)],
            "consumers": [consumers(int(rate) % 7, topic=name)],
            "nothing": [],
        }.get(kind, [outcome(open_decisions.get(name, "none"), kind, topic=name)])
        one = together.batch(now, *records, tick(number))
        other = apart.batch(now, *records, *(tick(number, name) for name in names))
        assert (one.decisions, one.holds, one.due) == (other.decisions, other.holds, other.due)
        assert one.counts.evaluations == other.counts.evaluations == len(names)
        open_decisions |= {row["subject"]: row["decision_id"] for row in one.decisions}


def test_batch_stores_changes_and_compacts_long_log():
    bucket = Bucket()
    names = [f"topic://acme/shop/t{number}" for number in range(300)]
    bucket.batch(NOW, *(layout(SegmentLayout.create(8, NOW - MINUTE), topic=name) for name in names))
    bases, entries = 0, []
    for number in range(1, 120):
        rate, random = 2_000.0 if number % 20 else 4_000.0, Random(number)
        samples = [
            stats({segment: rate + random.random() for segment in range(8)}, NOW + number, topic=name) for name in names
        ]
        before = bucket.packed.parts.get(LOADS, StoredPart())
        bucket.batch(NOW + number, *(samples if number % 10 == 0 else samples[:1]))
        loads = bucket.packed.parts[LOADS]
        rebased = loads.base != before.base
        bases += rebased
        if not rebased:
            entries.append((number % 10, len(loads.log[-1])))
        assert sum(map(len, loads.log)) < 3 * (65_536 + len(loads.base))
    assert bases >= 2
    assert max(size for kind, size in entries if kind) < 2_000
    restarted = Bucket()
    restarted.packed = bucket.packed
    one, other = bucket.batch(NOW + MINUTE, tick(1)), restarted.batch(NOW + MINUTE, tick(1))
    assert one.holds == other.holds
    assert one.counts.evaluations == len(names)


def test_fleet_announcements_recorded_at_their_tick():
    bucket = Bucket()
    names = [f"topic://acme/shop/t{number}" for number in range(10)]
    hot = [stats({0: 50_000.0}, NOW, topic=names[number]) for number in (1, 8)]
    bucket.batch(NOW, *(layout(SegmentLayout.create(1, NOW - MINUTE), topic=name) for name in names), *hot)
    outputs = [bucket.batch(NOW + number, tick(number)) for number in range(1, 4)]
    assert [row["subject"] for row in outputs[0].decisions] == [names[1], names[8]]
    assert [len(output.holds) for output in outputs] == [8, 2, 0]
    told = {(row["gate"], row["measured"], row["limit"], row["since"], row["seq"]) for row in outputs[0].holds}
    assert told == {("load-missing", 1.0, 0.0, NOW + 1, 1)}
    assert [(row["gate"], row["measured"]) for row in outputs[1].holds] == [("in-flight", 1.0)] * 2
    bucket.restart()
    assert {topic.hold_gate for topic in topics_of(bucket.packed).topics.values()} == {"load-missing", "in-flight"}
    assert not bucket.batch(NOW + 4, tick(4)).holds


def test_reason_of_a_single_tick_is_recorded():
    bucket, names = Bucket(), [f"topic://acme/shop/t{number}" for number in range(6)]
    bucket.batch(NOW, *(layout(SegmentLayout.create(1, NOW - MINUTE), topic=name) for name in names))
    told = []
    for number in range(1, 4):
        at = NOW + number * MINUTE
        told += bucket.batch(at, *(policy({"enabled": number != 2}, "acme/shop"), tick(number))).holds
    for name in names:
        of_topic = [(row["gate"], row["since"]) for row in told if row["subject"] == name]
        assert of_topic == [
            ("load-missing", NOW + MINUTE),
            ("disabled", NOW + 2 * MINUTE),
            ("load-missing", NOW + 3 * MINUTE),
        ]


def test_first_version_state_read_and_rewritten():
    old = json.loads((Path(__file__).parent / "state_v1.json").read_text())
    bucket = Bucket()
    parts = {name: StoredPart(bytes.fromhex(old[name])) for name in (TOPICS, LOADS)}
    bucket.packed = Packed(bytes.fromhex(old["fence"]), parts)
    output = bucket.batch(NOW + 3 * SECOND, stats({0: 52_000.0, 1: 200.0}, NOW + 3 * SECOND), configured(), tick(2))
    assert [row["gate"] for row in output.holds] == ["in-flight"]
    state = topics_of(bucket.packed)
    known = state.topics[TOPIC]
    assert Policies().of(state, known).policy.max_segments == 9
    assert known.open_decision.decision_id == old["decisionId"]
    load = loads_of(bucket.packed).loads_of(TOPIC)[0]
    assert (load.msg_rate_in, load.seen_at) == (50_000.0, NOW + 3 * SECOND)
    parts = bucket.packed.parts
    assert (parts[TOPICS].base[0], parts[LOADS].base[0]) == (STATE_VERSION, LOADS_VERSION)
    assert not parts[TOPICS].log
    bucket.restart()
    assert not bucket.batch(NOW + 4 * SECOND, tick(3)).holds


def holds_said(restarts):
    """Of each batch the bytes of its holds, how many, and who was decided on: holds of first, changed and split
    layouts, of loads, of an open decision, of a new policy."""
    bucket, names = Bucket(), [f"topic://acme/shop/t{number}" for number in range(8)]
    made = SegmentLayout.create(2, NOW - MINUTE)
    batches = [
        [*(layout(made, topic=name) for name in names), tick(0)],
        [*(stats({0: 5_000.0, 1: 5_000.0}, NOW + MINUTE, name) for name in names[:4]), tick(1)],
        [stats({0: 60_000.0}, NOW + 2 * MINUTE, names[0]), layout(made.split_segment(0, NOW), topic=names[1]), tick(2)],
        [policy({"enabled": False}, "acme/shop"), layout(made, "deleted", topic=names[2]), tick(3)],
    ]
    said = []
    for number, records in enumerate(batches):
        if number in restarts:
            bucket.restart()
        at = NOW + number * MINUTE
        records = [one._replace(offset=number * 100 + place) for place, one in enumerate(records)]
        output = bucket.batch(at, *records)
        said.append((output.bodies()[HOLDS], len(output.holds), [row["subject"] for row in output.decisions]))
    return said


@pytest.mark.parametrize("restarts", [(2,), (1, 2, 3)])
def test_new_worker_records_same_bytes_at_first_tick(restarts):
    there_all_the_time = holds_said(())
    assert [rest for _, *rest in there_all_the_time] == [[8, []], [4, []], [1, ["topic://acme/shop/t0"]], [7, []]]
    assert holds_said(restarts) == there_all_the_time


def test_tick_uses_fleet_arrived_or_decoded(monkeypatch):
    """The fleet is laid out in columns on arrival or after decoding."""
    laid_out = [0]

    def counted(topics, *rest):
        laid_out[-1] += len(topics)
        return columns_of(topics, *rest)

    monkeypatch.setattr(fleet_view, "columns_of", counted)
    bucket, names = Bucket(), [f"topic://acme/shop/t{number}" for number in range(1_000)]

    def batch(at, *records):
        laid_out.append(0)
        return bucket.batch(NOW + at, *records)

    batch(1, *(layout(SegmentLayout.create(2, NOW - MINUTE), topic=name) for name in names))
    assert batch(2, tick(1)).counts.evaluations == len(names)
    bucket.restart()
    batch(3, layout(SegmentLayout.create(2, NOW - MINUTE)))
    assert batch(4, tick(2)).counts.evaluations == len(names) + 1
    assert laid_out == [0, len(names), 0, len(names), 1]


def test_batch_that_fails_leaves_nothing_in_memory():
    """Spark tries it again with the state before it: what the failure left half done must not be taken for that."""
    bucket = Bucket()
    bucket.batch(NOW, layout(SegmentLayout.create(1, NOW)))
    assert bucket.engine.has_decoded(0, bucket.packed.fingerprint)
    bucket.engine.begin(0, bucket.packed, NOW + 1)
    assert not bucket.engine.has_decoded(0, bucket.packed.fingerprint)
