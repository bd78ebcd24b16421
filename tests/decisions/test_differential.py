"""Profile `pip-483` against an independent implementation of the PIP's text, decision by decision, reason included."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from decisions.autoscale.decide import Hold, Merge, Split, decide
from tests.decisions.pip483 import decide_by_the_text
from tests.decisions.snapshots import random_snapshot
from tests.examples import only_first


def plainly(answer):
    if isinstance(answer, Split):
        return ("split", answer.segment, answer.reason)
    if isinstance(answer, Merge):
        return ("merge", answer.segments, answer.reason)
    return ("none",)


def disagreements(seed, count):
    """Snapshots on which the two disagree, and how often each gate or reason was met."""
    rng, found, met = Random(seed), [], Counter()
    for _ in range(count):
        snapshot = random_snapshot(rng)
        answer = decide(snapshot)
        if plainly(answer) != decide_by_the_text(snapshot):
            found.append((snapshot, plainly(answer), decide_by_the_text(snapshot)))
        met[answer.gate.value if isinstance(answer, Hold) else answer.reason] += 1
    return found, met


@pytest.mark.parametrize(("seed", "count"), only_first(1, [(0, 5_000), *((seed, 50_000) for seed in range(4))]))
def test_decide_matches_pip_text_on_random_snapshots(seed, count):
    found, met = disagreements(seed, count)
    assert found == []
    assert set(met) >= {
        "consumer-count",
        "msgRateIn",
        "bytesRateIn",
        "msgRateOut",
        "bytesRateOut",
        "cold",
        "disabled",
        "in-flight",
        "max-segments",
        "split-cooldown",
        "consumer-demand",
        "split-thresholds",
        "load-missing",
        "min-segments",
        "merge-cooldown",
        "merge-thresholds",
        "max-dag-depth",
        "merge-window",
        "invalid-policy",
    }
