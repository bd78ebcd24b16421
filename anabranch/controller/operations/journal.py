"""Journal of a topic: operations on its segments, each with its next step (PIP-468 "Split Protocol").

Stage: splits, merges and rebuckets are planned and carried out by `anabranch.controller.operations.protocol`, prunings
and deletions by `anabranch.controller.operations.removal`. An operation is saved here before its first step and after
each one. At most one operation of a topic is open, and it is the newest.
"""

from typing import Literal

from pydantic import Field, model_validator

from anabranch.controller.errors import Conflict
from anabranch.controller.layouts.reader import LayoutReader
from anabranch.controller.layouts.transaction import Transaction
from anabranch.controller.metadata.records import MAX_OPERATIONS
from anabranch.controller.metadata.store_paths import operations_path
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
"""Steps of a pruning; the layout no longer contains the segments when it begins."""
STEPS_DELETE: tuple[OperationStep, ...] = ("delete-subscriptions", "delete-segments", "clear", "done")
"""Steps of a deletion; the topic is already invisible when it begins, and its layout stored beside the journal."""
_STEPS = {
    "split": STEPS_SPLIT,
    "merge": STEPS_MERGE,
    "rebucket": STEPS_SPLIT,
    "prune": STEPS_PRUNE,
    "delete": STEPS_DELETE,
}
MAX_PRUNED = 500
"""Maximum number of segments of one pruning."""


class Operation(Wire):
    """A split, merge, rebucket, pruning or deletion and its progress; JSON in the journal."""

    id: Name
    topic: TopicName
    kind: Literal["split", "merge", "rebucket", "prune", "delete"]
    segments: tuple[str, ...] = Field(default=(), max_length=MAX_PRUNED + 2)
    """Descriptors (`0000-ffff-0`): the parents in call order, or further segments to remove."""
    children: tuple[str, ...] = Field(default=(), max_length=2)
    """Descriptors of the segments that replace the parents."""
    step: OperationStep
    """Next step, or `done` or `superseded`."""
    epoch: Epoch
    """Epoch of the layout that it was planned on."""
    started_at: Millis
    """Time of planning; the layout records it as the time of the change."""
    subscriptions: tuple[str, ...] = ()
    """Subscriptions of the parents at discovery."""
    decision_id: str | None = None
    bucket_count: int | None = None
    """Entry buckets: of a rebucket's successor, or the maximum for a merge's union."""

    @model_validator(mode="after")
    def _step_is_of_its_kind(self) -> "Operation":
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
        """True if nothing is left to do."""
        return self.step in ("done", "superseded")

    @property
    def parent_topics(self) -> tuple[str, ...]:
        """Names, `segment://…`, of the parents, or of the segments to remove."""
        return tuple(segment_topic_name(self.topic, descriptor) for descriptor in self.segments)

    @property
    def child_topics(self) -> tuple[str, ...]:
        """Names of the children, `segment://…`."""
        return tuple(segment_topic_name(self.topic, descriptor) for descriptor in self.children)


def open_operation(layouts: LayoutReader, topic: str) -> Operation | None:
    """Return the unfinished operation of a topic, deletion included, or None."""
    _, newest = _newest(layouts, topic)
    return newest if newest and not newest.has_ended else None


def list_operations(layouts: LayoutReader, topic: str) -> list[Operation]:
    """Return the operations in the journal of a topic, the newest first."""
    return [Operation.model_validate_json(value) for value in reversed(layouts.values(operations_path(topic)))]


def save_operation(transaction: Transaction, operation: Operation) -> None:
    """Add an operation, or replace the one with its id. Raises `Conflict` if another one is open."""
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
    """Return the number of the newest operation in the journal, and the operation."""
    if not (names := layouts.children(operations_path(topic))):
        return 0, None
    node = layouts.get(f"{operations_path(topic)}/{names[-1]}")
    return int(names[-1]), Operation.model_validate_json(node.value) if node else None
