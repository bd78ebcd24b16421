"""`anabranch controller` that kills itself with -9 at a chosen point of a split or merge, or of a creation.

Run as `python -m tests.controller.operations.dying_controller POINT ARGUMENTS…` with the arguments of `anabranch`.
POINT is a step: it dies when the journal was just told that this step is next; or `published`: after the layout, before
the journal; or `created`: after the first segment of a new topic.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from anabranch.cli import main
from controller.leadership.leaders import Term
from controller.operations.journal import Operation
from controller.operations.runner import OperationRunner, StoredLayouts
from controller.segments.kafka import KafkaSegments


def die() -> None:
    """No clean-up of any kind."""
    os.kill(os.getpid(), signal.SIGKILL)


def arm(point: str) -> None:
    """Puts the deaths in."""
    save, replace = OperationRunner.save, StoredLayouts.replace

    def deadly_save(self: OperationRunner, term: Term, operation: Operation) -> None:
        save(self, term, operation)
        if operation.step == point:
            die()

    def deadly_replace(self: StoredLayouts, *arguments: Any) -> bool:
        done = replace(self, *arguments)
        if done and point == "published":
            die()
        return done

    create = KafkaSegments.create

    def deadly_create(self: KafkaSegments, *arguments: Any) -> None:
        create(self, *arguments)
        if point == "created":
            die()

    OperationRunner.save, StoredLayouts.replace = deadly_save, deadly_replace  # type: ignore[method-assign]
    KafkaSegments.create = deadly_create  # type: ignore[method-assign]


if __name__ == "__main__":
    arm(sys.argv.pop(1))
    main()
