"""Layouts that are repeated by their digests: they lead where the same layouts in full lead, and can change nothing."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decisions.topic.layout import SegmentLayout
from schemas.codecs.columns import hash_of
from schemas.codecs.known_entries import shared_out
from schemas.codecs.known_layouts import LayoutEntry, known_messages
from schemas.codecs.plain_events import digest_of, layout_in
from schemas.kafka.messages import MAX_LAYOUTS_PER_MESSAGE, MAX_VALUE_BYTES, LayoutsKnown, Rejected, parse_message
from tests.engine import buckets
from tests.engine.buckets import Bucket, topics_of
from tests.engine.records import TOPIC, consumers, layout, record, sent_by, stats, tick
from tests.engine.test_plain_announcements import MINUTE, NOW, SECOND, two_segments
from tests.examples import examples

BUCKETS = 3
TOPICS = [f"topic://acme/shop/t{number}" for number in range(9)]


def bucket_of(key):
    return hash_of((key or b"").decode(errors="replace")) % BUCKETS


def known(announced, at, sender=None):
    """What repeats the layout of an announcement by its digest."""
    body = json.loads(announced.value)
    entry = LayoutEntry(body["topic"], body["layout"]["epoch"], digest_of(layout_in(announced.value)))
    (value,) = known_messages([entry], at)
    return record("control-events", "+", value if sender is None else {"sender": sender} | json.loads(value))


def unknown_of(bucket, *records):
    """How many entries are not of the known layouts; they change nothing."""
    before = bucket.packed
    output = bucket.batch(NOW + MINUTE, *records)
    assert (output.counts.messages, output.counts.messages_accepted) == (len(records), len(records))
    assert (output.counts.events, output.dead_letters, output.layouts) == (0, [], [])
    assert bucket.packed == before
    return output.counts.layouts_unknown


step = st.sampled_from(["split", "deleted", "created", "repeat", "repeat", "repeat", "consumers", "load", "restart"])


@given(st.lists(st.lists(step, min_size=1, max_size=3), max_size=10))
@examples(15)
def test_digest_stream_equals_full_layout_stream(batches):
    """Sent as controllers do: in full by each sender first, when it has changed, and now and then."""
    in_full, by_digest = Bucket(), Bucket()
    shown, made, sender, said_by = None, 0, 5, None
    for number, steps in enumerate(batches):
        now = NOW + number * MINUTE
        full, digests = [], []

        def both(one, full=full, digests=digests):
            full.append(one)
            digests.append(one)

        for what in steps:
            if what == "created" and shown is None:
                made += 1
                shown = SegmentLayout.create(2, now + made)
                both(sent_by(sender, layout(shown, "created", at=now)))
                said_by = sender
            elif what == "split" and shown is not None:
                shown = shown.split_segment(shown.active[0].segment_id, now)
                both(sent_by(sender, layout(shown, "split", at=now)))
                said_by = sender
            elif what == "deleted" and shown is not None:
                both(sent_by(sender, layout(shown, "deleted", at=now)))
                shown = None
            elif what == "repeat" and shown is not None:
                again = sent_by(sender, layout(shown, "snapshot", at=now))
                full.append(again)
                digests.append(again if said_by != sender else known(again, now, sender))
                said_by = sender
            elif what == "consumers":
                both(sent_by(sender, consumers(number % 3, now)))
            elif what == "load":
                both(stats({0: 30_000.0, 1: 5.0}, now))
            elif what == "restart":
                sender, said_by = sender + 1, None
        both(tick(now))
        expected, output = in_full.batch(now, *full), by_digest.batch(now, *digests)
        assert (output.decisions, output.holds, output.due) == (expected.decisions, expected.holds, expected.due)
        assert output.layouts == expected.layouts
        assert output.counts == expected.counts, "messages, events and evaluations too, and none is unknown"
        assert by_digest.packed == in_full.packed


def test_digest_is_known_or_counted_only():
    bucket, split = Bucket(), two_segments().split_segment(0, NOW)
    first, second = (sent_by(5, layout(one)) for one in (two_segments(), split))
    bucket.batch(NOW, first)
    assert unknown_of(bucket, known(first, NOW, 5), known(first, NOW)) == 0
    assert unknown_of(bucket, known(second, NOW, 5)) == 1, "a newer layout is not taken from its digest"
    bucket.batch(NOW, second)
    assert unknown_of(bucket, known(second, NOW, 5)) == 0
    assert topics_of(bucket.packed).topics[TOPIC].known.epoch == split.epoch


def test_late_digest_ignored_and_not_counted():
    bucket, split = Bucket(), two_segments().split_segment(0, NOW)
    first, second = sent_by(5, layout(two_segments())), sent_by(6, layout(split))
    bucket.batch(NOW, first, second)
    assert unknown_of(bucket, known(first, NOW, 6)) == 0, "of an older epoch"
    other = layout(split, policy={"maxSegments": 9})
    assert unknown_of(bucket, known(other, NOW, 5)) == 0, "of a sender before"
    assert unknown_of(bucket, known(other, NOW, 6)) == 1
    bucket.batch(NOW, sent_by(6, layout(split, "deleted", at=NOW + SECOND)))
    assert unknown_of(bucket, known(second, NOW, 6)) == 0, "of a topic that was deleted since"
    assert unknown_of(bucket, known(second, NOW + MINUTE, 6)) == 1
    assert TOPIC not in topics_of(bucket.packed).topics


@pytest.mark.parametrize("in_state", [[], [consumers(3, NOW)]], ids=["nothing", "consumers"])
def test_digest_of_unknown_topic_counted_only(in_state):
    """It makes no topic."""
    bucket = Bucket()
    bucket.batch(NOW, tick(NOW), *in_state)
    assert unknown_of(bucket, known(layout(two_segments()), NOW, 5)) == 1
    assert list(topics_of(bucket.packed).topics) == [TOPIC] * len(in_state)


def test_multi_topic_message_split_and_counted_once():
    entries = [LayoutEntry(topic, 1, f"{number:032x}") for number, topic in enumerate(TOPICS)]
    (value,) = known_messages(entries, NOW)
    one = record("control-events", "+", value)
    found = buckets.packed([one, layout(two_segments())], NOW, BUCKETS, bucket_of)
    seen = []
    for bucket, part in found.items():
        for raw in part.records:
            if raw.key == b"+":
                message = parse_message(raw.source, raw.key, raw.value)
                assert raw.home == (bucket == bucket_of(b"+"))
                assert {bucket_of(topic.encode()) for topic in message.topics} <= {bucket}
                seen += zip(message.topics, message.epochs, message.digests, strict=True)
    assert sorted(seen) == sorted(entries)
    homes = [raw.offset for part in found.values() for raw in part.records if raw.home and raw.key == b"+"]
    assert homes == [one.offset]


def test_bad_entry_is_dead_letter_and_others_count():
    told = layout(two_segments())
    good, digest = json.loads(known(told, NOW).value), "0" * 32
    bad = [
        (TOPIC, 1, digest[:-1] + "\n"),
        ("acme", 1, digest),
        (7, 1, digest),
        (TOPIC, -1, digest),
        (TOPIC, True, digest),
        (TOPIC, 2**63, digest),
        (TOPIC, 1, digest.replace("0", "F")),
        (TOPIC, 1, None),
    ]
    for at, name in enumerate(("topics", "epochs", "digests")):
        good[name] += [entry[at] for entry in bad]
    one = record("control-events", "+", good)
    bucket = Bucket()
    bucket.batch(NOW, told)
    part = buckets.packed([one], NOW)[0]
    output = bucket.engine.run(0, bucket.packed, part.records, NOW + SECOND, *part[1:])[1]
    assert [letter["sample"] for letter in output.dead_letters] == list(range(1, 9))
    assert {letter["reason"] for letter in output.dead_letters} == {"invalid"}
    raw = urlsafe_b64decode(output.dead_letters[1]["raw"])
    assert json.loads(raw) == {"topic": "acme", "epoch": 1, "digest": digest}
    counts = output.counts
    assert (counts.messages, counts.messages_accepted, counts.dead_letters, counts.samples_refused) == (1, 1, 0, 0)
    assert counts.layouts_unknown == 0, "the good entry is known"


@pytest.mark.parametrize(
    "body",
    [
        {"epochs": [1]},
        {"digests": ["0"]},
        {"v": 1},
        {"topics": None},
        {"at": -1},
        {name: [TOPIC] * (MAX_LAYOUTS_PER_MESSAGE + 1) for name in ("topics", "epochs", "digests")},
    ],
)
def test_mismatched_columns_are_one_dead_letter(body):
    one = {"v": 2, "type": "layouts-known", "at": NOW, "topics": [], "epochs": [], "digests": []} | body
    assert isinstance(parse_message("control-events", b"+", json.dumps(one).encode()), Rejected)
    (part,) = buckets.packed([record("control-events", "+", one)], NOW).values()
    assert (len(part.letters), part.records, part.letters_of_parts) == (1, [], [])


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.sampled_from([TOPIC, "0" * 32]),
    lambda inner: st.lists(inner, max_size=2),
    max_leaves=3,
)


@given(st.lists(st.tuples(values, values, values), max_size=5))
def test_every_entry_routed_or_refused(entries):
    topics, epochs, digests = (list(column) for column in zip(*entries, strict=True)) if entries else ([], [], [])
    message = LayoutsKnown(v=2, type="layouts-known", at=NOW, topics=topics, epochs=epochs, digests=digests)
    parts, refused = shared_out(message, BUCKETS)
    kept = sum(len(parse_message("control-events", b"+", value).topics) for value in parts.values())
    assert kept + len(refused) == len(entries)


@given(st.lists(st.integers(1, 900), max_size=900))
@examples(6)
def test_messages_hold_every_layout_once_and_fit(lengths):
    entries = [
        LayoutEntry(f"topic://a/b/{'ü' * length}{number}", 2**60, "0" * 32) for number, length in enumerate(lengths)
    ]
    messages = list(known_messages(iter(entries), NOW))
    assert all(len(value) < MAX_VALUE_BYTES for value in messages)
    found = [parse_message("control-events", b"+", value) for value in messages]
    assert [name for one in found for name in one.topics] == [entry.topic for entry in entries]
