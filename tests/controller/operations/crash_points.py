"""The named points of what is done to topics at which a controller dies.

A point is a step: it dies when the journal was just told that this step is next; or `published`: after the layout,
before the journal; or `created` and `removed`: after the first segment is; or `subscribed`: a subscription is
registered, and its positions are not made. Dying is done once: by kill -9 in a process of
its own (`dying_controller`), or by an exception in the process of the test (`crash_at`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from anabranch.controller.layouts.store import LayoutStore
from anabranch.controller.layouts.transaction import Transaction
from anabranch.controller.leadership.leaders import Term
from anabranch.controller.operations import removal, runner
from anabranch.controller.operations.journal import STEPS_MERGE, STEPS_SPLIT, Operation
from anabranch.controller.operations.runner import StoredLayouts
from anabranch.controller.segments.kafka import KafkaSegments
from anabranch.controller.sessions.registry import SubscriptionRegistry

SPLIT_POINTS = (*STEPS_SPLIT[:4], "published", *STEPS_SPLIT[4:])
DELETE_POINTS = ("delete-subscriptions", "delete-segments", "removed", "clear")
PRUNE_POINTS = ("delete-segments", "removed")
MERGE_POINTS = (*STEPS_MERGE[:4], "published", *STEPS_MERGE[4:])


class Crash(Exception):
    """The end of a process, as a test in the same process sees it."""


def arm(point: str, die: Callable[[], None], set_attribute: Callable[[Any, str, Any], None] = setattr) -> None:
    """Has `die` called when the point is reached for the first time."""
    save, replace, create = removal.save_operation, StoredLayouts.replace, KafkaSegments.create
    write, delete = LayoutStore.write, KafkaSegments.delete
    position = SubscriptionRegistry.position
    saved: dict[Transaction, str] = {}
    left = [point]

    def reached(one: str) -> None:
        if one in left:
            left.clear()
            die()

    def noted(transaction: Transaction, operation: Operation) -> None:
        save(transaction, operation)
        saved[transaction] = operation.step

    @contextmanager
    def deadly_write(self: LayoutStore, term: Term) -> Iterator[Transaction]:
        with write(self, term) as transaction:
            yield transaction
        reached(saved.pop(transaction, ""))

    def deadly_replace(self: StoredLayouts, *arguments: Any) -> bool:
        done = replace(self, *arguments)
        if done:
            reached("published")
        return done

    def deadly_create(self: KafkaSegments, *arguments: Any) -> str:
        segment = create(self, *arguments)
        reached("created")
        return segment

    def deadly_delete(self: KafkaSegments, segment: str) -> None:
        delete(self, segment)
        reached("removed")

    def dead_before(self: SubscriptionRegistry, topic: str, subscription: str) -> None:
        reached("subscribed")
        position(self, topic, subscription)

    set_attribute(runner, "save_operation", noted)
    set_attribute(removal, "save_operation", noted)
    set_attribute(LayoutStore, "write", deadly_write)
    set_attribute(KafkaSegments, "delete", deadly_delete)
    set_attribute(SubscriptionRegistry, "position", dead_before)
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
