"""Pulsar's own `AutoScalePolicyEvaluator` on our snapshots, in a JVM of its own; no broker is needed.

Neighbours: `java/…/Evaluator.java` is the program; the tests hold `decisions.autoscale` to what it answers.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from lab.java_home import find_java

_FLAGS = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
_MAIN = "org.apache.pulsar.broker.service.scalable.Evaluator"


def decide_as_pulsar(jars: Path, snapshots: Iterable[str]) -> Iterator[dict[str, Any]]:
    """What Pulsar decides on each snapshot (JSON in one line each, the policy with every field), in their order.

    `{"action": "split", "segment": 3, "reason": "msgRateIn"}`, `{"action": "merge", "segments": [1, 2], …}`,
    `{"action": "none"}`, or `{"error": …}` for a policy that Pulsar refuses. `jars` is the folder of
    `lab.setup.ensure_pulsar`. Raises `RuntimeError` when the program fails.
    """
    with tempfile.TemporaryFile("w+") as questions, tempfile.TemporaryFile("w+") as answers:
        questions.writelines(f"{line}\n" for line in snapshots)
        questions.seek(0)
        done = subprocess.run(
            [find_java(), *_FLAGS, "-cp", f"{jars}/*", _MAIN],
            stdin=questions, stdout=answers, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"Pulsar's evaluator ended with {done.returncode}: {done.stderr[-2000:]}")
        answers.seek(0)
        yield from map(json.loads, answers)
