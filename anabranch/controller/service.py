"""Operations on scalable topics: PIP-468's ScalableTopicService, on one of any number of nodes.

Stage: between the app and the store. Every operation is one transaction that holds the change and its announcement.
Only the leader changes a topic: another node raises `NotLeader`. A layout is read, changed by `decisions.topic.layout`
and written by compare-and-set; the loser of a race reads again, so that of two splits of the same segment one succeeds
and the other learns that the segment is no longer active.
"""

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from anabranch.controller.errors import Conflict, NotFound, PreconditionFailed, Unavailable
from anabranch.controller.layouts.reader import life_of, no_topic
from anabranch.controller.layouts.store import LayoutStore
from anabranch.controller.leadership.leaders import Leaders, Term
from anabranch.controller.loads import ReportedLoads
from anabranch.controller.operations.adoption import Adoption
from anabranch.controller.operations.journal import Operation, list_operations
from anabranch.controller.operations.pruning import KeptSegment, Pruning
from anabranch.controller.operations.runner import OperationRunner
from anabranch.controller.outbox.announcements import consumer_announcement, layout_announcement
from anabranch.controller.policies import EffectivePolicy, check_override, effective_policy
from anabranch.controller.segments.base import SegmentStore, SegmentStoreError
from anabranch.controller.segments.no_segments import NoSegments
from anabranch.controller.segments.owners import SegmentOwners
from decisions.autoscale.policy import ClusterPolicy, Policy, resolve_policy
from decisions.topic.layout import HASH_SPACE, SegmentLayout
from decisions.topic.segment import segment_topic
from schemas.ids import topic_parts
from schemas.metadata import AutoScalePolicyOverride, HashRange

MAX_PROPERTIES_BYTES = 65_536
MAX_ATTEMPTS = 64
"""Consecutive races that an operation may lose before it gives up with 409."""


def wall_clock_ms() -> int:
    """Return milliseconds since 1970-01-01T00:00:00Z."""
    return time.time_ns() // 1_000_000


class Observed(NamedTuple):
    """External observations shown in stats."""

    loads: ReportedLoads
    owners: SegmentOwners | None


class ScalableTopicService:
    """All operations of the admin interface. Refusals are `ControllerError`s and change nothing."""

    def __init__(
        self,
        store: LayoutStore,
        leaders: Leaders,
        operations: OperationRunner,
        segments: SegmentStore,
        pruning: Pruning,
        policy: ClusterPolicy,
        observed: Observed,
        now_ms: Callable[[], int],
    ) -> None:
        self._store, self._leaders, self._operations, self._segments = store, leaders, operations, segments
        self._pruning, self._policy, self._observed = pruning, policy, observed
        self._now_ms = now_ms

    def create_topic(
        self, topic: str, initial_segments: int, properties: dict[str, str], adoption: Adoption | None = None
    ) -> None:
        """Create a topic with `initial_segments` equal segments (1 to 65,536).

        `adoption`: with partitions of a plain Kafka topic as their parents, and its consumer groups as subscriptions.
        """
        if not 1 <= initial_segments <= HASH_SPACE:
            bound = ">= 1" if initial_segments < 1 else f"<= {HASH_SPACE}"
            raise PreconditionFailed(f"numInitialSegments must be {bound}")
        if sum(len(key.encode()) + len(value.encode()) for key, value in properties.items()) > MAX_PROPERTIES_BYTES:
            raise PreconditionFailed(f"the properties are above {MAX_PROPERTIES_BYTES} bytes")
        now = self._now_ms()
        self._segments.of_incarnation(now).check_topic(topic)
        with self._operations.locked(topic) as term:
            if self._store.has_topic(topic):
                raise Conflict(f"Scalable topic already exists: {topic}")
            self._end_earlier_life(term)
            budget = self._policy_of(topic_parts(topic).full_namespace, None).entry_bucket_budget
            layout = replace(
                SegmentLayout.create(initial_segments, now, properties, budget), created_at_ms=self._store.new_life(now)
            )
            if adoption is not None:
                layout = adoption.applied_to(layout, now)
            metadata = layout.to_metadata()
            announcement = layout_announcement(topic, "created", metadata, now)
            subscriptions = adoption.subscriptions if adoption is not None else {}
            self._store.check_fits(topic, metadata, announcement)
            if not isinstance(self._segments, NoSegments):
                segments = self._segments.of_layout(layout)
                if adoption is not None:
                    adoption.check(topic, layout, segments, self._store)
                # If this is killed or refused after this point, the next leader removes the segments.
                with self._store.write(term) as transaction:
                    transaction.begin_creation(topic, metadata)
                self._operations.mark_unsettled(topic)
                if adoption is not None:
                    # Again, as others see it now: of two at the same moment, one at most succeeds.
                    adoption.check_unclaimed(topic, self._store)
                for segment in layout.active:
                    hash_range = HashRange(start=segment.start, end=segment.end)
                    segments.create(topic, segment.segment_id, hash_range, subscriptions)
                if adoption is not None:
                    adoption.set_positions(topic, layout, segments)
            try:
                with self._store.write(term) as transaction:
                    transaction.end_creation(topic)
                    if not transaction.insert_topic(topic, metadata):
                        raise Conflict(f"Scalable topic already exists: {topic}")
                    transaction.announce(announcement)
                    for name in subscriptions:
                        transaction.insert_subscription(topic, name, "STREAM")
                        created_at = layout.created_at_ms
                        transaction.announce(
                            consumer_announcement(topic, name, "STREAM", "snapshot", 0, now, created_at=created_at)
                        )
            except (Conflict, Unavailable):
                # Another leader undoes this creation as far as it sees it.
                for segment in layout.segments.values():
                    self._segments.of_incarnation(layout.created_at_ms).delete(segment_topic(topic, segment))
                raise

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its subscriptions; the last announcement contains its final layout."""
        self._operations.delete(topic)
        self._leaders.release(topic)

    def _end_earlier_life(self, term: Term) -> None:
        """Finish what was begun for an earlier topic of that name, so that it cannot affect the new one."""
        try:
            self._operations.finish_open(term)
        except SegmentStoreError as error:
            raise SegmentStoreError(f"what was begun for an earlier {term.topic} has not ended yet: {error}") from error
        self._store.clear(term)

    def adopt_topic(self, topic: str, adoption: Adoption | None) -> None:
        """Create a topic from a plain Kafka topic that was sealed before; None: there is nothing to adopt.

        Raises `Conflict` for a scalable topic.
        """
        if adoption is not None:
            if isinstance(self._segments, NoSegments):
                raise PreconditionFailed('only a controller with controller.segments = "kafka" adopts Kafka topics')
            if adoption.fault is not None:
                raise PreconditionFailed(adoption.fault)
            self.create_topic(topic, adoption.segments, {}, adoption)
            return
        if self._store.synced().has_topic(topic):
            raise Conflict(f"Topic is already scalable: {topic}")
        raise NotFound(f"no topic to migrate: {topic}; this controller has scalable topics only, create it as one")

    def list_topics(self, namespace: str, filters: Iterable[tuple[str, str]] = ()) -> list[str]:
        """Return the names of a namespace's topics that have all of the given properties, sorted."""
        wanted, topics = list(filters), []
        for topic, layout in self._store.synced().topics_of(namespace):
            has = (json.loads(layout).get("properties") or {}) if wanted else {}
            if all(has.get(key) == value for key, value in wanted):
                topics.append(topic)
        return topics

    def layout_json(self, topic: str) -> str:
        """Return the layout record (`ScalableTopicMetadata`) as JSON."""
        if (layout := self._store.synced().layout_json(topic)) is None:
            raise no_topic(topic)
        return layout

    def stats(self, topic: str) -> dict[str, Any]:
        """Return counts and details of segments, sessions, and the effective policy.

        Each segment has its name, state, owner and latest load; loads and policy as in PIP-483 "Observability". Unknown
        values are omitted: a load that was not reported recently, an owner without segment topics.
        """
        stored = self._store.synced().existing_topic(topic)
        subscriptions = self._store.subscriptions(topic)
        layout = SegmentLayout.from_metadata(stored.metadata)
        loads, born = self._observed.loads.of(topic), layout.created_at_ms or 0
        names = {id: segment_topic(topic, segment) for id, segment in layout.segments.items()}
        owners = {}
        if self._observed.owners is not None:
            active = [names[segment.segment_id] for segment in layout.active]
            owners = self._observed.owners.of(topic, layout.created_at_ms, active)
        segments: dict[int, dict[str, Any]] = {}
        for id, segment in layout.segments.items():
            segments[id] = {"name": names[id], "state": segment.state.value}
            if segment.entry_bucket_splits is not None:
                segments[id]["entryBuckets"] = segment.bucket_count
            if names[id] in owners:
                segments[id]["ownerBroker"] = owners[names[id]]
            # An earlier load is that of a deleted topic of this name.
            if id in loads and loads[id].at >= born:
                segments[id]["load"] = loads[id].model_dump(mode="json", by_alias=True)
        return {
            "epoch": layout.epoch,
            "totalSegments": len(layout.segments),
            "activeSegments": len(layout.active),
            "sealedSegments": len(layout.segments) - len(layout.active),
            "segments": segments,
            "subscriptions": {name: {"consumerCount": consumers} for name, _, consumers in subscriptions},
            "effectivePolicy": self.effective_policy(topic).model_dump(mode="json", by_alias=True),
        }

    def life(self, topic: str) -> int | None:
        """Return the incarnation of a topic; None without the topic, or if unknown."""
        layout = self._store.layout_json(topic)
        return None if layout is None else life_of(layout)

    def has_segment(self, topic: str, descriptor: str) -> bool:
        """Return whether the layout of a topic has a segment; False without the topic."""
        layout = self.layout(topic)
        return layout is not None and any(segment.descriptor == descriptor for segment in layout.segments.values())

    def layout(self, topic: str) -> SegmentLayout | None:
        """Return the layout of a topic; None without the topic."""
        stored = self._store.synced().topic(topic)
        return SegmentLayout.from_metadata(stored.metadata) if stored else None

    def split_segment(
        self, topic: str, segment: int, decision_id: str | None = None, meant_for: str | None = None
    ) -> None:
        """Split an active segment at its middle (PIP-468 "Split Protocol"), as `OperationRunner.run` does."""
        self._operations.run(topic, "split", [segment], decision_id, meant_for)

    def merge_segments(
        self, topic: str, first: int, second: int, decision_id: str | None = None, meant_for: str | None = None
    ) -> None:
        """Merge two adjacent active segments; parents keep the order of the call (PIP-468 "Merge Protocol")."""
        most = self._topic_policy(topic).max_entry_buckets_per_segment
        self._operations.run(topic, "merge", [first, second], decision_id, meant_for, most)

    def rebucket_segment(
        self, topic: str, segment: int, bucket_count: int, decision_id: str | None = None, meant_for: str | None = None
    ) -> None:
        """Replace an active segment by one of the same range with `bucket_count` entry buckets of equal width."""
        most = self._topic_policy(topic).max_entry_buckets_per_segment
        if not 1 <= bucket_count <= most:
            raise PreconditionFailed(f"bucketCount must be from 1 to {most}, got: {bucket_count}")
        self._operations.run(topic, "rebucket", [segment], decision_id, meant_for, bucket_count)

    def operations(self, topic: str) -> list[Operation]:
        """Return the newest operations on segments of a topic with their progress, newest first."""
        self._store.synced().check_topic(topic)
        return list_operations(self._store, topic)

    def sealed(self, topic: str) -> list[KeptSegment]:
        """Return the sealed segments of a topic with the reason for keeping each, oldest first."""
        return self._pruning.kept(topic)

    def policy(self, topic: str) -> AutoScalePolicyOverride | None:
        """Return the override of a topic as it was set, None if there is none."""
        return self._store.synced().existing_topic(topic).metadata.auto_scale_policy

    def _topic_policy(self, topic: str) -> Policy:
        return self._policy_of(topic_parts(topic).full_namespace, self.policy(topic))

    def _policy_of(self, namespace: str, own: AutoScalePolicyOverride | None) -> Policy:
        return resolve_policy(*self._policy, self._store.namespace_policy(namespace), own).policy

    def effective_policy(self, topic: str) -> EffectivePolicy:
        """Return the resolved policy of a topic, with the origin of each value."""
        namespace = self._store.namespace_policy(topic_parts(topic).full_namespace)
        return effective_policy(self._policy, namespace, self.policy(topic))

    def set_policy(self, topic: str, policy: AutoScalePolicyOverride | None) -> None:
        """Replace the override of a topic; None removes it. Checked against the override of its namespace."""
        self._store.check_topic(topic)
        namespace = self._store.namespace_policy(topic_parts(topic).full_namespace)
        if policy is not None:
            check_override(self._policy, namespace, policy)
        elif self.policy(topic) is None:
            return
        self._change_policy(topic, policy)

    def _change_policy(self, topic: str, policy: AutoScalePolicyOverride | None) -> None:
        """Compare-and-set: change the current layout, and read it again after losing a race."""
        for _ in range(MAX_ATTEMPTS):
            term = self._leaders.lead(topic)
            stored = self._store.existing_topic(topic)
            metadata = SegmentLayout.from_metadata(stored.metadata).with_policy(policy).to_metadata()
            announcement = layout_announcement(topic, "policy", metadata, self._now_ms())
            with self._store.write(term) as transaction:
                if transaction.replace_layout(topic, stored.version, metadata):
                    transaction.announce(announcement)
                    return
        raise Conflict(f"Concurrent modification of {topic}: {MAX_ATTEMPTS} attempts came too late; try again")
