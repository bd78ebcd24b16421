"""The stage before the shuffle: no record is lost on its way to a bucket, whatever its content."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from hashlib import sha256

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from engine.families import bucket_packer, unpack_rows
from engine.kernel.recording import MAX_PIECE_BYTES
from engine.kernel.records import RAW_SCHEMA
from schemas.messages import MAX_CLOCK_AHEAD_MS, parse_message
from tests.engine.records import consumers, policy, record, stats, tick

NOW = 1_763_660_000_000
BUCKETS = 3
INPUT = pa.schema(
    [*(field for field in RAW_SCHEMA if field.name != "home"), ("now", pa.int64()), ("bucket", pa.int32())]
)


def bucket_of(key):
    return sum(key or b"") % BUCKETS


def packed(records):
    """The records through the packer; by bucket what comes out."""
    columns = list(zip(*[(*one[:7], NOW, bucket_of(one.key)) for one in records], strict=True))
    arrays = [pa.array(column, field.type) for column, field in zip(columns, INPUT, strict=True)]
    found = {}
    for batch in bucket_packer(BUCKETS)(iter([pa.RecordBatch.from_arrays(arrays, schema=INPUT)])):
        for row in batch.to_pylist():
            assert row["now"] == NOW
            kinds, bodies = found.setdefault(row["bucket"], ([], []))
            kinds.append(row["kind"])
            bodies.append(row["body"])
    return {bucket: unpack_rows(*parts) for bucket, parts in found.items()}


topics = st.sampled_from([f"topic://acme/shop/t{number}" for number in range(5)])
rates = st.dictionaries(st.integers(0, 4), st.floats(0, 1e6), min_size=1, max_size=3)
anything = st.one_of(
    st.builds(lambda topic, rate, at: stats(rate, NOW + at, topic=topic), topics, rates, st.integers(-9, 9)),
    st.builds(lambda topic: stats({0: 1.0}, NOW + MAX_CLOCK_AHEAD_MS + 1, topic=topic), topics),
    st.builds(lambda topic, number: consumers(number, topic=topic), topics, st.integers(0, 9)),
    st.just(tick(1)), st.just(policy(None)),
    st.builds(lambda value, key: record("segment-stats", "x", value)._replace(key=key),
              st.none() | st.binary(max_size=9), st.none() | st.binary(max_size=3)),
)  # fmt: skip


@given(st.lists(anything, min_size=1, max_size=25))
def test_each_record_reaches_the_bucket_of_its_key_once_and_what_concerns_every_topic_reaches_all(records):
    records = [one._replace(offset=offset, partition=offset % 2) for offset, one in enumerate(records)]
    found = packed(records)
    seen, home = [], []
    for bucket, (raw, in_columns, letters) in found.items():
        samples = in_columns.get("samples")
        for one in raw:
            original = records[one.offset]
            assert one[:7] == original[:7]
            assert one.source != "segment-stats"
            assert one.home == (bucket == bucket_of(original.key))
            seen.append((one.offset, bucket))
            home += [one.offset] * one.home
        if samples is not None:
            order = list(zip(samples.partitions.tolist(), samples.offsets.tolist(), strict=True))
            assert order == sorted(order)
            assert all(bucket == bucket_of(topic.encode()) for topic in samples.topics)
            home += samples.offsets.tolist()
        home += [letter["kafka_offset"] for letter in letters]
    assert sorted(home) == list(range(len(records)))
    for offset, one in enumerate(records):
        if one.source == "control-events" and one.key == b"*":
            assert {bucket for at, bucket in seen if at == offset} == set(range(BUCKETS))


def test_plain_samples_travel_as_columns_with_their_values():
    ((raw, in_columns, _),) = packed([stats({3: 1.5, 7: 2.5}, NOW, topic="topic://acme/shop/t1")]).values()
    samples = in_columns["samples"]
    assert raw == []
    assert samples.topics == ["topic://acme/shop/t1"]
    assert samples.segments.tolist() == [3, 7]
    assert samples.rates[:, 0].tolist() == [1.5, 2.5]
    assert samples.counts.tolist() == [2]


def test_garbage_is_small_before_it_is_shuffled_and_known_by_its_size_and_digest():
    noise = [record("segment-stats", "k", b"\xff" + bytes([number]) * 65_535) for number in range(9)]
    noise += [record(source, "k", b" " * 1_048_576) for source in ("control-events", "consumer-events")]
    found = packed([*noise, stats({0: 1.0}, NOW, topic="topic://acme/shop/t1")])
    letters = {letter["kafka_offset"]: letter for _, _, letters in found.values() for letter in letters}
    assert [len(raw) for raw, _, _ in found.values()] == [0] * len(found)
    assert len(letters) == len(noise)
    for one in noise:
        letter = letters[one.offset]
        assert urlsafe_b64decode(letter["raw"]) == one.value[:MAX_PIECE_BYTES]
        assert (letter["raw_size"], letter["raw_sha256"]) == (len(one.value), sha256(one.value).hexdigest())


def test_of_a_large_policy_every_bucket_gets_what_it_knows_and_its_own_the_whole():
    body = {**json.loads(policy({"maxSegments": 7, "padding": "x" * 90_000}, "acme/shop").value), "more": "y" * 90_000}
    large = record("control-events", "*", body)
    found = packed([large, tick(1)])
    assert set(found) == set(range(BUCKETS))
    for bucket, (raw, _, _) in found.items():
        (one,) = (one for one in raw if one.offset == large.offset)
        assert one.value == large.value if bucket == bucket_of(b"*") else len(one.value) < 200
        event = parse_message("control-events", one.key, one.value, one.size)
        assert (event.name, event.policy.max_segments, event.at) == ("acme/shop", 7, 1)


def test_a_plain_sample_is_held_against_kafkas_clock_where_the_jobs_is_behind():
    ahead = stats({0: 1.0}, NOW + 2 * MAX_CLOCK_AHEAD_MS)._replace(timestamp=NOW + 2 * MAX_CLOCK_AHEAD_MS)
    (found,) = packed([ahead]).values()
    assert (len(found.samples["samples"]), found.letters) == (1, [])
