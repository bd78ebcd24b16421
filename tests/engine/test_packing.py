"""The stage before the shuffle: no record is lost on its way to a bucket, whatever its content."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from engine.families import bucket_packer, unpack_rows
from engine.kernel.records import RAW_SCHEMA
from schemas.messages import MAX_CLOCK_AHEAD_MS
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
