"""Reporters whose clocks are wrong blind nobody: each is judged by itself, and by when Kafka took its samples."""

from __future__ import annotations

import json

import numpy as np
import pytest

from engine.autoscale.loads import LoadTable
from engine.autoscale.loads_codec import pack_load_changes, pack_loads, unpack_loads
from engine.kernel.packed import StoredPart
from tests.engine.buckets import loads_of
from tests.engine.records import TOPIC, stats, tick
from tests.engine.test_engine import MINUTE, NOW, SECOND, started
from tests.engine.test_loads import MERGE, flat, origins_of

HOT = 90_000.0


def sample(rate, sampled_at, kafka_at, reporter="right", segment=0):
    """A sample that Kafka took at an instant of its own clock; None: it does not say."""
    return stats({segment: rate}, sampled_at, reporter=reporter)._replace(timestamp=kafka_at or -1)


def load_of(bucket, segment=0):
    return loads_of(bucket.packed).loads_of(TOPIC)[segment]


@pytest.mark.parametrize("says_when", [True, False], ids=["kafka says when", "kafka does not say when"])
def test_corrected_reporter_accepted_at_once(says_when):
    """It was minutes ahead once; its next sample leads to a decision."""
    bucket = started()
    ahead = NOW + 4 * MINUTE
    bucket.batch(NOW + 1, sample(10.0, ahead, (NOW + 1) * says_when, "wrong"), sample(1.0, NOW, NOW, segment=1))
    bucket.restart()
    output = bucket.batch(NOW + SECOND, sample(HOT, NOW + SECOND, (NOW + SECOND) * says_when), tick(1))
    assert (output.counts.samples_accepted, output.counts.samples_stale) == (1, 0)
    assert [row["reason"] for row in output.decisions] == ["msgRateIn"]


def test_set_back_reporter_heard_within_seconds():
    bucket = started()
    bucket.batch(NOW, sample(10.0, NOW + 4 * MINUTE, NOW))
    heard = [bucket.batch(at, sample(HOT, at, at)).counts.samples_accepted for at in (NOW + SECOND, NOW + 10 * SECOND)]
    assert heard == [0, 1]


def test_repeated_sample_stale_from_fast_reporter():
    bucket = started()
    one = sample(10.0, NOW + 3 * SECOND, NOW)
    counts = bucket.batch(NOW, one, one, sample(HOT, NOW + 2 * SECOND, NOW)).counts
    assert (counts.samples_accepted, counts.samples_stale) == (1, 2)


def test_segment_survives_move_to_slow_reporter():
    bucket = started()
    bucket.batch(NOW, sample(10.0, NOW, NOW, "right"))
    late = [NOW + 10 * SECOND, NOW + 70 * SECOND]
    heard = [bucket.batch(at, sample(HOT, at - 10 * MINUTE, at, "behind")).counts.samples_accepted for at in late]
    assert heard == [0, 1]
    load = load_of(bucket)
    assert late[1] - load.modified_at == late[1] - load.seen_at == 5 * SECOND


def test_thawed_reporter_does_not_hide_successor():
    bucket = started()
    bucket.batch(NOW, sample(10.0, NOW, NOW, "frozen"))
    at = NOW + 5 * MINUTE
    bucket.batch(at, sample(20.0, at, at, "successor"))
    counts = bucket.batch(at + SECOND, sample(HOT, NOW + 10 * SECOND, at + SECOND, "frozen")).counts
    assert (counts.samples_accepted, counts.samples_stale) == (0, 1)
    assert load_of(bucket).msg_rate_in == 20.0


def test_reporter_clock_cannot_extend_cold_time():
    """Kafka's time bounds how long a segment was cold."""
    bucket = started()
    behind = NOW - 20 * MINUTE
    output = bucket.batch(NOW, *[sample(1.0, behind, NOW, segment=segment) for segment in (0, 1)], tick(1))
    assert not output.decisions
    assert [row["gate"] for row in output.holds] == ["merge-window"]
    assert output.holds[0]["eligible_at"] == NOW - 5 * SECOND + 5 * MINUTE


def test_reporters_restored_from_base_and_log():
    table = LoadTable()
    rows = table.rows_of("t", [1, 2])

    def record(at, *reporters):
        origins = origins_of([at] * 2, reporters=list(reporters))
        rates = np.array([flat(1.0), flat(2.0)])
        table.record(rows, np.ones(2, np.int8), rates, origins, np.array([MERGE]))

    record(1, 5, 6)
    base = pack_loads(table)
    record(2, 7, 2**32 - 1)
    again = unpack_loads(StoredPart(base, [pack_load_changes(table)]))
    assert again.reporter[:2].tolist() == table.reporter[:2].tolist() == [7, 2**32 - 1]


def test_the_lake_says_when_kafka_took_a_sample():
    bucket = started()
    output = bucket.batch(NOW, sample(1.0, NOW, NOW - 7), sample(1.0, NOW, None, segment=1))
    assert output.loads["kafka_timestamp"].to_pylist() == [NOW - 7, None]


def test_decision_inputs_keep_judging_instants():
    bucket = started()
    (decision,) = bucket.batch(NOW, sample(HOT, NOW + 4 * MINUTE, NOW), tick(1)).decisions
    load = json.loads(decision["inputs"])["loads"]["0"]
    assert (load["modifiedAt"], load["seenAt"]) == (NOW, NOW)
