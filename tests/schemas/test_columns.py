"""Samples in columns: what the short way accepts the validator accepts, and one bad sample takes no other with it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from schemas.codecs import bulk_columns
from schemas.codecs.bulk_columns import SegmentsDirectory, TopicDirectory, decode_columns
from schemas.codecs.columns import hash_of, split_columns
from schemas.kafka.messages import MAX_SAMPLES_PER_MESSAGE, Rejected, RejectReason, SegmentStatsColumns, parse_message
from tests.schemas.test_bulk import ODD_BYTES, odd_numbers, put

ORDERS, CLICKS = "topic://acme/shop/orders", "topic://acme/shop/clicks"
RATES = ("msgRateIn", "bytesRateIn", "msgRateOut", "bytesRateOut")
MESSAGE = {
    "v": 2,
    "reporter": "broker-3",
    "sampledAt": 5,
    "topics": [ORDERS, CLICKS],
    "counts": [2, 1],
    "ids": [3, 5, 0],
    "msgRateIn": [1.0, 2.0, 3.5],
    "bytesRateIn": [4.0, 5, 6.0],
    "msgRateOut": [7, 8.0, 9.0],
    "bytesRateOut": [10.0, 11.0, 0.0],
}
KEY, NOW = b"broker-3", 1_000
VALUE = json.dumps(MESSAGE).encode()


def encoded(**changed):
    return json.dumps({**MESSAGE, **changed}).encode()


def split(value, key=KEY):
    message = parse_message("segment-stats", key, value, len(value))
    assert isinstance(message, SegmentStatsColumns), message
    return split_columns(message)


def rejected(value, key=KEY):
    found = parse_message("segment-stats", key, value, len(value))
    assert isinstance(found, Rejected), found
    return found.reason


def values_of(found):
    of = found.segments
    names = [name for name, count in zip(of.topics, of.counts.tolist(), strict=True) for _ in range(count)]
    samples = sorted(zip(names, of.ids.tolist(), found.rates.T.tolist(), strict=True))
    return found.reporter, found.sampled_at, samples, dict(zip(of.topics, of.hashes.tolist(), strict=True))


def check(key, value):
    """One answer of a decoder that has seen nothing, of one that has seen the segments, and of the validator."""
    bulk_columns._directory = SegmentsDirectory()
    fresh = decode_columns(key, value, len(value), NOW)
    decode_columns(KEY, VALUE, len(VALUE), NOW)
    warm = decode_columns(key, value, len(value), NOW)
    assert (fresh is None) == (warm is None)
    if fresh is None or warm is None:
        return
    good, refused = split(value, key)
    assert refused == []
    topics = values_of(good)[3]
    assert values_of(fresh)[:3] == values_of(warm)[:3] == values_of(good)[:3]
    assert values_of(fresh)[3] == values_of(warm)[3]
    assert topics.items() <= values_of(fresh)[3].items()


odd = st.one_of(odd_numbers, st.sampled_from([ORDERS, "topic://a/b", "", 10**400, [1], {"a": 1}, "\x1c"]))


@st.composite
def messages(draw):
    n = draw(st.integers(0, 3))
    topics = draw(st.lists(st.sampled_from([ORDERS, CLICKS, "topic://a/b/ü", "topic://a/b/c d"]), max_size=n))
    counts = [draw(st.integers(0, 3)) for _ in topics]
    m = sum(counts)
    entries = {"ids": st.integers(0, 5), **dict.fromkeys(RATES, st.floats(0, 1e300) | st.integers(0, 2**70))}
    message = {**MESSAGE, "topics": topics, "counts": counts}
    message.update({name: draw(st.lists(one, min_size=m, max_size=m)) for name, one in entries.items()})
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        name = draw(st.sampled_from(list(MESSAGE)))
        if isinstance(message[name], list) and draw(st.booleans()):
            message[name] = [*message[name]]
            message[name][draw(st.integers(0, 3)) : draw(st.integers(0, 3))] = draw(st.lists(odd, max_size=2))
        else:
            message[name] = draw(odd)
    return message


@given(messages())
@example(MESSAGE)
@example({**MESSAGE, "topics": [ORDERS, ORDERS]})
@example({**MESSAGE, "ids": [5, 5, 5]})
@example({**MESSAGE, "ids": [5, 3, 5]})
@example({**MESSAGE, "topics": [], "counts": [], "ids": [], **{name: [] for name in RATES}})
def test_decoder_matches_validator(message):
    check(str(message["reporter"]).encode(), json.dumps(message).encode())


PLACES = [place for place in range(len(VALUE) + 1) if VALUE[place - 1 : place] in [bytes([one]) for one in b'{}[]:,"']]
odd_bytes = st.sampled_from(ODD_BYTES) | st.binary(max_size=3)
edits = st.lists(
    st.tuples(st.sampled_from(PLACES) | st.integers(0, PLACES[-1]), st.sampled_from([0, 0, 1, 3]), odd_bytes),
    max_size=3,
)


@given(edits)
@example([(1, 0, b'"x":"\xff",')])
@example([(1, 0, b'"x":' + b"[" * 300 + b"]" * 300 + b",")])
def test_decoder_matches_validator_when_damaged(edits):
    check(KEY, put(VALUE, edits))


def test_only_plain_messages_take_fast_path():
    assert values_of(decode_columns(KEY, VALUE, len(VALUE), NOW)) == (
        "broker-3",
        5,
        [(CLICKS, 0, [3.5, 6.0, 9.0, 0.0]), (ORDERS, 3, [1.0, 4.0, 7.0, 10.0]), (ORDERS, 5, [2.0, 5.0, 8.0, 11.0])],
        {ORDERS: hash_of(ORDERS), CLICKS: hash_of(CLICKS)},
    )
    assert decode_columns(b"broker-4", VALUE, len(VALUE), NOW) is None
    assert decode_columns(None, VALUE, len(VALUE), NOW) is None
    assert decode_columns(KEY, None, -1, NOW) is None
    assert decode_columns(KEY, VALUE, 2_000_000, NOW) is None
    assert decode_columns(KEY, encoded(more=1), 1, NOW) is None
    assert decode_columns(KEY, encoded(sampledAt=NOW + 300_000), 1, NOW) is not None
    assert decode_columns(KEY, encoded(sampledAt=NOW + 300_001), 1, NOW) is None


@pytest.mark.parametrize(
    ("changed", "index", "field"),
    [
        ({"topics": [ORDERS, "clicks"]}, 2, "topic"),
        ({"topics": [ORDERS, 7]}, 2, "topic"),
        ({"topics": [ORDERS, "topic://a/b/" + "c" * 1024]}, 2, "topic"),
        ({"topics": [ORDERS, ORDERS], "ids": [3, 5, 3]}, 2, "id"),
        ({"ids": [3, 3, 0]}, 1, "id"),
        ({"ids": [3, -1, 0]}, 1, "id"),
        ({"ids": [3, 2**63, 0]}, 1, "id"),
        ({"ids": [3, 1.0, 0]}, 1, "id"),
        ({"ids": [3, True, 0]}, 1, "id"),
        ({"msgRateIn": [-0.5, 2.0, 3.5]}, 0, "msgRateIn"),
        ({"bytesRateIn": [4.0, float("nan"), 6.0]}, 1, "bytesRateIn"),
        ({"msgRateOut": [7, 8.0, float("inf")]}, 2, "msgRateOut"),
        ({"bytesRateOut": ["10", 11.0, 0.0]}, 0, "bytesRateOut"),
        ({"bytesRateOut": [None, 11.0, 0.0]}, 0, "bytesRateOut"),
        ({"bytesRateOut": [10**400, 11.0, 0.0]}, 0, "bytesRateOut"),
        ({"bytesRateOut": [[{}], 11.0, 0.0]}, 0, "bytesRateOut"),
    ],
)
def test_bad_sample_refused_and_others_count(changed, index, field):
    value = encoded(**changed)
    assert decode_columns(KEY, value, len(value), NOW) is None
    good, (refused,) = split(value)
    every = values_of(split(VALUE)[0])[2]
    bad = [(ORDERS, 3), (ORDERS, 5), (CLICKS, 0)][index]
    assert values_of(good)[2] == [sample for sample in every if sample[:2] != bad]
    assert refused.index == index
    assert refused.reason is RejectReason.INVALID
    assert refused.detail.startswith(f"sample {index}: {field} ")
    assert field in json.loads(refused.raw) or len(refused.raw) == 1024 * 2


def test_bad_topic_takes_samples_and_repeated_joins():
    """A bad topic takes its samples with it; a repeated one is joined."""
    good, refused = split(encoded(topics=["orders", CLICKS]))
    assert [one.index for one in refused] == [0, 1]
    assert good.segments.topics == [CLICKS]
    good, refused = split(encoded(topics=[ORDERS, ORDERS]))
    assert refused == []
    of = good.segments
    assert (of.topics, of.counts.tolist(), of.ids.tolist()) == ([ORDERS], [3], [3, 5, 0])


def test_good_sample_behind_bad_one_counts():
    good, refused = split(encoded(ids=[3, 3, 0], msgRateIn=[-1, 2.0, 3.0]))
    assert [one.index for one in refused] == [0]
    assert good.rates[0].tolist() == [2.0, 3.0]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"v": 3}, RejectReason.UNKNOWN_VERSION),
        ({"v": "2"}, RejectReason.UNKNOWN_VERSION),
        ({"v": 1}, RejectReason.INVALID),
        ({"counts": [2, 2]}, RejectReason.INVALID),
        ({"counts": [3]}, RejectReason.INVALID),
        ({"counts": [4, -1]}, RejectReason.INVALID),
        ({"counts": [2, 1.0]}, RejectReason.INVALID),
        ({"msgRateIn": [1.0, 2.0]}, RejectReason.INVALID),
        ({"ids": None}, RejectReason.INVALID),
        ({"reporter": ""}, RejectReason.INVALID),
        ({"sampledAt": -1}, RejectReason.INVALID),
        ({"reporter": "broker-4"}, RejectReason.WRONG_KEY),
        (
            {"topics": [ORDERS], "counts": [10_001], "ids": [0] * 10_001, **{name: [0] * 10_001 for name in RATES}},
            RejectReason.INVALID,
        ),
    ],
)
def test_a_bad_envelope_is_refused_as_a_whole(changed, reason):
    assert rejected(encoded(**changed)) is reason


def test_the_most_samples_of_a_message_are_accepted():
    n = MAX_SAMPLES_PER_MESSAGE
    value = encoded(topics=[ORDERS], counts=[n], ids=list(range(n)), **{name: [0.5] * n for name in RATES})
    assert len(decode_columns(KEY, value, len(value), NOW)) == n
    assert len(split(value)[0]) == n


def test_the_hash_is_the_one_in_sparks_documentation():
    assert hash_of("ABC") == 4105715581806190027


def test_names_that_are_kept_are_bounded():
    directory = TopicDirectory(most=10)
    for number in range(50):
        names = [f"topic://a/b/{number}", f"topic://a/b/{number + 1}"]
        assert directory.hashes(names).tolist() == [hash_of(name) for name in names]
        assert len(directory) <= 10
    assert directory.hashes([ORDERS, "orders"]) is None


def test_equal_segments_decoded_once_in_bounded_cache(monkeypatch):
    directory = SegmentsDirectory(most=20)
    monkeypatch.setattr(bulk_columns, "_directory", directory)
    first, second = (decode_columns(KEY, encoded(sampledAt=at), 1, NOW) for at in (5, 6))
    assert first.segments is second.segments
    for number in range(50):
        found = decode_columns(KEY, encoded(ids=[3, 5, number]), 1, NOW)
        assert found.segments.ids.tolist() == [3, 5, number]
        assert len(directory) <= 20


def test_the_example_of_the_documentation_is_valid():
    page = (Path(__file__).resolve().parents[2] / "docs" / "design.md").read_text()
    (example,) = re.findall(r'```json\n(\{"v":2.*?)```', page, re.DOTALL)
    good, refused = split(example.encode())
    assert (len(good), refused) == (3, [])
