"""Profile `pulsar-5.0` against an independent transcription of what Pulsar 5.0.1 decides, reason included."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from decisions.autoscale.answers import Hold, Rebucket
from decisions.autoscale.decide import decide
from tests.decisions.pulsar50 import decide_as_shipped
from tests.decisions.snapshots import bucket_snapshot
from tests.decisions.test_differential import plainly
from tests.examples import only_first

BLOCKED = {
    "max-segments": "max_segments",
    "unsplittable": "unsplittable",
    "max-dag-depth": "max_dag_depth",
    "max-entry-buckets": "max_entry_buckets",
    "merge-capacity": "max_entry_buckets",
}


def answer_of(snapshot):
    answer = decide(snapshot)
    if isinstance(answer, Rebucket):
        return ("rebucket", answer.segments, answer.bucket_count, answer.reason)
    return plainly(answer)


def disagreements(seed, count):
    """Snapshots on which the two disagree, and how often each gate or reason was met."""
    rng, found, met = Random(seed), [], Counter()
    for _ in range(count):
        snapshot = bucket_snapshot(rng)
        ours, theirs = answer_of(snapshot), decide_as_shipped(snapshot)
        same = ours == theirs if ours[0] != "none" else theirs[0] == "none"
        if not same:
            found.append((snapshot, ours, theirs))
        answer = decide(snapshot)
        met[answer.gate.value if isinstance(answer, Hold) else answer.reason] += 1
        met[theirs[-1]] += 1
    return found, met


@pytest.mark.parametrize("seed", only_first(1, range(2)))
def test_decide_agrees_with_pulsar_as_shipped(seed):
    found, met = disagreements(f"pulsar-5.0 {seed}", 2_500)
    assert found == []
    assert set(met) >= {
        "consumer-count",
        "msgRateIn",
        "byteRateIn",
        "msgRateOut",
        "byteRateOut",
        "cold",
        "below-split-rate-floor",
        "at-max-segments",
        "rebucket-cooldown",
        "max-entry-buckets",
        "merge-capacity",
        "max_entry_buckets",
        "unsplittable",
        "max_segments",
        "max_dag_depth",
    }
