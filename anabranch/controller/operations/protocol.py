"""Split, merge and rebucket as repeatable steps (PIP-468 "Split Protocol", "Merge Protocol").

This is the sealing protocol of the PIP: "terminate" makes a segment refuse writes, then the layout shows it as SEALED.
A rebucket is a split with one child: a successor of the same range.

An operation is a value. It is saved before its first step and after each one, so after a crash it continues with the
step that was under way; repeating a step changes nothing that was done. The order is the guarantee:

- the children exist with all subscriptions before a parent is terminated, so the first message of a redirected
  producer has readers;
- the parents are terminated before the layout says so, so parent and child never accept writes at the same time;
- once a parent may have been terminated an operation only goes forward: no terminated parent stays ACTIVE.

At most one operation of a topic may be open, and nothing else may add or seal segments of that topic meanwhile; changes
of policies and pruning of sealed segments are harmless. If it happens nevertheless, the children are planned again when
their ids are taken, and the operation is superseded when its parents have changed; a parent that was terminated for it
and is still ACTIVE then accepts no writes until it is split or merged again.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol

from anabranch.controller.errors import Conflict
from anabranch.controller.operations.journal import STEPS_SPLIT, Operation
from anabranch.controller.segments.base import SegmentNotFound, SegmentStore
from decisions.topic.layout import LayoutArgumentError, LayoutError, SegmentLayout
from decisions.topic.names import parse_segment_descriptor
from schemas.metadata import MAX_ENTRY_BUCKETS, HashRange

MAX_ATTEMPTS = 64
"""Consecutive compare-and-sets that may fail before the operation has to be resumed."""


class StoredLayout(NamedTuple):
    """A topic's layout and the version for a compare-and-set."""

    version: int
    layout: SegmentLayout


class Layouts(Protocol):
    """The protocol's interface to the stores of layouts and sessions."""

    def read(self, topic: str) -> StoredLayout | None:
        """Return the layout as last committed; None if the topic is gone. Raises when another node leads it."""

    def replace(self, operation: Operation, version: int, layout: SegmentLayout) -> bool:
        """Compare-and-set with its announcement, in one transaction; return False if `version` is outdated."""

    def subscriptions(self, topic: str) -> Sequence[str]:
        """Return the subscriptions registered for the topic."""

    def notify(self, operation: Operation, layout: SegmentLayout) -> None:
        """Push the new assignments to the consumers; may be repeated."""


Save = Callable[[Operation], None]
"""Stores an operation durably, replacing the stored one with its id."""


Kind = Literal["split", "merge", "rebucket"]


def plan(
    kind: Kind,
    topic: str,
    layout: SegmentLayout,
    parents: Sequence[int],
    id: str,
    now_ms: int,
    decision_id: str | None = None,
    bucket_count: int | None = None,
) -> tuple[Operation, SegmentLayout]:
    """Plan a change of active segments; return the operation and the layout after it.

    Raises `LayoutError` when the layout does not allow it. `bucket_count`: entry buckets of a rebucket's successor, or
    the maximum for a merge.
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
    """Carry out the remaining steps of a saved operation, and return it as it ended.

    Errors of the stores pass through; the operation is then saved with its progress, and resuming continues there.
    """
    while not operation.has_ended:
        operation = run_step(operation, segments, layouts)
        save(operation)
    return operation


def run_step(operation: Operation, segments: SegmentStore, layouts: Layouts) -> Operation:
    """Do the next step and return the operation with the one after it; repeating a step changes nothing."""
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
) -> SegmentLayout:
    if kind == "split":
        return layout.split_segment(parents[0], now_ms)
    if kind == "rebucket":
        return layout.rebucket_segment(parents[0], bucket_count or 1, now_ms)
    return layout.merge_segments(parents[0], parents[1], now_ms, bucket_count or MAX_ENTRY_BUCKETS)


def _discover_subscriptions(operation: Operation, segments: SegmentStore, layouts: Layouts) -> Operation:
    """Step 1: collect the subscriptions of the parents and the registered ones; a merge takes the union."""
    names = set(layouts.subscriptions(operation.topic))
    for parent in operation.parent_topics:
        try:
            names.update(segments.subscriptions(parent))
        except SegmentNotFound:
            # A missing parent has no subscriptions; the step that terminates parents creates it.
            continue
    return _next(operation, subscriptions=tuple(sorted(names)))


def _create_children(operation: Operation, segments: SegmentStore, layouts: Layouts) -> Operation:
    """Step 2: create the children with all subscriptions at earliest."""
    for child in operation.children:
        # Checks the leadership: a replaced node would create a segment that nobody removes.
        layouts.read(operation.topic)
        _create(operation, child, segments)
    return _next(operation)


def _terminate_parents(operation: Operation, segments: SegmentStore, layouts: Layouts) -> Operation:
    """Step 3, the first irreversible one: check the plan once more, then terminate each parent."""
    if (stored := layouts.read(operation.topic)) is None:
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
            # An active segment whose topic was never created or is lost: create it empty, so that it can be terminated.
            layouts.read(operation.topic)
            _create(operation, descriptor, segments)
            segments.terminate(parent)
    return _next(operation)


def _update_layout(operation: Operation, segments: SegmentStore, layouts: Layouts) -> Operation:
    """Step 4: the parents SEALED and the children ACTIVE in one compare-and-set."""
    for _ in range(MAX_ATTEMPTS):
        if (stored := layouts.read(operation.topic)) is None:
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
    """Step 5: apply subscriptions that came or went since step 1 to the children, then notify consumers.

    A new subscription is registered before its creator reads the layout that lists its segments. So either that read
    returns the new layout and covers the children, or it was registered before the change and is seen here; the
    children keep everything, so "earliest" misses nothing.
    """
    if (stored := layouts.read(operation.topic)) is None:
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
    discovered = operation.subscriptions if subscriptions is None else subscriptions
    return operation.model_copy(update={"step": following, "subscriptions": discovered})


def _planned_again(
    operation: Operation, segments: SegmentStore, before: SegmentLayout, after: SegmentLayout
) -> Operation:
    """Plan new children because their ids were taken; the parents, terminated or not, wait for them."""
    _delete_children(operation, segments, before)
    return operation.model_copy(update={"step": operation.steps[0], "children": _added(before, after)})


def _superseded(operation: Operation, segments: SegmentStore, layout: SegmentLayout | None) -> Operation:
    """End the operation because the topic or the parents are gone, and remove its unused children."""
    _delete_children(operation, segments, layout)
    return operation.model_copy(update={"step": "superseded"})


def _delete_children(operation: Operation, segments: SegmentStore, layout: SegmentLayout | None) -> None:
    """Delete the children that no layout names."""
    named = {segment.descriptor for segment in layout.segments.values()} if layout else set()
    for descriptor, child in zip(operation.children, operation.child_topics, strict=True):
        if descriptor not in named:
            segments.delete(child)


def _create(operation: Operation, descriptor: str, segments: SegmentStore) -> None:
    start, end, segment_id = parse_segment_descriptor(descriptor)
    segments.create(operation.topic, segment_id, HashRange(start=start, end=end), operation.subscriptions)


def _after(operation: Operation, layout: SegmentLayout) -> SegmentLayout:
    """Return the layout after the operation. Raises `LayoutError` unless its parents are there and active."""
    parents = [parse_segment_descriptor(descriptor).segment_id for descriptor in operation.segments]
    for parent, descriptor in zip(parents, operation.segments, strict=True):
        if parent not in layout.segments or layout.segments[parent].descriptor != descriptor:
            raise LayoutArgumentError(f"segment not found: {descriptor}")
    return _changed(operation.kind, layout, parents, operation.started_at, operation.bucket_count)


def _added(before: SegmentLayout, after: SegmentLayout) -> tuple[str, ...]:
    return tuple(after.segments[id].descriptor for id in sorted(after.segments.keys() - before.segments.keys()))


def _is_published(operation: Operation, layout: SegmentLayout) -> bool:
    """Return whether the layout has the children: the compare-and-set succeeded, only saving it did not."""
    return {segment.descriptor for segment in layout.segments.values()}.issuperset(operation.children)
