"""The real executor, made to kill itself with SIGKILL at a chosen point; its events go to a file.

`python -m tests.executor.crashing_executor SETTINGS EVENTS POINT`, at the first time that POINT is reached;
`random-SEED`: at a random time. What it has announced it soon announces again.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

from anabranch.executor import process
from anabranch.executor.autoscale.actor import AutoscaleActor
from anabranch.executor.bundles.actor import BundlesActor
from anabranch.executor.kernel import announcer
from anabranch.executor.kernel.outcomes import INTENT, OutcomeLedger
from schemas.kafka.messages import OutcomeEvent
from schemas.settings.root import load_settings

POINTS = ("before-intent", "after-intent", "after-call", "before-end", "after-end", "never")
CRASHES = 0.2
"""Of the points that are reached, at random."""


class FilePublisher:
    """Writes each event as a line."""

    path: Path

    def __init__(self, _: str) -> None:
        return

    def publish(self, event: OutcomeEvent) -> None:
        with self.path.open("a") as file:
            file.write(event.to_json() + "\n")

    def poll(self) -> None:
        return

    def close(self) -> None:
        return


def main() -> None:
    """Runs until it kills itself, or is stopped."""
    file, events, point = sys.argv[1:]
    FilePublisher.path = Path(events)
    announcer.LOOK_SECONDS = 0.2
    append = OutcomeLedger.append
    chance = random.Random(point)

    def crash_at(reached: str) -> None:
        if reached == point or (point.startswith("random") and chance.random() < CRASHES):
            os.kill(os.getpid(), signal.SIGKILL)

    def crashing_append(ledger: OutcomeLedger, rows: Any) -> None:
        step = "intent" if any(row.status == INTENT for row in rows) else "end"
        crash_at(f"before-{step}")
        append(ledger, rows)
        crash_at(f"after-{step}")

    def crashing(call: Any) -> Any:
        def crashing_call(*given: Any) -> Any:
            answer = call(*given)
            crash_at("after-call")
            return answer

        return crashing_call

    OutcomeLedger.append = crashing_append  # type: ignore[method-assign]
    for actor in (AutoscaleActor, BundlesActor):
        actor.call = crashing(actor.call)  # type: ignore[method-assign]
    process.KafkaPublisher = FilePublisher  # type: ignore[assignment,misc]
    process.run_executor(load_settings([Path(file)]), lambda line: print(line, flush=True))


if __name__ == "__main__":
    main()
