"""Announcements the short way: what is accepted there the models accept with the same values, and what only repeats
what is known changes nothing and is no event."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from decisions.topic.layout import LayoutError, SegmentLayout
from engine.autoscale.layouts import SEGMENT, layout_of_json, layout_of_model, plain_layout
from engine.kernel.recording import columns_of
from schemas.codecs.plain_events import count_active, digest_of, read_plain
from schemas.kafka.messages import ConsumerEvent, LayoutEvent, parse_message
from schemas.metadata import AutoScalePolicyOverride, ScalableTopicMetadata
from tests.engine.buckets import Bucket, topics_of
from tests.engine.records import TOPIC, consumers, layout, of_life, sent_by, tick
from tests.engine.test_engine import MINUTE, NOW, SECOND, two_segments
from tests.examples import examples
from tests.schemas.test_bulk import odd_bytes, put

POLICY = {"maxSegments": 8, "splitMsgRateInThreshold": 1e4, "theirs": None}
LAYOUT = sent_by(5, of_life(NOW - MINUTE, layout(two_segments(), "snapshot", policy=POLICY)))
CONSUMERS = sent_by(5, of_life(NOW - MINUTE, consumers(3, event="snapshot")))
FIELDS = (
    "topic",
    "cause",
    "event",
    "type",
    "subscription",
    "consumer",
    "consumers",
    "at",
    "decision_id",
    "sender",
    "topic_created_at",
)


def check(announced, value):
    """The short way and the models about the same bytes."""
    expected = parse_message(announced.source, announced.key, value, len(value))
    plain = read_plain(announced.source, announced.key, value, len(value))
    if plain is None:
        return None
    model = LayoutEvent if announced.source == "control-events" else ConsumerEvent
    if model is LayoutEvent:
        try:
            read = plain_layout(plain.layout)
        except LayoutError as error:
            with pytest.raises(LayoutError, match=str(error)[:10]):
                SegmentLayout.from_metadata(expected.layout)
            return plain
        if read is None:
            return None
        assert isinstance(expected, LayoutEvent), expected
        assert read.layout == SegmentLayout.from_metadata(expected.layout)
        assert read.known({}).metadata_json == expected.layout.to_json()
    assert isinstance(expected, model), expected
    for name in FIELDS:
        assert getattr(plain, name, None) == getattr(expected, name, None)
    assert columns_of(plain) == columns_of(expected)
    return plain


def edits_of(value):
    places = [place for place in range(1, len(value) + 1) if value[place - 1 : place] in b'{}[]:,"']
    edit = st.tuples(st.sampled_from(places) | st.integers(0, places[-1]), st.sampled_from([0, 0, 1, 3]), odd_bytes)
    return st.lists(edit, max_size=2)


@given(edits_of(LAYOUT.value))
@example([])
@example([(1, 0, b'"layout":{},')])
@example([(1, 0, b'"x":"\xff",')])
def test_plain_layout_accepted_like_model_or_deferred(edits):
    assert check(LAYOUT, put(LAYOUT.value, edits)) or edits


@given(edits_of(CONSUMERS.value))
@example([])
@example([(1, 0, b'"consumers":1,')])
def test_plain_count_accepted_like_model_or_deferred(edits):
    assert check(CONSUMERS, put(CONSUMERS.value, edits)) or edits


@st.composite
def grown_layouts(draw):
    """Layouts after some splits, merges and prunings, with properties and policies that need escapes."""
    found = SegmentLayout.create(draw(st.integers(1, 4)), draw(st.integers(0, NOW)), draw(_TEXTS))
    for _ in range(draw(st.integers(0, 8))):
        at, active = draw(st.integers(-1, NOW)), found.active
        number = draw(st.integers(0, len(active) - 1))
        kind = draw(st.sampled_from(["split", "merge", "prune"]))
        if kind == "split" and active[number].width > 1:
            found = found.split_segment(active[number].segment_id, at)
        elif kind == "merge" and number:
            found = found.merge_segments(active[number - 1].segment_id, active[number].segment_id, at)
        elif sealed := [one.segment_id for one in found.segments.values() if not one.is_active]:
            found = found.prune_segment(sealed[0])
    return found.with_policy(draw(_POLICIES))


_TEXTS = st.dictionaries(
    st.text(max_size=4), st.text(max_size=4) | st.just('"\\/\b\f\n\r\t\x00\x1f\x7fü\u2028😀'), max_size=2
)
_POLICIES = st.none() | st.builds(
    AutoScalePolicyOverride,
    max_segments=st.none() | st.integers(-(2**70), 2**70),
    enabled=st.none() | st.booleans(),
    split_msg_rate_in_threshold=st.none() | st.floats(allow_nan=False, allow_infinity=False),
)


@given(grown_layouts(), st.booleans(), st.dictionaries(st.integers(0, 9), st.integers(0, 5), max_size=4))
def test_short_layout_round_trips_byte_for_byte(grown, is_derived, depths):
    metadata = grown.to_metadata()
    text = metadata.to_json()
    if not is_derived:
        body = json.loads(text)
        for segment in body["segments"].values():
            for name in ("sealed", "active", "root", "leaf", "legacy"):
                del segment[name]
        text = type(metadata).model_validate_json(json.dumps(body)).to_json()
    read = plain_layout(text.encode())
    assert read is not None
    assert read == layout_of_json(text) == layout_of_model(type(metadata).model_validate_json(text))
    known = msgspec.msgpack.decode(msgspec.msgpack.encode(read.known(depths)), type=type(read.known(depths)))
    assert (known.metadata_json, known.layout, known.epoch) == (text, grown, grown.epoch)
    active = [
        (s.segment_id, grown.merge_depth(s.segment_id), depths.get(s.segment_id, 0), s.width == 1) for s in grown.active
    ]
    assert np.frombuffer(known.segments, SEGMENT).tolist() == active
    assert known.override == (grown.auto_scale_policy and grown.auto_scale_policy.known_json())
    assert count_active(text.encode()) == (grown.epoch, len(grown.active))


def test_what_properties_say_counts_as_no_segment():
    told = SegmentLayout.create(2, NOW, {"state": "ACTIVE"}).to_metadata().to_json().encode()
    assert b'"state":"ACTIVE"' in told.partition(b'"properties"')[2]
    assert count_active(told) == (0, 2)


def check_alone(text):
    """What is read of a layout, whatever came before it, is what the model reads of it."""
    read, metadata = plain_layout(text), ScalableTopicMetadata.model_validate_json(text)
    expected = SegmentLayout.from_metadata(metadata)
    assert read is not None
    assert (read.layout, read.known({}).metadata_json, read.digest) == (expected, text.decode(), digest_of(text))
    assert (read.epoch, read.next_segment_id, read.ids) == (
        expected.epoch,
        expected.next_segment_id,
        sorted(expected.segments),
    )
    assert read.active == [(one.start, one.segment_id, one.end) for one in expected.active]
    assert read.has_parents == any(one.parent_ids for one in expected.segments.values())


_INSTANTS = st.integers(10**12, 10**13 - 1) | st.sampled_from([0, 1, 10**12 - 1, 10**13, 10**13 + 1, NOW * 10 + 5, NOW])


@given(grown_layouts(), _INSTANTS, st.lists(_INSTANTS, min_size=3, max_size=6))
def test_layouts_differing_in_instant_stay_separate(grown, made_at, instants):
    grown = replace(grown, created_at_ms=made_at)
    first = f'"createdAtMs":{next(iter(grown.segments.values())).created_at_ms}'.encode()
    text = grown.to_metadata().to_json().encode()
    for at in instants:
        check_alone(text.replace(first + b",", b'"createdAtMs":%d,' % at))


def test_similar_or_misplaced_instant_not_confused():
    segments = SegmentLayout.create(3, NOW).to_metadata().to_json().encode()
    of_each = segments.split(b"%d" % NOW)
    for at in (NOW + 1, NOW, NOW + 2, NOW, NOW + 3):
        of_second, sealed = b"%d" % (NOW * 10 + 5), of_each[3].replace(b'"sealedAtMs":-1', b'"sealedAtMs":%d' % NOW)
        check_alone(b"".join((of_each[0], b"%d" % at, of_each[1], of_second, of_each[2], b"%d" % NOW, sealed)))
        check_alone(b"".join((of_each[0], b"%d" % at, of_each[1], b"%d5" % at, of_each[2], b"7", sealed)))


@pytest.mark.parametrize("odd", ['"theirs":1,', '"epoch":0,', " "])
def test_complex_values_kept_as_in_model(odd):
    text = two_segments().to_metadata().to_json()
    odd_text = "{" + odd + text[1:]
    assert plain_layout(odd_text.encode()) is None
    read = layout_of_json(odd_text)
    is_unknown = "theirs" in odd
    assert read.known({}).metadata_json == (text[:-1] + ',"theirs":1}' if is_unknown else text)
    assert read.known({}).layout.segments == two_segments().segments


SNAPSHOTS = [
    pytest.param(lambda: layout(two_segments(), "snapshot", at=9), id="layout"),
    pytest.param(lambda: consumers(3, 9, event="snapshot"), id="consumers"),
]


def known_bucket():
    """A bucket that was told a layout and consumers by sender 5, and has gone through a restart."""
    bucket = Bucket()
    bucket.batch(NOW, *(sent_by(5, of_life(7, one)) for one in (layout(two_segments()), consumers(3))))
    bucket.restart()
    return bucket


@pytest.mark.parametrize("snapshot", SNAPSHOTS)
@pytest.mark.parametrize("by", [lambda one: one, lambda one: sent_by(5, of_life(7, one)), lambda one: sent_by(4, one)])
def test_known_snapshot_accepted_without_event(snapshot, by):
    bucket = known_bucket()
    before = bucket.packed
    output = bucket.batch(NOW + SECOND, by(snapshot()), by(snapshot()))
    assert (output.counts.messages, output.counts.messages_accepted, output.counts.events) == (2, 2, 0)
    assert bucket.packed == before


def test_eventless_layouts_announced_after_restart():
    bucket = known_bucket()
    told = [bucket.batch(NOW + at * SECOND, layout(two_segments(), "snapshot")).layouts for at in range(2)]
    assert told == [[{"subject": TOPIC, "active": 2}], []]


def test_layout_changes_reach_watchers():
    bucket, split = known_bucket(), two_segments().split_segment(0, NOW)
    late = layout(split, at=NOW + 1)
    told = bucket.batch(NOW + SECOND, layout(split, "split", at=NOW + 1), late, layout(split, "deleted", at=NOW + 2))
    assert [(one["subject"], one["active"]) for one in told.layouts] == [(TOPIC, 2), (TOPIC, 3), (TOPIC, None)]


@pytest.mark.parametrize("snapshot", SNAPSHOTS)
def test_other_senders_snapshot_is_an_event(snapshot):
    """Its sender is remembered."""
    bucket = known_bucket()
    output = bucket.batch(NOW + SECOND, sent_by(6, of_life(7, snapshot())), sent_by(6, of_life(7, snapshot())))
    assert (output.counts.messages_accepted, output.counts.events) == (2, 1)
    topic = topics_of(bucket.packed).topics[TOPIC]
    assert max(topic.layout_sender, topic.consumers_sender) == 6


@pytest.mark.parametrize(
    "changed",
    [
        lambda: layout(two_segments().split_segment(0, NOW), "snapshot"),
        lambda: consumers(4, event="snapshot"),
        lambda: layout(two_segments(), "split"),
        lambda: consumers(3),
        lambda: layout(two_segments(), "deleted"),
        lambda: of_life(8, layout(two_segments(), "snapshot")),
        lambda: of_life(8, consumers(3, event="snapshot")),
        lambda: consumers(3, event="snapshot", sub="other"),
        lambda: consumers(3, event="snapshot", kind="QUEUE"),
    ],
)
def test_what_says_more_than_is_known_is_an_event(changed):
    output = known_bucket().batch(NOW + SECOND, changed())
    assert (output.counts.messages_accepted, output.counts.events) == (1, 1)


def test_snapshot_before_its_layout_is_an_event():
    bucket = Bucket()
    said = [bucket.batch(NOW + at * SECOND, consumers(3, event="snapshot")).counts.events for at in range(2)]
    assert said == [1, 1]
    assert topics_of(bucket.packed).topics[TOPIC].heard_at == NOW + SECOND


LAYOUTS = (two_segments(), two_segments().split_segment(0, NOW - SECOND), SegmentLayout.create(2, NOW))
announcements = st.builds(
    lambda announced, sender, life: of(announced, sender, life),
    st.builds(
        layout,
        st.sampled_from(LAYOUTS),
        st.sampled_from(["snapshot", "snapshot", "snapshot", "split", "deleted"]),
        st.integers(NOW - SECOND, NOW),
        policy=st.sampled_from([None, {"maxSegments": 9}]),
    )
    | st.builds(
        consumers,
        st.integers(1, 2),
        st.integers(NOW - SECOND, NOW),
        event=st.sampled_from(["snapshot", "snapshot", "registered", "deleted"]),
    ),
    st.sampled_from([None, None, 4, 5]),
    st.sampled_from([None, None, NOW - MINUTE, NOW - SECOND]),
)


def of(announced, sender, life):
    announced = announced if life is None else of_life(life, announced)
    return announced if sender is None else sent_by(sender, announced)


def spaced(announced):
    value = json.dumps(json.loads(announced.value)).encode()
    return announced._replace(value=value, size=len(value))


@given(st.lists(st.lists(announcements, min_size=1, max_size=3), max_size=8))
@examples(15)
def test_plain_and_model_announcements_agree(batches):
    """The events on record alone agree, too."""
    plain, by_model, again = Bucket(), Bucket(), Bucket()
    for number, announced in enumerate(batches):
        now = NOW + number * SECOND
        ticks = [tick(now)] if number % 3 == 2 else []
        output = plain.batch(now, *announced, *ticks)
        expected = by_model.batch(now, *map(spaced, announced), *map(spaced, ticks))
        recorded = [(row["kafka_topic"], row["kafka_offset"]) for row in output.events]
        of_record = [one for one in (*announced, *ticks) if (one.source, one.offset) in recorded]
        replayed = again.batch(now, *of_record)
        assert output.decisions == expected.decisions == replayed.decisions
        assert output.holds == expected.holds == replayed.holds
        assert output.counts.messages_accepted == expected.counts.messages_accepted
    known = [topics_of(bucket.packed) for bucket in (plain, by_model, again)]
    assert known[0].topics == known[1].topics == known[2].topics
    assert known[0].ended == known[1].ended == known[2].ended
