"""Samples in columns, from the first stage to what the buckets say: nothing differs from samples topic by topic."""

from __future__ import annotations

from collections import Counter
from random import Random

from decisions.topic.layout import SegmentLayout
from engine.families import bucket_engine
from schemas.codecs.columns import hash_of
from tests.engine.buckets import SETTINGS, knowing, packed, stored
from tests.engine.records import columns, layout, record, stats, tick
from tests.harness.garbage import KINDS, make_garbage

NOW, SECOND, BUCKETS = 1_763_660_000_000, 1_000, 4
TOPICS = [f"topic://acme/shop/orders-{number}" for number in range(12)]


def bucket_of(key):
    return hash_of((key or b"").decode()) % BUCKETS


class Job:
    """All buckets over several batches."""

    def __init__(self):
        self._engine = bucket_engine(SETTINGS)
        self._stored = {bucket: knowing() for bucket in range(BUCKETS)}

    def batch(self, now, *records):
        outputs = []
        for bucket, found in packed(list(records), now, BUCKETS, bucket_of).items():
            written, output = self._engine.run(bucket, self._stored[bucket], found.records, now, *found[1:])
            self._stored[bucket] = stored(self._stored[bucket], written)
            outputs.append(output)
        return outputs


def test_column_and_single_samples_decide_equally():
    random, said = Random(1), []
    rounds = [{name: {0: random.uniform(0, 20_000), 1: 1.0 + turn} for name in TOPICS} for turn in range(3)]
    for in_columns in (False, True):
        job, loads, decided = Job(), [], []
        job.batch(NOW, *[layout(SegmentLayout.create(2, NOW), topic=name) for name in TOPICS])
        for turn, rates in enumerate(rounds, 1):
            now = NOW + turn * 10 * SECOND
            plain = [stats(of, now, name) for name, of in rates.items()]
            samples = [columns(rates, now)] if in_columns else plain
            for output in job.batch(now, *samples, tick(now)):
                loads += [] if output.loads is None else output.loads.to_pylist()
                decided += [{**row, "inputs": None} for row in output.decisions]
        for load in loads:
            del load["kafka_partition"], load["kafka_offset"]
        said.append([sorted(map(repr, loads)), sorted(map(repr, decided))])
    assert said[0] == said[1]
    assert len(said[0][1]) > 3


def test_garbage_is_one_dead_letter_per_reason():
    """All counts add up."""
    random = Random(1)
    every = [make_garbage(TOPICS[0], NOW, random, kind) for kind in KINDS]
    records = [record(bad.source, None, bad.value)._replace(key=bad.key) for bad in every]
    outputs = Job().batch(NOW, *records, columns({name: {0: 1.0} for name in TOPICS}, NOW))
    letters = Counter((row["reason"], row.get("sample") is not None) for one in outputs for row in one.dead_letters)
    assert letters == Counter((bad.expected.value, bad.of_a_sample) for bad in every if bad.expected)
    total = {name: sum(getattr(one.counts, name) for one in outputs) for name in vars(outputs[0].counts)}
    assert total["messages"] == len(records) + 1
    assert total["messages"] == total["messages_accepted"] + total["messages_suppressed"] + total["dead_letters"]
    assert total["samples"] == total["samples_accepted"] + total["samples_insignificant"] + total["samples_stale"]
    assert total["samples_refused"] == sum(bad.of_a_sample for bad in every)
    assert total["dead_letters"] + total["samples_refused"] == letters.total()
