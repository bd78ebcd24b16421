"""Topics and segments that no layout names: kept until their layout comes, up to a limit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from decisions.topic.layout import SegmentLayout
from engine.autoscale import filtering, routes, topics
from tests.engine.buckets import Bucket, loads_of, topics_of
from tests.engine.records import consumers, layout, policy, sent_by, stats, tick
from tests.engine.test_engine import MINUTE, NOW, SECOND, started, two_segments

OTHERS = [f"topic://acme/shop/stranger-{number}" for number in range(6)]


def rows(bucket):
    return loads_of(bucket.packed).index


def test_samples_before_their_layout_are_kept_for_it():
    bucket = Bucket()
    bucket.batch(NOW, stats({0: 50_000.0, 1: 1.0}, NOW))
    (decision,) = bucket.batch(NOW + SECOND, layout(two_segments()), tick(1)).decisions
    assert decision["reason"] == "msgRateIn"


def test_surplus_samples_wait_for_layout(monkeypatch):
    monkeypatch.setattr(routes, "MAX_ROWS_WITHOUT_LAYOUT", 4)
    bucket = Bucket()
    for second, topic in enumerate(OTHERS[:3]):
        output = bucket.batch(NOW + second, stats({0: 1.0, 1: 1.0}, NOW + second, topic))
        assert output.counts.samples_accepted == (2 if second < 2 else 0)
    assert (output.counts.messages_suppressed, output.counts.samples_stale) == (1, 2)
    bucket.restart()
    assert bucket.batch(NOW + SECOND, stats({0: 9.0, 1: 9.0}, NOW + SECOND, OTHERS[0])).counts.samples_accepted == 2
    assert bucket.batch(NOW + SECOND, stats({0: 9.0}, NOW + SECOND, OTHERS[2])).counts.samples_accepted == 0
    bucket.batch(NOW + SECOND, layout(two_segments(), topic=OTHERS[2]))
    assert bucket.batch(NOW + SECOND, stats({0: 9.0}, NOW + SECOND, OTHERS[2])).counts.samples_accepted == 1


def test_a_layout_makes_room_for_the_next_stranger(monkeypatch):
    monkeypatch.setattr(routes, "MAX_ROWS_WITHOUT_LAYOUT", 2)
    bucket = Bucket()
    bucket.batch(NOW, stats({0: 1.0, 1: 1.0}, NOW, OTHERS[0]))
    assert bucket.batch(NOW, stats({0: 1.0, 1: 1.0}, NOW, OTHERS[1])).counts.samples_accepted == 0
    bucket.batch(NOW, layout(two_segments(), topic=OTHERS[0]))
    assert bucket.batch(NOW + 1, stats({0: 1.0, 1: 1.0}, NOW + 1, OTHERS[1])).counts.samples_accepted == 2


def test_segments_far_beyond_layout_ignored():
    near, far = 2 + routes.MAX_AHEAD - 1, 2 + routes.MAX_AHEAD
    bucket = started()
    output = bucket.batch(NOW + SECOND, stats({0: 1.0, near: 1.0, far: 1.0}, NOW + SECOND))
    assert (output.counts.samples_accepted, output.counts.samples_stale) == (2, 1)
    assert set(rows(bucket).segments_of(next(iter(rows(bucket).topics())))) == {0, near}


def test_unknown_topics_limited_and_known_ones_served(monkeypatch):
    """Surplus consumers become dead letters."""
    monkeypatch.setattr(filtering, "MAX_TOPICS_WITHOUT_LAYOUT", 2)
    bucket = started()
    output = bucket.batch(NOW + SECOND, *[consumers(1, topic=topic) for topic in OTHERS[:4]], consumers(3))
    assert [letter["reason"] for letter in output.dead_letters] == ["unknown-topic"] * 2
    assert "stranger-2" in output.dead_letters[0]["detail"]
    assert len(output.decisions) == 1
    output = bucket.batch(NOW + 2 * SECOND, layout(two_segments(), topic=OTHERS[0]), consumers(1, topic=OTHERS[3]))
    assert (output.counts.events, output.dead_letters) == (2, [])


reports = st.tuples(st.sampled_from(OTHERS), st.dictionaries(st.integers(0, 300), st.just(5.0), min_size=1, max_size=9))


@given(st.lists(st.lists(st.one_of(reports, st.sampled_from(OTHERS), st.none()), max_size=5), max_size=6))
def test_rows_stay_bounded_for_any_reports(batches):
    """A restart changes nothing."""
    with_limit = routes.MAX_ROWS_WITHOUT_LAYOUT
    routes.MAX_ROWS_WITHOUT_LAYOUT = 12
    try:
        bucket, restarted, known = Bucket(), Bucket(), set()
        for number, entries in enumerate(batches):
            now, records = NOW + number * MINUTE, []
            for entry in entries:
                if entry is None:
                    records.append(tick(number))
                elif isinstance(entry, str):
                    known.add(entry)
                    records.append(layout(SegmentLayout.create(2, NOW), topic=entry))
                else:
                    records.append(stats(entry[1], now, entry[0]))
            restarted.restart()
            assert bucket.batch(now, *records).counts.samples_accepted == (
                restarted.batch(now, *records).counts.samples_accepted
            )
            assert bucket.packed == restarted.packed
            table = rows(bucket)
            strangers = [table.rows_in(topic) for topic in table.topics() if topic not in known]
            assert sum(strangers) <= 12
            assert all(table.rows_in(topic) <= 2 + routes.MAX_AHEAD + 12 for topic in known)
    finally:
        routes.MAX_ROWS_WITHOUT_LAYOUT = with_limit


def test_samples_without_layout_replaced_by_newer(monkeypatch):
    """They do not count as load of a later topic."""
    monkeypatch.setattr(routes, "MAX_ROWS_WITHOUT_LAYOUT", 2)
    bucket = Bucket()
    bucket.batch(NOW, stats({0: 5.0, 1: 5.0}, NOW, OTHERS[0]))
    later = NOW + topics.MAX_WAIT_FOR_LAYOUT_MS
    assert bucket.batch(later, stats({0: 1.0, 1: 1.0}, later, OTHERS[1])).counts.samples_accepted == 0
    assert bucket.batch(later + 1, stats({0: 1.0, 1: 1.0}, later, OTHERS[1])).counts.samples_accepted == 2
    much_later = later + topics.MAX_WAIT_FOR_LAYOUT_MS + 2
    bucket.batch(much_later, layout(two_segments(), topic=OTHERS[1]))
    assert not loads_of(bucket.packed).loads_of(OTHERS[1])


def test_subscriptions_and_policies_are_bounded(monkeypatch):
    monkeypatch.setattr(filtering, "MAX_SUBSCRIPTIONS", 2)
    monkeypatch.setattr(filtering, "MAX_NAMESPACES", 2)
    bucket = started()
    output = bucket.batch(NOW, *[consumers(1, sub=f"s{number}") for number in (0, 1, 2, 0)])
    assert [letter["reason"] for letter in output.dead_letters] == ["too-many"]
    output = bucket.batch(NOW, consumers(0, sub="s0", event="deleted"), consumers(1, sub="s2"))
    assert output.dead_letters == []
    output = bucket.batch(NOW, *[policy({"maxSegments": 9}, f"acme/n{number}") for number in (0, 1, 2, 0)])
    assert [letter["reason"] for letter in output.dead_letters] == ["too-many"]
    output = bucket.batch(NOW, policy(None, "acme/n0"), policy({"maxSegments": 9}, "acme/n2"))
    assert output.dead_letters == []


def test_policy_remover_remembered_for_retention(monkeypatch):
    monkeypatch.setattr(topics, "MAX_DELETED", 2)
    bucket = started()
    names = [f"acme/n{number}" for number in range(4)]
    for number, name in enumerate(names):
        bucket.batch(NOW + number, sent_by(5, policy({"maxSegments": 9}, name)))
        bucket.batch(NOW + number, sent_by(6, policy(None, name)))
    bucket.restart()
    assert list(topics_of(bucket.packed).policy_senders) == names[2:]
    later = NOW + topics.REMEMBERED_MS + 10
    bucket.batch(later, sent_by(6, policy({"maxSegments": 9}, "acme/other")), sent_by(6, policy({"maxSegments": 8})))
    assert set(topics_of(bucket.packed).policy_senders) == {"acme/other", ""}
