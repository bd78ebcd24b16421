"""A topic that is deleted and created again is another one: nothing passes from one life of its name to the next."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decisions.topic.layout import SegmentLayout
from engine.autoscale import filtering, topics
from tests.engine.buckets import ONE_AT_A_TIME, Bucket, loads_of, topics_of
from tests.engine.records import TOPIC, consumers, layout, of_life, outcome, sent_by, stats, tick
from tests.engine.test_engine import MINUTE, NOW, SECOND, two_segments

DAY = 24 * 60 * MINUTE
FIRST, SECOND_LIFE = NOW - 10 * MINUTE, NOW + 2 * MINUTE
"""When the lives of the topic began."""


def again():
    """The first layout of the second life."""
    return SegmentLayout.create(2, SECOND_LIFE)


SAYS_ITS_LIFE = [pytest.param(True, id="its life is said"), pytest.param(False, id="its life is not said")]


def said(is_said, life, record, at):
    """The announcement, made at an instant, of the life that began then, which it says or not."""
    told = of_life(life, record, at)
    if is_said:
        return told
    body = json.loads(told.value)
    del body["topicCreatedAt"]
    return told._replace(value=json.dumps(body).encode())


def lived(is_said=True, **of_bucket):
    """A topic that has had everything that a topic can have, and was deleted at the second minute."""
    bucket = Bucket(**{"configured": ONE_AT_A_TIME, **of_bucket})
    bucket.batch(
        NOW,
        said(is_said, FIRST, layout(two_segments()), FIRST),
        said(is_said, FIRST, consumers(2), NOW),
        stats({0: 60_000.0, 1: 50_000.0}, NOW),
    )
    (decision,) = bucket.batch(NOW + SECOND, tick(1)).decisions
    bucket.batch(NOW + MINUTE, outcome(decision["decision_id"], "failed"))
    bucket.batch(NOW + 2 * MINUTE - 1, said(is_said, FIRST, layout(two_segments(), "deleted"), NOW + 2 * MINUTE - 1))
    bucket.restart()
    return bucket


@pytest.mark.parametrize("is_said", SAYS_ITS_LIFE)
def test_consumers_after_deletion_make_no_topic(is_said):
    bucket = lived(is_said)
    late = [said(is_said, FIRST, consumers(5), instant) for instant in (NOW + MINUTE, NOW + 2 * MINUTE - 1)]
    output = bucket.batch(NOW + 3 * MINUTE, *late, tick(2))
    assert (output.counts.events, output.dead_letters, output.counts.evaluations) == (3, [], 0)
    assert not topics_of(bucket.packed).topics


@pytest.mark.parametrize("is_said", SAYS_ITS_LIFE)
def test_recreated_topic_starts_empty(is_said):
    bucket = lived(is_said)
    late = [
        said(is_said, FIRST, consumers(5), NOW + MINUTE),
        said(is_said, FIRST, layout(two_segments().split_segment(0, NOW), "split"), NOW + MINUTE),
    ]
    bucket.batch(NOW + 2 * MINUTE, *late, stats({0: 60_000.0, 1: 50_000.0}, NOW + 90 * SECOND))
    now = NOW + 3 * MINUTE
    output = bucket.batch(now, said(is_said, SECOND_LIFE, layout(again()), SECOND_LIFE), *late, tick(2))
    assert not output.decisions
    (hold,) = output.holds
    known = topics_of(bucket.packed).topics[TOPIC]
    assert (hold["gate"], hold["seq"], loads_of(bucket.packed).loads_of(TOPIC), known.consumers) == (
        "load-missing",
        1,
        {},
        {},
    )
    assert (known.cooldowns.last_split_at, known.failures.in_a_row, known.attempts) == (None, 0, 0)


@pytest.mark.parametrize("is_said", SAYS_ITS_LIFE)
def test_late_messages_spare_the_new_incarnation(is_said):
    bucket = lived(is_said)
    bucket.batch(NOW + 3 * MINUTE, said(is_said, SECOND_LIFE, layout(again()), SECOND_LIFE))
    now = NOW + 4 * MINUTE
    output = bucket.batch(
        now,
        said(is_said, FIRST, consumers(9), NOW + MINUTE),
        said(is_said, FIRST, layout(two_segments().split_segment(0, NOW), "split"), NOW + MINUTE),
        said(is_said, FIRST, layout(two_segments(), "deleted"), NOW + 2 * MINUTE - 1),
    )
    assert (output.decisions, output.counts.events) == ([], 3)
    known = topics_of(bucket.packed).topics[TOPIC]
    assert (known.layout.epoch, len(known.layout.active), known.consumers) == (0, 2, {})
    decisions = bucket.batch(now, said(is_said, SECOND_LIFE, consumers(3), now)).decisions
    assert [row["reason"] for row in decisions] == ["consumer-count"]


def test_later_incarnation_recognized_without_deletion():
    bucket = Bucket()
    grown = two_segments().split_segment(0, NOW - MINUTE).split_segment(1, NOW - MINUTE)
    bucket.batch(NOW, of_life(FIRST, layout(grown)), of_life(FIRST, consumers(4)), stats({2: 9e4}, NOW))
    bucket.batch(NOW + 2 * MINUTE + 1, of_life(SECOND_LIFE, layout(again())))
    known = topics_of(bucket.packed).topics[TOPIC]
    assert (known.layout.epoch, known.consumers, known.created_at) == (0, {}, SECOND_LIFE)
    assert not loads_of(bucket.packed).loads_of(TOPIC)
    bucket.batch(NOW + 3 * MINUTE, of_life(FIRST, consumers(7)), of_life(FIRST, layout(grown)))
    known = topics_of(bucket.packed).topics[TOPIC]
    assert (known.layout.epoch, known.consumers) == (0, {})


def test_later_consumers_may_precede_their_layout():
    bucket = Bucket()
    bucket.batch(NOW, of_life(FIRST, layout(two_segments())), of_life(FIRST, consumers(2)))
    bucket.batch(NOW + 3 * MINUTE, of_life(SECOND_LIFE, consumers(3, sub="audit")))
    assert topics_of(bucket.packed).topics[TOPIC].layout is None
    (decision,) = bucket.batch(NOW + 3 * MINUTE, of_life(SECOND_LIFE, layout(again()))).decisions
    assert decision["reason"] == "consumer-count"
    assert topics_of(bucket.packed).topics[TOPIC].consumers == {"audit": ("STREAM", 3)}


def test_unstated_incarnations_told_by_segment_instants():
    bucket = Bucket()
    grown = two_segments().split_segment(0, NOW - MINUTE)
    bucket.batch(NOW, layout(grown), consumers(3), stats({1: 9e4}, NOW))
    bucket.batch(NOW + 3 * MINUTE, layout(again()))
    known = topics_of(bucket.packed).topics[TOPIC]
    assert (known.layout.epoch, known.consumers) == (0, {})
    assert not loads_of(bucket.packed).loads_of(TOPIC)
    bucket.batch(NOW + 4 * MINUTE, layout(grown), layout(grown, "deleted"))
    assert topics_of(bucket.packed).topics[TOPIC].layout.epoch == 0


def test_topic_without_incarnation_adopts_first_stated():
    """The known state is taken over whole."""
    bucket = Bucket()
    bucket.batch(NOW, layout(two_segments()), consumers(2), stats({0: 1.0, 1: 1.0}, NOW))
    bucket.batch(NOW + SECOND, of_life(FIRST, layout(two_segments())))
    known = topics_of(bucket.packed).topics[TOPIC]
    assert (known.created_at, known.consumers) == (FIRST, {"billing": ("STREAM", 2)})
    assert set(loads_of(bucket.packed).loads_of(TOPIC)) == {0, 1}


def test_consumers_without_layout_expire():
    bucket = Bucket()
    bucket.batch(NOW, consumers(8))
    later = NOW + topics.MAX_WAIT_FOR_LAYOUT_MS + 1
    assert not bucket.batch(later, layout(two_segments())).decisions
    assert topics_of(bucket.packed).topics[TOPIC].consumers == {}


def test_topics_without_layout_make_room(monkeypatch):
    monkeypatch.setattr(filtering, "MAX_TOPICS_WITHOUT_LAYOUT", 2)
    names = [f"topic://acme/shop/ghost-{number}" for number in range(4)]
    bucket = Bucket()
    output = bucket.batch(NOW, *[consumers(1, topic=name) for name in names[:3]])
    assert [letter["reason"] for letter in output.dead_letters] == ["unknown-topic"]
    later = NOW + topics.MAX_WAIT_FOR_LAYOUT_MS + 1
    assert not bucket.batch(later, consumers(1, topic=names[3])).dead_letters
    assert list(topics_of(bucket.packed).topics) == [names[3]]


def test_deletion_remembered_for_kafka_retention():
    bucket = lived()
    for day, is_ignored in ((6, True), (8, False)):
        bucket.batch(NOW + day * DAY, of_life(FIRST, consumers(1), NOW))
        assert (TOPIC not in topics_of(bucket.packed).topics) is is_ignored
    bucket.batch(NOW + 9 * DAY, layout(two_segments(), "deleted", topic="topic://acme/shop/other", at=NOW + 9 * DAY))
    assert list(topics_of(bucket.packed).ended) == ["topic://acme/shop/other"]


def test_future_deletion_does_not_block_recreation():
    bucket = Bucket()
    bucket.batch(NOW, layout(two_segments()))
    bucket.batch(NOW + MINUTE, layout(two_segments(), "deleted", at=NOW + 60 * MINUTE))
    bucket.batch(NOW + 2 * MINUTE, layout(again(), at=NOW + 2 * MINUTE))
    assert topics_of(bucket.packed).topics[TOPIC].layout is not None


@pytest.mark.parametrize("is_said", SAYS_ITS_LIFE)
def test_sample_of_earlier_incarnation_is_stale(is_said):
    bucket = lived(is_said)
    late = stats({0: 60_000.0, 1: 1.0}, NOW + 2 * MINUTE - 30 * SECOND)
    assert bucket.batch(NOW + 2 * MINUTE, late).counts.samples_accepted == 0
    bucket.batch(NOW + 2 * MINUTE + SECOND, said(is_said, SECOND_LIFE, layout(again()), SECOND_LIFE))
    now = NOW + 3 * MINUTE
    assert bucket.batch(now, stats({0: 60_000.0}, SECOND_LIFE - 2 * SECOND)).counts.samples_stale == 1
    assert bucket.batch(now, stats({0: 60_000.0}, now)).counts.samples_accepted == 1


announced = st.lists(
    st.tuples(st.sampled_from(["layout", "split", "deleted", "consumers", "none", "stats"]), st.integers(0, 2)),
    max_size=12,
)


@given(announced, st.randoms(use_true_random=False))
def test_mixed_announcements_leave_last_incarnation_clean(late, random):
    """Whatever is repeated of two earlier lives, and when: what is known in the end is what the third life has said."""
    lives = [NOW + number * 10 * MINUTE for number in range(3)]
    layouts = [SegmentLayout.create(2 + number, at) for number, at in enumerate(lives)]

    def repeated(kind, life):
        at = lives[life]
        if kind == "stats":
            return stats({0: 7.0 + life}, at + SECOND)
        if kind == "consumers":
            return of_life(at, consumers(5 + life, sub=f"of-{life}"), at + SECOND)
        if kind == "none":
            return of_life(at, consumers(0, sub=f"of-{life}", event="deleted"), at + SECOND)
        known = layouts[life].split_segment(0, at) if kind == "split" else layouts[life]
        return of_life(at, layout(known, kind if kind != "layout" else "created"), at + 2 * SECOND)

    bucket, now = Bucket(), lives[2] + MINUTE
    third = [of_life(lives[2], layout(layouts[2])), of_life(lives[2], consumers(2, sub="of-2"))]
    records = [repeated(kind, life % 2) for kind, life in late]
    for record in third:
        records.insert(random.randrange(len(records) + 1), record)
    for number, record in enumerate(records):
        bucket.batch(now + number, record)
    known = topics_of(bucket.packed).topics[TOPIC]
    assert (len(known.layout.active), known.consumers) == (4, {"of-2": ("STREAM", 2)})
    assert not loads_of(bucket.packed).loads_of(TOPIC)


def test_older_sender_cannot_revive_topic():
    """Holds even without a stated incarnation."""
    bucket = Bucket()
    bucket.batch(NOW, sent_by(5, layout(two_segments())))
    bucket.batch(NOW + SECOND, sent_by(6, layout(two_segments(), "deleted")))
    bucket.batch(NOW + 2 * SECOND, sent_by(5, consumers(3, at=NOW + DAY)))
    assert not topics_of(bucket.packed).topics
