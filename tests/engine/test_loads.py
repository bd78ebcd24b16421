"""The significant-change filter over packed columns: equal to taking the samples one by one."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decisions.autoscale.clocks import NEVER
from decisions.autoscale.policy import PROFILES
from decisions.autoscale.significance import accept_cause
from engine.autoscale import loads_codec
from engine.autoscale.loads import STALE, LoadTable, Origins
from engine.autoscale.loads_codec import pack_load_changes, pack_loads, unpack_loads
from engine.autoscale.storing import store_samples
from engine.kernel.arrays import pack_arrays, unpack_arrays
from engine.kernel.packed import StateError, StoredPart

POLICY = PROFILES["default"]
SPLIT = [10_000.0, 50e6, 50_000.0, 250e6]
MERGE = [1_000.0, 5e6, 5_000.0, 25e6]
NOW = 1_000_000


def absorb(table, rows, now=NOW, crossing=True):
    """Lays (topic, segment, rates, sampled at) over the table."""
    count = len(rows)
    places = np.array([table.rows_of(topic, [segment])[0] for topic, segment, _, _ in rows], np.int64)
    thresholds = np.tile(SPLIT + MERGE + MERGE if crossing else [np.nan] * 12, (1 if count % 2 else count, 1))
    return store_samples(
        table,
        places,
        np.array([rates for _, _, rates, _ in rows], np.float64).reshape(-1, 4),
        origins_of([at for _, _, _, at in rows], now=now),
        np.zeros(count, np.int64),
        now,
        0.25,
        thresholds,
        np.tile(MERGE, (count, 1)),
    )


def origins_of(sampled_at, kafka_at=(), reporters=(), now=NOW):
    """Of samples whose time in Kafka is not known, if none is given, and which are of one reporter."""
    count = len(sampled_at)
    columns = (sampled_at, kafka_at or [NEVER] * count, reporters or [7] * count)
    return Origins.judged(*(np.array(column, np.int64) for column in columns), now)


def samples_of(*rows):
    return rows


def flat(rate):
    return (rate, 0.0, 0.0, 0.0)


def test_slow_drift_measured_from_last_accepted():
    """Each step stays inside the band."""
    table = LoadTable()
    codes = [
        int(absorb(table, samples_of(("t", 1, flat(rate), at)), crossing=False)[0])
        for at, rate in enumerate([2000.0, 2400.0, 2500.0, 2501.0, 3000.0])
    ]
    assert [code > 0 for code in codes] == [True, False, False, True, False]


def test_threshold_crossing_in_band_accepted():
    table = LoadTable()
    absorb(table, samples_of(("t", 1, flat(9_000.0), 1)))
    assert absorb(table, samples_of(("t", 1, flat(10_500.0), 2)))[0] > 0
    assert absorb(table, samples_of(("t", 1, flat(11_000.0), 3)))[0] == 0


def test_repeated_and_older_samples_are_stale():
    table = LoadTable()
    absorb(table, samples_of(("t", 1, flat(100.0), 10)))
    before = table.loads_of("t")
    codes = absorb(table, samples_of(("t", 1, flat(900.0), 10), ("t", 1, flat(900.0), 9)))
    assert codes.tolist() == [STALE, STALE]
    assert table.loads_of("t") == before


def test_cold_since_load_fell_below_thresholds():
    table = LoadTable()
    for at, rate in ((1, 5_000.0), (2, 500.0), (3, 100.0), (4, 10.0)):
        absorb(table, samples_of(("t", 1, flat(rate), at)))
    load = table.loads_of("t")[1]
    assert (load.cold_since, load.modified_at) == (2, 4)
    absorb(table, samples_of(("t", 1, flat(1_000.0), 5)))
    assert table.loads_of("t")[1].cold_since is None


def test_a_record_is_never_dated_after_the_batch():
    table = LoadTable()
    absorb(table, samples_of(("t", 1, flat(1.0), NOW + 200)), now=NOW)
    assert table.loads_of("t")[1].modified_at == NOW


def test_forgotten_segments_are_gone_after_packing():
    table = LoadTable()
    absorb(table, samples_of(*[("t", segment, flat(1.0), 1) for segment in range(200)], ("u", 7, flat(2.0), 1)))
    table.keep_segments("t", [5])
    again = unpack_loads(StoredPart(pack_loads(table)))
    for one in (table, again):
        assert set(one.loads_of("t")) == {5}
        assert set(one.loads_of("u")) == {7}
    assert pack_loads(again) == pack_loads(table)


def test_new_merge_thresholds_end_or_start_cold():
    """Lowered ones end coldness; raised ones start it at the record."""
    table = LoadTable()
    absorb(table, samples_of(("t", 1, flat(500.0), 1), ("t", 2, flat(2_000.0), 3)))
    table.judge_coldness_again("t", np.array([400.0, *MERGE[1:]]))
    assert table.loads_of("t")[1].cold_since is None
    table.judge_coldness_again("t", np.array([4_000.0, *MERGE[1:]]))
    assert [table.loads_of("t")[i].cold_since for i in (1, 2)] == [1, 3]


def packed_table():
    table = LoadTable()
    absorb(table, [("t", 1, flat(100.0), 10), ("u", 3, flat(9_000.0), 10)])
    base = pack_loads(table)
    absorb(table, [("t", 1, flat(900.0), 11), ("t", 2, flat(1.0), 11)])
    return base, pack_load_changes(table)


@pytest.mark.parametrize(
    "packed",
    [
        b"\x07",
        b"\x01\x00\x00\x00\x02[]x",
        b"\x01\x00\x00\x00",
        packed_table()[0][:-1],
        packed_table()[0] + b"x",
        b"\x09" + packed_table()[0][1:],
    ],
)
def test_damaged_or_newer_bytes_are_refused(packed):
    with pytest.raises(StateError):
        unpack_loads(StoredPart(packed))


@pytest.mark.parametrize("entry", [b"", b"\x07", packed_table()[1][:-1], packed_table()[1] + b"x"])
def test_a_damaged_entry_of_the_log_is_refused(entry):
    with pytest.raises(StateError):
        unpack_loads(StoredPart(packed_table()[0], [entry]))


def _of_version_3(plain):
    """The arrays as that release stored them: without the pauses after which loads came back, not compressed."""
    counts = len(json.loads(plain[5 : 5 + int.from_bytes(plain[1:5], "big")])["lengths"])
    types = next(one for one in (loads_codec._BASE, loads_codec._LOG) if len(one) == counts)
    fields, arrays = unpack_arrays(plain, types)
    return pack_arrays(3, fields, {name: arrays[name] for name in types if name != "returned_after"})


def test_uncompressed_older_bytes_are_read(monkeypatch):
    base, entry = packed_table()
    monkeypatch.setattr(loads_codec, "_compress_entry", lambda plain: plain)
    plain_base, plain_entry = map(_of_version_3, packed_table())
    assert (plain_base[0], plain_entry[0]) == (3, 3)
    packed = [pack_loads(unpack_loads(StoredPart(*one))) for one in ((base, [entry]), (plain_base, [plain_entry]))]
    assert packed[0] == packed[1]


def test_a_log_without_its_base_is_refused():
    with pytest.raises(StateError):
        unpack_loads(StoredPart(b"", [packed_table()[1]]))


rates = st.one_of(
    st.sampled_from([0.0, 1.0, 1_000.0, 1_250.0, 9_999.0, 10_000.0, 10_001.0]), st.floats(0, 2e4, allow_nan=False)
)
rows = st.lists(
    st.tuples(
        st.sampled_from(["t", "u"]), st.integers(0, 3), st.tuples(rates, rates, rates, rates), st.integers(0, 40)
    ),
    max_size=40,
)


forget = st.tuples(st.sampled_from(["t", "u"]), st.sets(st.integers(0, 3)))


@given(
    rows,
    st.lists(st.tuples(st.integers(0, 40), st.sampled_from(["base", "log"])), max_size=6),
    st.booleans(),
    st.none() | forget,
)
def test_batches_in_columns_equal_samples_one_by_one(sequence, cuts, crossing, forgotten):
    """However the samples are cut into batches, and with a round trip through base and log between them."""
    table, reference, expected = LoadTable(), {}, []
    bounds = sorted({0, len(sequence), *(cut for cut, _ in cuts if cut < len(sequence))})
    forget_at = bounds[len(bounds) // 2] if forgotten else None
    for place, (topic, segment, sample, at) in enumerate(sequence):
        if place == forget_at:
            forget_segments(reference, forgotten)
        last = reference.get((topic, segment))
        if last is not None and at <= last[1]:
            expected.append(STALE)
            continue
        cause = accept_cause(last and last[0], sample, 0.25, POLICY if crossing else None)
        expected.append({None: 0, "first": 1, "changed": 2, "crossed": 3}[cause])
        reference[topic, segment] = (sample if cause else last[0], at)
    codes, kinds = [], dict(cuts)
    base, log = b"", []
    for start, end in pairwise(bounds):
        if start == forget_at:
            table.keep_segments(*forgotten)
        codes += absorb(table, sequence[start:end], crossing=crossing).tolist()
        if kinds.get(start) == "base":
            base, log = pack_loads(table), []
        else:
            log.append(pack_load_changes(table))
        assert not table.is_changed
        table = unpack_loads(StoredPart(base, log))
    assert codes == expected
    assert {(name, i) for name in table.index.topics() for i in table.index.segments_of(name)} == set(reference)
    for (topic, segment), (sample, at) in reference.items():
        load = table.loads_of(topic)[segment]
        assert (load.msg_rate_in, load.bytes_rate_in, load.msg_rate_out, load.bytes_rate_out) == sample
        assert load.seen_at == at


def forget_segments(reference, forgotten):
    name, kept = forgotten
    for topic, segment in list(reference):
        if topic == name and segment not in kept:
            del reference[topic, segment]
