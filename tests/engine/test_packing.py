"""The stage before the shuffle: no record is lost on its way to a bucket, whatever its content."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from hashlib import sha256

from hypothesis import given
from hypothesis import strategies as st

from engine.autoscale.samples import AS_A_WHOLE, ELSEWHERE
from engine.kernel.recording import MAX_PIECE_BYTES
from schemas.codecs.columns import hash_of
from schemas.kafka.messages import MAX_CLOCK_AHEAD_MS, SegmentStats, SegmentStatsColumns, parse_message
from tests.engine import buckets
from tests.engine.records import columns, consumers, policy, record, stats, tick

NOW = 1_763_660_000_000
BUCKETS = 3


def bucket_of(key):
    """As Spark has it."""
    return hash_of((key or b"").decode(errors="replace")) % BUCKETS


def packed(records):
    """The records through the packer; by bucket what comes out."""
    return buckets.packed(records, NOW, BUCKETS, bucket_of)


topics = st.sampled_from([f"topic://acme/shop/t{number}" for number in range(5)])
rates = st.dictionaries(st.integers(0, 4), st.floats(0, 1e6), min_size=1, max_size=3)
in_columns = st.builds(
    lambda reporter, of, at: columns(of, NOW + at, reporter),
    st.sampled_from(["broker-1", "broker-2"]),
    st.dictionaries(topics, rates, max_size=4),
    st.integers(-9, 9),
)
anything = st.one_of(
    in_columns,
    st.builds(lambda topic, rate, at: stats(rate, NOW + at, topic=topic), topics, rates, st.integers(-9, 9)),
    st.builds(lambda topic: stats({0: 1.0}, NOW + MAX_CLOCK_AHEAD_MS + 1, topic=topic), topics),
    st.builds(lambda topic, number: consumers(number, topic=topic), topics, st.integers(0, 9)),
    st.just(tick(1)),
    st.just(policy(None)),
    st.builds(
        lambda value, key: record("segment-stats", "x", value)._replace(key=key),
        st.none() | st.binary(max_size=9),
        st.none() | st.binary(max_size=3),
    ),
)


@given(st.lists(anything, min_size=1, max_size=25))
def test_record_reaches_its_bucket_and_global_all(records):
    records = [one._replace(offset=offset, partition=offset % 2) for offset, one in enumerate(records)]
    found = packed(records)
    seen, home, dealt = [], [], []
    for bucket, (raw, of_kinds, letters, _) in found.items():
        samples = of_kinds.get("samples")
        for one in raw:
            original = records[one.offset]
            assert one[:7] == original[:7]
            assert one.source != "segment-stats"
            assert one.home == (bucket == bucket_of(original.key))
            seen.append((one.offset, bucket))
            home += [one.offset] * one.home
        if samples is not None:
            order = list(zip(samples.partition.tolist(), samples.offset.tolist(), strict=True))
            assert order == sorted(order)
            assert all(bucket == bucket_of(topic.encode()) for topic, _, _, _ in rows_of(samples))
            home += samples.offset[samples.counted != ELSEWHERE].tolist()
            dealt += [(samples.offset[message], *row) for *row, message in rows_of(samples)]
        home += [letter["kafka_offset"] for letter in letters]
    assert sorted(home) == list(range(len(records)))
    assert sorted(dealt) == sorted(row for one in records for row in samples_of(one))
    for offset, one in enumerate(records):
        if one.source == "control-events" and one.key == b"*":
            assert {bucket for at, bucket in seen if at == offset} == set(range(BUCKETS))


def rows_of(samples):
    """Topic, segment, rate and message of each sample."""
    names = samples.topics.take(samples.topic).to_pylist()
    return zip(names, samples.segment.tolist(), samples.rates[:, 0].tolist(), samples.message.tolist(), strict=True)


def samples_of(one):
    """What is in a record, by the models: offset, topic, segment, rate."""
    message = parse_message(one.source, one.key, one.value, one.size)
    if isinstance(message, SegmentStats) and message.sampled_at <= NOW + MAX_CLOCK_AHEAD_MS:
        return [(one.offset, message.topic, sample.id, sample.msg_rate_in) for sample in message.segments]
    if isinstance(message, SegmentStatsColumns):
        names = [name for name, count in zip(message.topics, message.counts, strict=True) for _ in range(count)]
        return [(one.offset, *row) for row in zip(names, message.ids, message.msg_rate_in, strict=True)]
    return []


def test_plain_samples_travel_as_columns():
    ((raw, of_kinds, *_),) = packed([stats({3: 1.5, 7: 2.5}, NOW, topic="topic://acme/shop/t1")]).values()
    assert raw == []
    assert list(rows_of(of_kinds["samples"])) == [
        ("topic://acme/shop/t1", 3, 1.5, 0),
        ("topic://acme/shop/t1", 7, 2.5, 0),
    ]


def test_large_segment_ids_keep_exact_value():
    """A float would not distinguish these ids."""
    ids = [0, 2**53, 2**53 + 1, 2**63 - 1]
    for some in (ids, ids[:1]):
        ((_, of_kinds, *_),) = packed([stats(dict.fromkeys(some, 1.0), NOW)]).values()
        assert [segment for _, segment, _, _ in rows_of(of_kinds["samples"])] == some


def test_column_message_counted_at_its_reporter():
    """It counts there even without any topic of that bucket."""
    names = [f"topic://acme/shop/t{number}" for number in range(20)]
    home = bucket_of(b"broker-1")
    away = [name for name in names if bucket_of(name.encode()) != home]
    found = packed([columns({name: {0: 1.0} for name in away}, NOW, "broker-1")])
    counted = {bucket: one.samples["samples"].counted.tolist() for bucket, one in found.items()}
    assert counted == {bucket: [AS_A_WHOLE if bucket == home else ELSEWHERE] for bucket in range(BUCKETS)}
    assert len(found[home].samples["samples"]) == 0


def test_bad_sample_is_dead_letter_and_others_count():
    body = json.loads(columns({"topic://acme/shop/t1": {3: 1.0, 4: 2.0, 5: 3.0}}, NOW).value)
    body["ids"][1] = -4
    one = record("segment-stats", "broker-1", body)
    found = packed([one])
    dealt = [row[:3] for part in found.values() if part.samples for row in rows_of(part.samples["samples"])]
    assert dealt == [("topic://acme/shop/t1", 3, 1.0), ("topic://acme/shop/t1", 5, 3.0)]
    (letter,) = found[bucket_of(b"broker-1")].letters_of_parts
    assert (letter["sample"], letter["kafka_offset"], letter["raw_size"]) == (1, one.offset, len(one.value))
    assert json.loads(urlsafe_b64decode(letter["raw"]))["id"] == -4
    assert not any(part.letters for part in found.values())


def test_ten_thousand_bad_samples_stay_compact():
    """Their dead letters are not much larger than their message."""
    name = "topic://acme/shop/" + "t" * 900
    body = json.loads(columns({name: {}}, NOW).value)
    body |= {"counts": [10_000], **{key: [-1] * 10_000 for key, value in body.items() if isinstance(value, list)}}
    one = record("segment-stats", "broker-1", body | {"topics": [name], "counts": [10_000]})
    (found,) = (part for part in packed([one]).values() if part.letters_of_parts)
    assert len(found.letters_of_parts) == 10_000
    assert len(json.dumps(found.letters_of_parts)) < 30 * len(one.value)


def test_both_message_forms_keep_offset_order():
    name = "topic://acme/shop/t1"
    records = [one for at in range(5) for one in (stats({0: at + 0.5}, NOW, name), columns({name: {0: at + 0.7}}, NOW))]
    found = packed(records)[bucket_of(name.encode())].samples["samples"]
    assert found.rates[:, 0].tolist() == [at + half for at in range(5) for half in (0.5, 0.7)]


def test_garbage_reduced_to_size_and_digest():
    noise = [record("segment-stats", "k", b"\xff" + bytes([number]) * 65_535) for number in range(9)]
    noise += [record(source, "k", b" " * 1_048_576) for source in ("control-events", "consumer-events")]
    found = packed([*noise, stats({0: 1.0}, NOW, topic="topic://acme/shop/t1")])
    letters = {letter["kafka_offset"]: letter for part in found.values() for letter in part.letters}
    assert [len(part.records) for part in found.values()] == [0] * len(found)
    assert len(letters) == len(noise)
    for one in noise:
        letter = letters[one.offset]
        assert urlsafe_b64decode(letter["raw"]) == one.value[:MAX_PIECE_BYTES]
        assert (letter["raw_size"], letter["raw_sha256"]) == (len(one.value), sha256(one.value).hexdigest())


def test_large_policy_whole_only_in_its_bucket():
    """The other buckets get the part they need."""
    body = {**json.loads(policy({"maxSegments": 7, "padding": "x" * 90_000}, "acme/shop").value), "more": "y" * 90_000}
    large = record("control-events", "*", body)
    found = packed([large, tick(1)])
    assert set(found) == set(range(BUCKETS))
    for bucket, (raw, *_) in found.items():
        (one,) = (one for one in raw if one.offset == large.offset)
        assert one.value == large.value if bucket == bucket_of(b"*") else len(one.value) < 200
        event = parse_message("control-events", one.key, one.value, one.size)
        assert (event.name, event.policy.max_segments, event.at) == ("acme/shop", 7, 1)


def test_sample_held_against_kafka_clock_if_ahead():
    """The job's clock is behind."""
    ahead = stats({0: 1.0}, NOW + 2 * MAX_CLOCK_AHEAD_MS)._replace(timestamp=NOW + 2 * MAX_CLOCK_AHEAD_MS)
    (found,) = packed([ahead]).values()
    assert (len(found.samples["samples"]), found.letters) == (1, [])
