"""What a bucket remembers of its topics: layout, consumers, clocks, the open decision, the last hold, and policies.

Stage: the state of the family, without its loads (`engine.autoscale.loads`). Its bytes are
`engine.autoscale.topics_codec`. The rules by which clocks change are `decisions.autoscale.clocks`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from decisions.autoscale.clocks import Cooldowns, Failures, OpenDecision
from decisions.topic.layout import SegmentLayout
from engine.kernel.generations import Generations
from schemas.ids import canonical_json, decision_id
from schemas.metadata import AutoScalePolicyOverride, Profile, ScalableTopicMetadata

MAX_DELETED = 1_000
"""Deleted topics of a bucket that are remembered, so that announcements that come late do not bring them back."""


@dataclass
class TopicState:
    """What is known of one topic; instants are milliseconds since 1970."""

    name: str
    metadata_json: str | None = None
    """The layout's record; as JSON, because ten segments are 3 kB so and 30 kB as models."""
    consumers: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Subscription to (type, sessions)."""
    cooldowns: Cooldowns = field(default_factory=Cooldowns)
    merge_depths: dict[int, int] = field(default_factory=dict)
    """Merges in the lineage of each segment, kept through pruning."""
    open_decision: OpenDecision | None = None
    failures: Failures = field(default_factory=Failures)
    attempt_of: str | None = None
    """What the last decision was, and on which epoch; the same again is the next attempt."""
    attempts: int = 0
    decision_seq: int = 0
    hold_seq: int = 0
    hold_gate: str | None = None
    layout_sender: int = 0
    """Whose announcement the layout is (`schemas.messages.Sender`)."""
    consumers_sender: int = 0
    """Whose the newest one about consumers is."""
    due: int | None = None
    """The instant for which an extra tick was last asked."""

    @cached_property
    def layout(self) -> SegmentLayout | None:
        """The layout as the decisions see it; reset by `BucketState.set_layout`."""
        if self.metadata_json is None:
            return None
        return SegmentLayout.from_metadata(ScalableTopicMetadata.model_validate_json(self.metadata_json))

    @cached_property
    def active_ids(self) -> frozenset[int]:
        """Ids of the active segments; empty when no layout is known."""
        return frozenset(segment.segment_id for segment in self.layout.active) if self.layout else frozenset()

    @property
    def override(self) -> AutoScalePolicyOverride | None:
        """The topic's own policy override, which travels in its metadata."""
        return self.layout.auto_scale_policy if self.layout else None

    def decided(self, epoch: int, action: str, segments: list[int], now: int) -> str:
        """A decision has been taken: it is open from `now` on. Answers its id."""
        attempt_of = canonical_json([epoch, action, segments])
        self.attempts = self.attempts + 1 if self.attempt_of == attempt_of else 1
        self.attempt_of = attempt_of
        known = self.layout.segments if self.layout else {}
        created = [known[i].created_at_ms if i in known else 0 for i in segments]
        identity = decision_id(self.name, epoch, action, segments, self.attempts, created)
        self.open_decision = OpenDecision(identity, epoch, now, action)
        self.hold_gate = None
        self.decision_seq += 1
        return identity

    def hold_at(self, gate: str) -> None:
        """Another gate has become the binding one."""
        self.hold_gate = gate
        self.hold_seq += 1


class ConfiguredPolicy(NamedTuple):
    """A profile and what is laid over it for every topic, as the job's own message says it."""

    profile: Profile
    override: str | None
    """As JSON."""


@dataclass
class BucketState:
    """All topics of a bucket, and the policies that reach every bucket."""

    topics: dict[str, TopicState] = field(default_factory=dict)
    configured: ConfiguredPolicy | None = None
    """The cluster's policy as the job is configured with it. None: the job's message has not come yet, and nothing is
    decided until it has."""
    cluster_policy: str | None = None
    """An override of the cluster, as JSON, that replaces the configured one; None: there is none."""
    namespace_policies: dict[str, str] = field(default_factory=dict)
    """`tenant/namespace` to its override as JSON."""
    policy_senders: dict[str, int] = field(default_factory=dict)
    """Whose announcement the override of a namespace is, or of the cluster (empty name), gone ones included."""
    deleted_by: dict[str, int] = field(default_factory=dict)
    """Topics that are gone and who said so, the newest `MAX_DELETED`: what comes late does not bring them back."""
    changed: set[str] = field(default_factory=set)
    """Topics that differ from what was packed."""
    header_changed: bool = False
    without_layout: int = 0
    """Topics whose layout is not known."""
    changes: Generations = field(default_factory=Generations)
    """When anything of a topic changed last."""
    layouts: Generations = field(default_factory=Generations)
    """When the layout of a topic changed last."""
    policy_generation: int = 0
    """When a policy of more than one topic changed last."""

    @property
    def is_changed(self) -> bool:
        """Whether the packed form does not hold everything yet."""
        return bool(self.changed) or self.header_changed

    def touch(self, name: str) -> TopicState:
        """The topic's state, made if it is new, and marked as changed."""
        self.changed.add(name)
        self.changes.change(name)
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = TopicState(name)
            self.without_layout += 1
        return topic

    def set_layout(self, topic: TopicState, metadata_json: str, layout: SegmentLayout) -> None:
        """Takes over a newer layout and the record that it was read off."""
        self.without_layout -= topic.metadata_json is None
        topic.metadata_json = metadata_json
        topic.__dict__.pop("active_ids", None)
        topic.__dict__["layout"] = layout
        self.layouts.change(topic.name)

    def remove(self, name: str, sender: int | None = None) -> None:
        """Forgets a topic, as `sender` has said."""
        if sender is not None:
            self.deleted_by.pop(name, None)
            self.deleted_by[name] = sender
            while len(self.deleted_by) > MAX_DELETED:
                del self.deleted_by[next(iter(self.deleted_by))]
            self.header_changed = True
        topic = self.topics.pop(name, None)
        if topic is not None:
            self.without_layout -= topic.metadata_json is None
            self.changed.add(name)
            self.changes.change(name)
            self.layouts.change(name)

    def set_policy(self, namespace: str | None, override: str | None) -> bool:
        """Takes over the override of a namespace, or of the cluster; answers whether it is another than before."""
        if namespace is None:
            changed, self.cluster_policy = self.cluster_policy != override, override
        else:
            changed = self.namespace_policies.get(namespace) != override
            self.namespace_policies.pop(namespace, None)
            if override is not None:
                self.namespace_policies[namespace] = override
        if changed:
            self.header_changed = True
            self.policy_generation += 1
        return changed

    def set_configured(self, configured: ConfiguredPolicy) -> bool:
        """Takes over what the job is configured with; answers whether it is another than before."""
        changed, self.configured = self.configured != configured, configured
        if changed:
            self.header_changed = True
            self.policy_generation += 1
        return changed

    def forget_changes(self) -> None:
        """All of it is packed."""
        self.changed.clear()
        self.header_changed = False
