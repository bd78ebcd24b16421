"""Split, merge and rebucket as steps that can be repeated, in the order of PIP-468 "Split Protocol", "Merge Protocol".

A rebucket goes the way of a split with one child: a successor of the same range.

Stage: between the service, which plans an operation, and the segment store and the layouts, which carry it out. An
operation is a value. It is saved before its first step and after each one, so after a crash it goes on with the step
that was under way; each step leaves as it is what was done already. The order is the guarantee:

- the children exist with all subscriptions before a parent is terminated, so a redirected producer's first message has
  readers;
- the parents are terminated before the layout says so, so there is no moment at which parent and child take writes;
- after a parent may have been terminated an operation only goes forward: no terminated parent stays ACTIVE.

At most one operation of a topic may be open, and nothing else may add or seal segments of that topic meanwhile; that
policies change or sealed segments are pruned does no harm. If it happens nevertheless, the children are planned again
when their ids are taken, and the operation is superseded when its parents are; a parent that was terminated for it and
is still ACTIVE then takes no writes until it is split or merged again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol

from controller.errors import Conflict
from controller.operations.journal import STEPS_SPLIT, Operation
from controller.segments.base import SegmentNotFound, SegmentStore
from decisions.topic.layout import LayoutArgumentError, LayoutError, SegmentLayout
from decisions.topic.names import parse_segment_descriptor
from schemas.metadata import MAX_ENTRY_BUCKETS, HashRange

MAX_ATTEMPTS = 64
"""Compare-and-sets that may be lost in a row before the operation has to be resumed."""


class StoredLayout(NamedTuple):
    """A topic's layout and the version that a compare-and-set names."""

    version: int
    layout: SegmentLayout


class Layouts(Protocol):
    """What the protocol needs of the store of layouts and of the sessions."""

    def read(self, topic: str) -> StoredLayout | None:
        """The layout as it was committed last; None without the topic. Raises when another node leads the topic."""

    def replace(self, operation: Operation, version: int, layout: SegmentLayout) -> bool:
        """Compare-and-set with its announcement, in one transaction; False when `version` is not the newest."""

    def subscriptions(self, topic: str) -> Sequence[str]:
        """The subscriptions that are registered for the topic."""

    def notify(self, operation: Operation, layout: SegmentLayout) -> None:
        """Push the new assignments to the consumers; may come twice."""


Save = Callable[[Operation], None]
"""Stores an operation durably in place of what was stored under its id."""


Kind = Literal["split", "merge", "rebucket"]


def plan(
    kind: Kind, topic: str, layout: SegmentLayout, parents: Sequence[int], id: str, now_ms: int,
    decision_id: str | None = None, bucket_count: int | None = None,
) -> tuple[Operation, SegmentLayout]:  # fmt: skip
    """Plan a change of active segments; `LayoutError` when the layout does not allow it. Answers the layout after too.

    `bucket_count`: entry buckets of the successor of a rebucket, or the most that a merge may make.
    """
    after = _changed(kind, layout, parents, now_ms, bucket_count)
    operation = Operation(
        id=id,
        topic=topic,
        kind=kind,
        segments=tuple(layout.segments[parent].descriptor for parent in parents),
        children=_added(layout, after),
        step=STEPS_SPLIT[0],
        epoch=layout.epoch,
        started_at=now_ms,
        decision_id=decision_id,
        bucket_count=bucket_count,
    )
    return operation, after


def resume(operation: Operation, segments: SegmentStore, layouts: Layouts, save: Save) -> Operation:
    """Carry out what is left of an operation that was saved, and answer it as it ended.

    Errors of the stores come through; the operation is then saved as far as it came, and resuming it goes on there.
    """
    while not operation.has_ended:
        operation = run_step(operation, segments, layouts)
        save(operation)
    return operation


def run_step(operation: Operation, segments: SegmentStore, layouts: Layouts) -> Operation:
    """Do the next step and answer the operation with the one after it; doing a step again changes nothing."""
    match operation.step:
        case "discover-subscriptions":
            return _discover_subscriptions(operation, segments, layouts)
        case "create-children" | "create-merged":
            return _create_children(operation, segments, layouts)
        case "terminate-parent" | "terminate-parents":
            return _terminate_parents(operation, segments, layouts)
        case "update-layout":
            return _update_layout(operation, segments, layouts)
        case "notify-consumers":
            return _notify_consumers(operation, segments, layouts)
        case "done" | "superseded":
            return operation
        case _:
            raise ValueError(f"the {operation.kind} {operation.id} is not carried out by steps of splits and merges")


def _changed(
    kind: str, layout: SegmentLayout, parents: Sequence[int], now_ms: int, bucket_count: int | None
) -> SegmentLayout:  # fmt: skip
    if kind == "split":
        return layout.split_segment(parents[0], now_ms)
    if kind == "rebucket":
        return layout.rebucket_segment(parents[0], bucket_count or 1, now_ms)
    return layout.merge_segments(parents[0], parents[1], now_ms, bucket_count or MAX_ENTRY_BUCKETS)


def _discover_subscriptions(operation: Operation, segments: SegmentStore, layouts: Layouts) -> Operation:
    """Step 1: what the parents have, and what is registered; a merge takes the union."""
    found = set(layouts.subscriptions(operation.topic))
    for parent in operation.parent_topics:
        try:
            found.update(segments.subscriptions(parent))
        except SegmentNotFound:
            # A missing parent has no subscriptions; the step that terminates parents makes it.
            continue
    return _next(operation, subscriptions=tuple(sorted(found)))


def _create_children(operation: Operation, segments: SegmentStore, layouts: Layouts) -> Operation:
    """Step 2: the children with all subscriptions at earliest."""
    for child in operation.children:
        # A node that was replaced would make what nobody removes.
        layouts.read(operation.topic)
        _create(operation, child, segments)
    return _next(operation)


def _terminate_parents(operation: Operation, segments: SegmentStore, layouts: Layouts) -> Operation:
    """Step 3, the first that cannot be undone: so the plan is checked once more; one parent after the other."""
    stored = layouts.read(operation.topic)
    if stored is None:
        return _superseded(operation, segments, None)
    if not _is_published(operation, stored.layout):
        try:
            after = _after(operation, stored.layout)
        except LayoutError:
            return _superseded(operation, segments, stored.layout)
        if _added(stored.layout, after) != operation.children:
            return _planned_again(operation, segments, stored.layout, after)
    for descriptor, parent in zip(operation.segments, operation.parent_topics, strict=True):
        try:
            segments.terminate(parent)
        except SegmentNotFound:
            # An active segment whose topic was never made or is lost: as an empty one it takes part like any other.
            layouts.read(operation.topic)
            _create(operation, descriptor, segments)
            segments.terminate(parent)
    return _next(operation)


def _update_layout(operation: Operation, segments: SegmentStore, layouts: Layouts) -> Operation:
    """Step 4: the parents SEALED and the children ACTIVE in one compare-and-set."""
    for _ in range(MAX_ATTEMPTS):
        stored = layouts.read(operation.topic)
        if stored is None:
            return _superseded(operation, segments, None)
        if _is_published(operation, stored.layout):
            return _next(operation)
        try:
            after = _after(operation, stored.layout)
        except LayoutError:
            return _superseded(operation, segments, stored.layout)
        if _added(stored.layout, after) != operation.children:
            return _planned_again(operation, segments, stored.layout, after)
        if layouts.replace(operation, stored.version, after):
            return _next(operation)
    raise Conflict(
        f"Concurrent modification of {operation.topic}: {MAX_ATTEMPTS} attempts came too late; resume {operation.id}"
    )


def _notify_consumers(operation: Operation, segments: SegmentStore, layouts: Layouts) -> Operation:
    """Step 5. Subscriptions that came or went since step 1 reach the children first.

    A new subscription is registered before the layout is read that says on which segments it is made. So either that
    read the new layout and reaches the children itself, or it was registered before the change and is seen here; the
    children keep everything, so "earliest" misses nothing.
    """
    stored = layouts.read(operation.topic)
    if stored is None:
        _delete_children(operation, segments, None)
        return _next(operation)
    wanted = set(layouts.subscriptions(operation.topic))
    complete = True
    for parent in operation.parent_topics:
        try:
            wanted.update(segments.subscriptions(parent))
        except SegmentNotFound:
            complete = False
    deleted = set(operation.subscriptions) - wanted if complete else set()
    for child in operation.child_topics:
        for subscription in sorted(wanted - set(operation.subscriptions)):
            segments.create_subscription(child, subscription, "earliest")
        for subscription in sorted(deleted):
            segments.delete_subscription(child, subscription)
    layouts.notify(operation, stored.layout)
    return _next(operation)


def _next(operation: Operation, subscriptions: tuple[str, ...] | None = None) -> Operation:
    following = operation.steps[operation.steps.index(operation.step) + 1]
    found = operation.subscriptions if subscriptions is None else subscriptions
    return operation.model_copy(update={"step": following, "subscriptions": found})


def _planned_again(
    operation: Operation, segments: SegmentStore, before: SegmentLayout, after: SegmentLayout
) -> Operation:
    """Somebody took the ids of the children: others are made, and the parents, terminated or not, wait for them."""
    _delete_children(operation, segments, before)
    return operation.model_copy(update={"step": operation.steps[0], "children": _added(before, after)})


def _superseded(operation: Operation, segments: SegmentStore, layout: SegmentLayout | None) -> Operation:
    """The topic or the parents are gone: what was made for nothing goes too."""
    _delete_children(operation, segments, layout)
    return operation.model_copy(update={"step": "superseded"})


def _delete_children(operation: Operation, segments: SegmentStore, layout: SegmentLayout | None) -> None:
    """Only those that no layout names."""
    named = {segment.descriptor for segment in layout.segments.values()} if layout else set()
    for descriptor, child in zip(operation.children, operation.child_topics, strict=True):
        if descriptor not in named:
            segments.delete(child)


def _create(operation: Operation, descriptor: str, segments: SegmentStore) -> None:
    start, end, segment_id = parse_segment_descriptor(descriptor)
    segments.create(operation.topic, segment_id, HashRange(start=start, end=end), operation.subscriptions)


def _after(operation: Operation, layout: SegmentLayout) -> SegmentLayout:
    """The layout with the operation applied; `LayoutError` when its parents are not there and active."""
    parents = [parse_segment_descriptor(descriptor).segment_id for descriptor in operation.segments]
    for parent, descriptor in zip(parents, operation.segments, strict=True):
        if parent not in layout.segments or layout.segments[parent].descriptor != descriptor:
            raise LayoutArgumentError(f"segment not found: {descriptor}")
    return _changed(operation.kind, layout, parents, operation.started_at, operation.bucket_count)


def _added(before: SegmentLayout, after: SegmentLayout) -> tuple[str, ...]:
    return tuple(after.segments[id].descriptor for id in sorted(after.segments.keys() - before.segments.keys()))


def _is_published(operation: Operation, layout: SegmentLayout) -> bool:
    """Whether the layout has the children: the compare-and-set was done, and only its saving was not."""
    named = {segment.descriptor for segment in layout.segments.values()}
    return named.issuperset(operation.children)
