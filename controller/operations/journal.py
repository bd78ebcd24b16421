"""The journal of a topic: what is done to its segments, each with the step that is next (PIP-468 "Split Protocol").

Stage: splits, merges and rebuckets are planned and carried out by `controller.operations.protocol`, prunings and
deletions by `controller.operations.removal`. An operation is saved here before its first step and after each one. At
most one operation of a topic is open, and it is the newest.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from controller.errors import Conflict
from controller.layouts.reader import LayoutReader
from controller.layouts.transaction import Transaction
from controller.metadata.records import MAX_OPERATIONS
from controller.metadata.store_paths import operations_path
from decisions.topic.names import segment_topic_name
from schemas.base import Epoch, Millis, Name, TopicName, Wire

OperationStep = Literal[
    "discover-subscriptions",
    "create-children",
    "create-merged",
    "terminate-parent",
    "terminate-parents",
    "update-layout",
    "notify-consumers",
    "delete-subscriptions",
    "delete-segments",
    "clear",
    "done",
    "superseded",
]
STEPS_SPLIT: tuple[OperationStep, ...] = (
    "discover-subscriptions",
    "create-children",
    "terminate-parent",
    "update-layout",
    "notify-consumers",
    "done",
)
STEPS_MERGE: tuple[OperationStep, ...] = (
    "discover-subscriptions",
    "create-merged",
    "terminate-parents",
    "update-layout",
    "notify-consumers",
    "done",
)


STEPS_PRUNE: tuple[OperationStep, ...] = ("delete-segments", "done")
"""The layout is without the segments when it begins."""
STEPS_DELETE: tuple[OperationStep, ...] = ("delete-subscriptions", "delete-segments", "clear", "done")
"""Nobody finds the topic any more when it begins; its layout is kept beside the journal."""
_STEPS = {
    "split": STEPS_SPLIT, "merge": STEPS_MERGE, "rebucket": STEPS_SPLIT, "prune": STEPS_PRUNE, "delete": STEPS_DELETE
}  # fmt: skip
MAX_PRUNED = 500
"""Segments of one pruning."""


class Operation(Wire):
    """A split, merge, rebucket, pruning or deletion and how far it is; JSON in the journal."""

    id: Name
    topic: TopicName
    kind: Literal["split", "merge", "rebucket", "prune", "delete"]
    segments: tuple[str, ...] = Field(default=(), max_length=MAX_PRUNED + 2)
    """Descriptors (`0000-ffff-0`): the parents in the order of the call, or what is removed beside the layout's."""
    children: tuple[str, ...] = Field(default=(), max_length=2)
    """The descriptors of the segments that take the parents' place."""
    step: OperationStep
    """The step that is to be done next, or how it ended."""
    epoch: Epoch
    """The epoch of the layout that it was planned on."""
    started_at: Millis
    """When it was planned; the layout has it as the instant of the change."""
    subscriptions: tuple[str, ...] = ()
    """What the parents had when it was asked for."""
    decision_id: str | None = None
    bucket_count: int | None = None
    """Entry buckets: of a rebucket those of the successor, of a merge the most that the union may have."""

    @model_validator(mode="after")
    def _step_is_of_its_kind(self) -> Operation:
        if self.step != "superseded" and self.step not in self.steps:
            raise ValueError(f"a {self.kind} has no step {self.step}")
        if self.kind == "rebucket" and self.bucket_count is None:
            raise ValueError("a rebucket says no bucketCount")
        if (self.kind in ("split", "merge", "rebucket")) != bool(self.segments and self.children):
            raise ValueError(f"a {self.kind} with the segments {self.segments} and the children {self.children}")
        return self

    @property
    def steps(self) -> tuple[OperationStep, ...]:
        """All steps of its kind, in order."""
        return _STEPS[self.kind]

    @property
    def has_ended(self) -> bool:
        """Whether nothing is left to do."""
        return self.step in ("done", "superseded")

    @property
    def parent_topics(self) -> tuple[str, ...]:
        """The names, `segment://…`, of the parents, or of what is removed."""
        return tuple(segment_topic_name(self.topic, descriptor) for descriptor in self.segments)

    @property
    def child_topics(self) -> tuple[str, ...]:
        """The children's names, `segment://…`."""
        return tuple(segment_topic_name(self.topic, descriptor) for descriptor in self.children)


def open_operation(layouts: LayoutReader, topic: str) -> Operation | None:
    """The operation of a topic that has not ended, or None; also of one that is being deleted."""
    _, newest = _newest(layouts, topic)
    return newest if newest and not newest.has_ended else None


def list_operations(layouts: LayoutReader, topic: str) -> list[Operation]:
    """The operations of a topic that the journal holds, the newest first."""
    return [Operation.model_validate_json(value) for value in reversed(layouts.values(operations_path(topic)))]


def save_operation(transaction: Transaction, operation: Operation) -> None:
    """Store an operation in place of the one with its id; `Conflict` for a second one that is open."""
    number, newest = _newest(transaction, operation.topic)
    if newest is not None and newest.id != operation.id and not newest.has_ended:
        raise Conflict(f"{operation.topic}: the {newest.kind} {newest.id} is open")
    if newest is None or newest.id != operation.id:
        number += 1
        transaction.need_leader(operation.topic)
    journal = operations_path(operation.topic)
    transaction.put(f"{journal}/{number:010d}", operation.to_json().encode())
    if operation.has_ended:
        for name in transaction.children(journal)[:-MAX_OPERATIONS]:
            transaction.delete(f"{journal}/{name}")


def _newest(layouts: LayoutReader, topic: str) -> tuple[int, Operation | None]:
    """The number of the newest operation in the journal, and the operation."""
    names = layouts.children(operations_path(topic))
    if not names:
        return 0, None
    found = layouts.get(f"{operations_path(topic)}/{names[-1]}")
    return int(names[-1]), Operation.model_validate_json(found.value) if found else None
