"""A split or merge as a value: what it takes, what it makes, and which step is next (PIP-468 "Split Protocol").

Stage: kept in the journal by the store, planned and carried out by `controller.operations.protocol`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

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


class Operation(Wire):
    """A split or merge and how far it is; JSON in the journal."""

    id: Name
    topic: TopicName
    kind: Literal["split", "merge"]
    segments: tuple[str, ...] = Field(min_length=1, max_length=2)
    """The parents' descriptors (`0000-ffff-0`), in the order of the call."""
    children: tuple[str, ...] = Field(min_length=1, max_length=2)
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

    @model_validator(mode="after")
    def _step_is_of_its_kind(self) -> Operation:
        if self.step != "superseded" and self.step not in self.steps:
            raise ValueError(f"a {self.kind} has no step {self.step}")
        return self

    @property
    def steps(self) -> tuple[OperationStep, ...]:
        """All steps of its kind, in order."""
        return STEPS_SPLIT if self.kind == "split" else STEPS_MERGE

    @property
    def has_ended(self) -> bool:
        """Whether nothing is left to do."""
        return self.step in ("done", "superseded")

    @property
    def parent_topics(self) -> tuple[str, ...]:
        """The parents' names, `segment://…`."""
        return tuple(segment_topic_name(self.topic, descriptor) for descriptor in self.segments)

    @property
    def child_topics(self) -> tuple[str, ...]:
        """The children's names, `segment://…`."""
        return tuple(segment_topic_name(self.topic, descriptor) for descriptor in self.children)
