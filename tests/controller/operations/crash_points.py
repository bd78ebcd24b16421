"""The named points of a split, a merge or a creation at which a controller dies.

A point is a step: it dies when the journal was just told that this step is next; or `published`: after the layout,
before the journal; or `created`: after the first segment of a new topic. Dying is done once: by kill -9 in a process of
its own (`dying_controller`), or by an exception in the process of the test (`crash_at`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from controller.leadership.leaders import Term
from controller.operations.journal import STEPS_MERGE, STEPS_SPLIT, Operation
from controller.operations.runner import OperationRunner, StoredLayouts
from controller.segments.kafka import KafkaSegments

SPLIT_POINTS = (*STEPS_SPLIT[:4], "published", *STEPS_SPLIT[4:])
MERGE_POINTS = (*STEPS_MERGE[:4], "published", *STEPS_MERGE[4:])


class Crash(Exception):
    """The end of a process, as a test in the same process sees it."""


def arm(point: str, die: Callable[[], None], set_attribute: Callable[[type, str, Any], None] = setattr) -> None:
    """Has `die` called when the point is reached for the first time."""
    save, replace, create = OperationRunner.save, StoredLayouts.replace, KafkaSegments.create
    left = [point]

    def reached(one: str) -> None:
        if one in left:
            left.clear()
            die()

    def deadly_save(self: OperationRunner, term: Term, operation: Operation) -> None:
        save(self, term, operation)
        reached(operation.step)

    def deadly_replace(self: StoredLayouts, *arguments: Any) -> bool:
        done = replace(self, *arguments)
        if done:
            reached("published")
        return done

    def deadly_create(self: KafkaSegments, *arguments: Any) -> str:
        segment = create(self, *arguments)
        reached("created")
        return segment

    set_attribute(OperationRunner, "save", deadly_save)
    set_attribute(StoredLayouts, "replace", deadly_replace)
    set_attribute(KafkaSegments, "create", deadly_create)


@contextmanager
def crash_at(point: str, just_before: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Within the block the point raises `Crash`, after `just_before` was called."""

    def die() -> None:
        just_before()
        raise Crash(point)

    with pytest.MonkeyPatch.context() as patch:
        arm(point, die, patch.setattr)
        yield
