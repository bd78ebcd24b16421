"""The bulk decoder accepts what the one validator accepts, with the same values, and nothing else."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from schemas.codecs import bulk
from schemas.codecs.bulk import decode_stats
from schemas.kafka.messages import SegmentStats, parse_message

TOPIC = "topic://acme/shop/orders"
SEGMENT = {"id": 0, "msgRateIn": 1.0, "bytesRateIn": 2.0, "msgRateOut": 3.0, "bytesRateOut": 4.0}
STATS = {"v": 1, "topic": TOPIC, "reporter": "broker-1", "sampledAt": 5, "segments": [SEGMENT]}


def values_of(stats):
    rates = [(s.id, s.msg_rate_in, s.bytes_rate_in, s.msg_rate_out, s.bytes_rate_out) for s in stats.segments]
    return stats.v, stats.topic, stats.reporter, stats.sampled_at, rates


odd_numbers = st.one_of(
    st.integers(-2, 2**63), st.floats(), st.sampled_from([1.0, 0.0, -0.0, True, None, "1", 10**400, 1e308, 2**63 - 1])
)
segments = st.fixed_dictionaries(
    {name: st.one_of(st.integers(0, 9), odd_numbers) for name in SEGMENT}, optional={"extra": st.just([{}])}
)
plain_segments = st.fixed_dictionaries(
    {"id": st.integers(0, 5), **dict.fromkeys(list(SEGMENT)[1:], st.floats(0, 1e300) | st.integers(0, 2**70))}
)
messages = st.fixed_dictionaries(
    {
        "v": st.sampled_from([1, 1, 1, 1, 2, 1.0, True, "1"]),
        "topic": st.sampled_from([TOPIC, TOPIC, TOPIC, "topic://a/b/ü", "topic://a/b", "x", 5]),
        "reporter": st.text(max_size=3) | st.just("r" * 1025),
        "sampledAt": st.one_of(st.integers(0, 10**14), odd_numbers),
        "segments": st.lists(plain_segments, max_size=4) | st.lists(segments, max_size=3) | st.none(),
    },
    optional={"more": st.recursive(st.none(), st.lists)},
)


@given(messages, st.booleans())
@example(STATS, True)
@example({**STATS, "segments": [SEGMENT, SEGMENT]}, True)
@example({**STATS, "segments": [{**SEGMENT, "id": 7}, SEGMENT]}, True)
def test_bulk_decoder_matches_validator(message, own_key):
    value = json.dumps(message).encode()
    key = str(message["topic"]).encode() if own_key else TOPIC.encode()
    check(key, value)


@given(st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
def test_it_agrees_with_the_validator_on_garbage(value):
    check(TOPIC.encode(), value)


ODD_BYTES = [
    b"\xff",
    b"\xc0\xaf",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
    b"\x00",
    b"\x1f",
    b"\x0b",
    b" ",
    b"\\ud800",
    b"\\udc00",
    b"\\ud83d\\ude00",
    b"\\u0000",
    b"\\q",
    b"NaN",
    b"Infinity",
    b"-0",
    b"-0.0",
    b"1e400",
    b"-1e400",
    b"1e-400",
    b"1" * 5000,
    b"0." + b"3" * 5000,
    b"9" * 309,
    b"9007199254740993",
    b"9223372036854775808",
    b"01",
    b"1.",
    b".5",
    b"-",
    b"1e",
    b"true",
    b"null",
    b'"1"',
    b'"v":1,',
    b'"v":2,',
    b'"x":1,',
    b'"\xff":1,',
    b'"\\u0076":1,',
    b'"id":0,',
    b'"x":"\xff",',
    b'"x":' + b"1" * 5000 + b",",
    b'"segments":[],',
    b"[" * 300,
    b"{",
    b"}",
    b"]",
    b",",
    b":",
    b'"',
]
"""What has a meaning in JSON, or nearly has one."""
PLACES = [place for place in range(len(json.dumps(STATS)) + 1) if json.dumps(STATS)[place - 1] in '{}[]:,"']


def put(value: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    """The value with bytes put in, each at its place and over so many of those that were there."""
    for place, over, odd in edits:
        value = value[:place] + odd + value[place + over :]
    return value


odd_bytes = st.sampled_from(ODD_BYTES) | st.binary(max_size=3)
edits = st.lists(
    st.tuples(st.sampled_from(PLACES) | st.integers(0, PLACES[-1]), st.sampled_from([0, 0, 1, 3]), odd_bytes),
    max_size=3,
)


@given(edits)
@example([(1, 0, b'"x":"\xff",')])
@example([(1, 0, b'"x":' + b"1" * 5000 + b",")])
@example([(1, 0, b'"\xff":1,')])
@example([(1, 0, b'"x":' + b"[" * 300 + b"]" * 300 + b",")])
def test_acceptance_independent_of_earlier_messages(edits):
    check(TOPIC.encode(), put(json.dumps(STATS).encode(), edits))


def check(key, value):
    """One answer of a decoder that has seen nothing, of one that knows the key, and of the validator."""
    expected, found = parse_message("segment-stats", key, value, len(value)), []
    for known in ({}, {key: TOPIC}):
        bulk._known.clear()
        bulk._known.update(known)
        found.append(decode_stats(key, value, len(value)))
    bulk._known.clear()
    fresh, warm = found
    assert fresh == warm
    if fresh is not None:
        assert isinstance(expected, SegmentStats), expected
        assert values_of(fresh) == values_of(expected)


@pytest.mark.parametrize("depth", [150, 250, 3000])
@pytest.mark.parametrize("brackets", ["[]", '{"a":}'])
def test_deep_nesting_left_to_validator(depth, brackets):
    opening, closing = brackets[:-1], brackets[-1]
    text = json.dumps(STATS)[:-1] + ',"x":' + opening * depth + "1" + closing * depth + "}"
    decode_stats(TOPIC.encode(), json.dumps(STATS).encode(), 1)
    assert decode_stats(TOPIC.encode(), text.encode(), len(text)) is None


def test_plain_samples_decoded_others_deferred():
    """Those of a wrong key or size are left to the model."""
    value = json.dumps(STATS).encode()
    assert values_of(decode_stats(TOPIC.encode(), value, len(value)))[4] == [(0, 1.0, 2.0, 3.0, 4.0)]
    assert decode_stats(b"topic://acme/shop/other", value, len(value)) is None
    assert decode_stats(None, value, len(value)) is None
    assert decode_stats(TOPIC.encode(), None, -1) is None
    assert decode_stats(TOPIC.encode(), value, 2_000_000) is None


def test_the_names_that_are_kept_are_bounded(monkeypatch):
    monkeypatch.setattr(bulk, "_MAX_NAMES", 10)
    for number in range(50):
        name = f"topic://a/b/{number}"
        assert decode_stats(name.encode(), json.dumps({**STATS, "topic": name}).encode(), 1) is not None
        assert len(bulk._known) <= max(10, 1)
