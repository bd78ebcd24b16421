"""Many messages at a time become the values that each has by itself, and whatever is not plain is left out."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from schemas.codecs import bulk
from schemas.codecs.bulk import BulkStats, decode_stats
from schemas.codecs.bulk_arrays import decode_many
from schemas.kafka.messages import MAX_VALUE_BYTES
from tests.schemas.test_bulk import ODD_BYTES, SEGMENT, STATS, TOPIC, messages, put, values_of

LATEST = 10**15


def compact(message) -> bytes:
    return json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


PLAIN = compact({**STATS, "segments": [SEGMENT, {**SEGMENT, "id": 12, "msgRateOut": 0.5}]})
NEIGHBOUR = compact({**STATS, "reporter": "broker-2"})
MARKS = [place for place in range(1, len(PLAIN) + 1) if PLAIN[place - 1] in b'{}[]:,".0123']

odd_bytes = st.sampled_from([*ODD_BYTES, b".e1", b"e+2", b"E3", b"0x1", b"00", b"+1", b"1_0", b"inf", b"nan"])
edits = st.lists(
    st.tuples(st.sampled_from(MARKS) | st.integers(0, len(PLAIN)), st.sampled_from([0, 0, 1, 2, 3]), odd_bytes),
    max_size=2,
)


def taken(key: bytes, values: list[bytes], before: int = 1, latest: int = LATEST):
    """By row, what is taken of messages of one known key; `before`: rows that the array is a slice behind."""
    array = pa.array([b"[:"] * before + values, pa.binary()).slice(before)
    n = len(values)
    found = decode_many([key] * n, array, np.fromiter(map(len, values), np.int64, n), np.full(n, latest))
    if found is None:
        return {}
    ends = np.cumsum(found.counts)
    return {
        row: (
            found.reporters[place],
            found.sampled_at[place],
            found.ids[end - count : end].tolist(),
            found.rates[:, end - count : end].T.tolist(),
        )
        for place, (row, end, count) in enumerate(zip(found.rows.tolist(), ends, found.counts, strict=True))
    }


def expected(stats: BulkStats):
    _, _, reporter, at, samples = values_of(stats)
    return reporter, at, [one[0] for one in samples], [list(one[1:]) for one in samples]


@pytest.fixture(autouse=True)
def known_topic():
    """The topic was seen before."""
    assert decode_stats(TOPIC.encode(), PLAIN, len(PLAIN)) is not None
    assert taken(TOPIC.encode(), [PLAIN])


def check(key: bytes, value: bytes) -> None:
    """What is taken has the values that the decoder of single messages finds, whoever is beside it."""
    one = decode_stats(key, value, len(value))
    for values in ([value], [value, NEIGHBOUR], [NEIGHBOUR, value], [value, value]):
        for row, found in taken(key, values).items():
            stats = decode_stats(key, values[row], len(values[row]))
            assert stats is not None, values[row]
            assert found == expected(stats)
    if one is None:
        assert not taken(key, [value])


@given(edits)
@example([(PLAIN.index(b"1.0") + 2, 1, b"e1")])
@example([(len(PLAIN), 0, b".")])
@example([(PLAIN.index(b'"id":0') + 5, 1, b"0x1")])
def test_matches_single_decoder_on_damaged_bytes(edits):
    check(TOPIC.encode(), put(PLAIN, edits))


@given(messages)
def test_matches_single_decoder_on_odd_messages(message):
    check(TOPIC.encode(), compact(message))


rates = st.floats(0, allow_infinity=False) | st.integers(0, 2**70)
plain = st.builds(
    lambda ids, numbers, reporter: compact(
        {
            **STATS,
            "reporter": reporter,
            "segments": [dict(zip(SEGMENT, (i, *numbers[n : n + 4]), strict=True)) for n, i in enumerate(sorted(ids))],
        }
    ),
    st.sets(st.integers(0, 2**63 - 1), min_size=1, max_size=4),
    st.lists(rates, min_size=8, max_size=8),
    st.sampled_from(["broker-1", "b.example:80", "[ü]", "a,b"]),
)


@given(st.lists(plain, min_size=1, max_size=4))
def test_model_output_accepted_with_equal_values(values):
    found = taken(TOPIC.encode(), values)
    for row, value in enumerate(values):
        if b"[\xc3" not in value:
            assert found[row] == expected(decode_stats(TOPIC.encode(), value, len(value)))


@pytest.mark.parametrize(
    "value",
    [
        PLAIN.replace(b'"id":12', b'"id":0'),
        PLAIN.replace(b"1.0", b"1e999"),
        PLAIN.replace(b"3.0", b"-0.0"),
        PLAIN + b" ",
        PLAIN.replace(b'"v":1', b'"v":2'),
        b" " * (MAX_VALUE_BYTES + 1 - len(PLAIN)) + PLAIN,
    ],
)
def test_complex_message_spares_the_others(value):
    assert set(taken(TOPIC.encode(), [PLAIN, value, NEIGHBOUR])) == {0, 2}


def test_unknown_future_and_truncated_messages_skipped():
    other = compact({**STATS, "topic": TOPIC + "-never-seen"})
    assert not taken((TOPIC + "-never-seen").encode(), [other])
    assert not taken(TOPIC.encode(), [PLAIN], latest=STATS["sampledAt"] - 1)
    assert decode_many([TOPIC.encode()], pa.array([PLAIN]), np.array([len(PLAIN) + 1]), np.array([LATEST])) is None
    assert decode_many([None], pa.array([None], pa.binary()), np.array([-1]), np.array([LATEST])) is None


def test_known_topic_with_escaped_name_skipped():
    name = 'topic://acme/shop/a"b'
    value = compact({**STATS, "topic": name})
    assert decode_stats(name.encode(), value, len(value)) is not None
    raw = value.replace(b'\\"', b'"')
    assert decode_stats(name.encode(), raw, len(raw)) is None
    assert not taken(name.encode(), [raw, value])
    bulk._known.pop(name.encode()), bulk._odd.discard(name.encode())
