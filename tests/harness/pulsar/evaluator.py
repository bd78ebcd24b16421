"""Pulsar's own `AutoScalePolicyEvaluator` on our snapshots, in a JVM of its own; no broker is needed.

Neighbours: `java/…/Evaluator.java` is the program; the tests hold `decisions.autoscale` to what it answers.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path

from decisions.autoscale.answers import Answer, Hold, Merge, Split
from decisions.autoscale.gates import Gate
from decisions.autoscale.policy import Policy, policy_override
from decisions.autoscale.snapshot import TopicSnapshot, snapshot_to_json
from decisions.kernel.readings import Reading
from runtime.java_home import find_java
from schemas.metadata import PULSAR_POLICY_FIELDS
from schemas.settings.root import without_secrets

FLAGS = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
MAIN = "org.apache.pulsar.broker.service.scalable.Evaluator"


class PulsarsEvaluator:
    """Pulsar's evaluator in a process, asked at each tick as a broker does; ends with its `with` block."""

    def __init__(self, jars: Path) -> None:
        self._process = subprocess.Popen(
            [find_java(), *FLAGS, "-cp", f"{jars}/*", MAIN],
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
