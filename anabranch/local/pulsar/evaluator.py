"""Pulsar's own `AutoScalePolicyEvaluator` on our snapshots, in a JVM of its own; no broker is needed.

Neighbours: `java/…/Evaluator.java` is the program; the tests hold `decisions.autoscale` to what it answers.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from decisions.autoscale.answers import Answer, Hold, Merge, Split
from decisions.autoscale.gates import Gate
from decisions.autoscale.policy import Policy, policy_override
from decisions.autoscale.snapshot import TopicSnapshot, snapshot_to_json
from decisions.kernel.readings import Reading
from runtime.java_home import find_java
from schemas.metadata import PULSAR_POLICY_FIELDS
from schemas.settings.root import without_secrets

_FLAGS = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
_MAIN = "org.apache.pulsar.broker.service.scalable.Evaluator"


class PulsarsEvaluator:
    """Pulsar's evaluator in a process, asked at each tick as a broker does; ends with its `with` block."""

    def __init__(self, jars: Path) -> None:
        self._process = subprocess.Popen(
            [find_java(), *_FLAGS, "-cp", f"{jars}/*", _MAIN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=without_secrets(os.environ),
            text=True,
        )

    def __enter__(self) -> PulsarsEvaluator:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def __call__(self, snapshot: TopicSnapshot) -> Answer:
        """Return Pulsar's decision on a snapshot; a hold carries no details.

        An event of consumers is shown without loads: then only its consumer rule can act. Raises `RuntimeError` if the
        program has ended.
        """
        shown = snapshot if snapshot.trigger == "tick" else replace(snapshot, loads={})
        line = snapshot_to_json(shown, shown.layout.to_metadata().to_json(), _policy_of_pulsar(shown.policy))
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        reply = self._process.stdout.readline()
        if not reply:
            raise RuntimeError(f"Pulsar's evaluator ended with {self._process.wait(30)}")
        answer = json.loads(reply)
        if answer.get("action") == "split":
            return Split(answer["segment"], answer["reason"], ())
        if answer.get("action") == "merge":
            lower, upper = sorted(answer["segments"], key=lambda number: shown.layout.segments[number].start)
            return Merge((lower, upper), answer["reason"], ())
        return Hold(Reading(Gate.DISABLED, False), ())


@cache
def _policy_of_pulsar(policy: Policy) -> str:
    """Return the policy's `PULSAR_POLICY_FIELDS` as JSON."""
    fields = policy_override(policy).model_dump(by_alias=True, include=set(PULSAR_POLICY_FIELDS))
    return json.dumps(fields)


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
            [find_java(), *_FLAGS, "-cp", f"{jars}/*", _MAIN],
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
