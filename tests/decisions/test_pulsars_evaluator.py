"""Profile `pip-483` against Pulsar's own `AutoScalePolicyEvaluator` (5.0.0-M1), on random snapshots, reason included.

Where several segments or pairs are equally good, Pulsar takes the one that its map shows first, and we the one with the
lowest id: there its answer has to be one of the equally good. Its map also says which of a pair comes first, so a pair
is compared as a set. `ANABRANCH_SEED` draws the snapshots of an earlier run.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

import pytest
from pydantic.alias_generators import to_camel

from decisions.autoscale.decide import decide
from decisions.autoscale.policy import PROFILES, Policy
from decisions.autoscale.snapshot import TopicSnapshot, snapshot_to_json
from decisions.topic.layout import SegmentLayout
from runtime.java_home import find_java
from schemas.settings.root import without_secrets
from tests.decisions.pip483 import equal_answers_by_the_text, merges
from tests.decisions.snapshots import load, random_snapshot, snapshot
from tests.decisions.test_differential import plainly
from tests.examples import only_first
from tests.harness.pulsar.evaluator import FLAGS, MAIN

SHOWN = 5
"""Differences that are told in full."""
PULSARS_OWN = list(Policy.__dataclass_fields__)[:15]


def decide_as_pulsar(jars: Path, snapshots: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield Pulsar's decision on each snapshot, in order.

    A snapshot is JSON in one line, its policy with every field. The decisions are

    `{"action": "split", "segment": 3, "reason": "msgRateIn"}`, `{"action": "merge", "segments": [1, 2], …}`,
    `{"action": "none"}`, or `{"error": …}` for a policy that Pulsar refuses. `jars` is the folder of
    `anabranch.local.setup.ensure_pulsar`. Raises `RuntimeError` when the program fails.
    """
    with tempfile.TemporaryFile("w+") as questions, tempfile.TemporaryFile("w+") as answers:
        questions.writelines(f"{line}\n" for line in snapshots)
        questions.seek(0)
        done = subprocess.run(
            [find_java(), *FLAGS, "-cp", f"{jars}/*", MAIN],
            stdin=questions,
            stdout=answers,
            stderr=subprocess.PIPE,
            env=without_secrets(os.environ),
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"Pulsar's evaluator ended with {done.returncode}: {done.stderr[-2000:]}")
        answers.seek(0)
        yield from map(json.loads, answers)


def drawn(seed: int, count: int) -> list[TopicSnapshot]:
    """Snapshots that Pulsar's function has words for: it is not called with one in flight, and does not know why."""
    rng = Random(seed)
    return [replace(random_snapshot(rng), trigger="tick", in_flight=None) for _ in range(count)]


def in_json(snapshots: Sequence[TopicSnapshot]) -> list[str]:
    """A line each, with the fractions that a byte threshold has in these tests."""
    layouts: dict[int, str] = {}
    for each in snapshots:
        if id(each.layout) not in layouts:
            layouts[id(each.layout)] = each.layout.to_metadata().to_json()
    return [snapshot_to_json(each, layouts[id(each.layout)], policy_in_json(each.policy)) for each in snapshots]


@cache
def policy_in_json(policy: Policy) -> str:
    of_pulsar = {}
    for name in PULSARS_OWN:
        value = getattr(policy, name)
        if name.endswith("_ms"):
            name, value = f"{name.removesuffix('_ms')}_seconds", value // 1000
        of_pulsar[to_camel(name)] = value
    return json.dumps(of_pulsar)


def unordered(answer: tuple) -> tuple:
    """The answer with a pair in the order of its ids."""
    return (answer[0], tuple(sorted(answer[1])), answer[2]) if answer[0] == "merge" else answer


def of_pulsar(answer: dict[str, Any]) -> tuple:
    """Its answer as `unordered` has ours; a policy that it refuses decides nothing, as in its controller."""
    if answer.get("action") == "split":
        return ("split", answer["segment"], answer["reason"])
    if answer.get("action") == "merge":
        return unordered(("merge", answer["segments"], answer["reason"]))
    assert answer == {"action": "none"} or "Invalid auto split/merge configuration" in answer["error"], answer
    return ("none",)


def beyond_float(given: TopicSnapshot, pair: tuple[int, ...]) -> bool:
    """Whether the rates of the pair are together more than a float holds: no such pair is cold enough for Pulsar."""
    return math.isinf(sum(sum(given.loads[number].rates) for number in pair))


def difference(number: int, given: TopicSnapshot, ours: tuple, theirs: tuple, equal: Sequence[tuple]) -> str:
    """One snapshot on which the two differ, for a reader: both answers, then what they were made on."""
    policy, start = given.policy, PROFILES["pip-483"]
    changed = {name: getattr(policy, name) for name in PULSARS_OWN if getattr(policy, name) != getattr(start, name)}
    ago = {
        name: None if at is None else given.now - at
        for name, at in (("split", given.last_split_at), ("merge", given.last_merge_at))
    }
    lines = [
        f"snapshot {number}",
        f"- Pulsar:    {theirs}",
        f"+ Anabranch: {ours}" + (f", of the equally good {list(equal)}" if len(equal) > 1 else ""),
        f"  policy (what is not the default): {changed}",
        f"  ms since the last split {ago['split']}, merge {ago['merge']}; consumers {dict(given.consumers)}",
        "  segment  range      merges  age of load, ms  msgRateIn, bytesRateIn, msgRateOut, bytesRateOut",
    ]
    for segment in given.layout.active:
        known = given.loads.get(segment.segment_id)
        told = "-" if known is None else f"{given.now - known.modified_at:<15}  {known.rates}"
        depth = merges(given, segment.segment_id)
        lines.append(f"  {segment.segment_id:<7}  {segment.start:04x}-{segment.end:04x}  {depth:<6}  {told}")
    return "\n".join(lines)


def compare(jars: Path, snapshots: Sequence[TopicSnapshot]) -> tuple[list[str], Counter[str]]:
    """The differences, told; and how often each kind of answer was met, ties apart."""
    found, met = [], Counter()
    answers = list(decide_as_pulsar(jars, in_json(snapshots)))
    assert len(answers) == len(snapshots)
    for number, (given, answer) in enumerate(zip(snapshots, answers, strict=True)):
        ours, theirs = unordered(plainly(decide(given))), of_pulsar(answer)
        equal = [ours] if theirs == ours else [unordered(one) for one in equal_answers_by_the_text(given)]
        if ours[0] == "merge" and theirs == ("none",) and beyond_float(given, ours[1]):
            met["pair that Pulsar cannot add up"] += 1
        elif theirs not in equal or ours not in equal:
            found.append(difference(number, given, ours, theirs, equal))
        met["refused" if "error" in answer else ours[-1]] += 1
        met["tie that Pulsar breaks otherwise"] += theirs != ours
    return found, met


@pytest.mark.pulsar
@pytest.mark.parametrize("count", only_first(1, [8_000, 100_000]))
def test_pulsar_evaluator_agrees_on_random_input(pulsar_jars: Path, count: int) -> None:
    seed = int(os.environ.get("ANABRANCH_SEED") or SystemRandom().randrange(2**32))
    print(f"ANABRANCH_SEED={seed}")
    found, met = compare(pulsar_jars, drawn(seed, count))
    told = "\n\n".join(found[:SHOWN])
    assert not found, f"{len(found)} of {count} differ with ANABRANCH_SEED={seed}:\n\n{told}"
    assert set(met) >= {
        "consumer-count",
        "msgRateIn",
        "bytesRateIn",
        "msgRateOut",
        "bytesRateOut",
        "cold",
        "none",
        "refused",
        "tie that Pulsar breaks otherwise",
    }, met


def test_difference_shown_with_both_answers_and_input() -> None:
    given = snapshot(SegmentLayout.create(2, 0), {1: load((12_000, 0, 0, 0))}, last_split_at=None)
    ours = plainly(decide(given))
    told = difference(7, given, ours, ("split", 0, "msgRateIn"), [ours])
    assert "- Pulsar:    ('split', 0, 'msgRateIn')\n+ Anabranch: ('split', 1, 'msgRateIn')\n" in told
    assert "1        8000-ffff  0       600000           (12000.0, 0.0, 0.0, 0.0)" in told
