"""State of a bucket's topics: layout, consumers, clocks, open decisions, last hold, and policies.

Stage: the state of the family except loads (`engine.autoscale.loads`). `engine.autoscale.topics_codec` defines the
bytes, `decisions.autoscale.clocks` the clock rules.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import msgspec

from decisions.autoscale.clocks import Cooldowns, Failures, OpenDecision, not_after
from decisions.autoscale.hot_keys import HotKey
from decisions.autoscale.past import Past
from decisions.autoscale.snapshot import OpenAction
from decisions.topic.layout import SegmentLayout
from engine.autoscale.layouts import KnownLayout
from engine.kernel.generations import Generations
from schemas.ids import canonical_json, decision_id
from schemas.metadata import Profile

MAX_DELETED = 1_000
"""Deleted topics remembered per bucket, so that late announcements do not revive them."""
REMEMBERED_MS = 7 * 86_400_000
"""Time for which deletions are remembered: as long as Kafka keeps the announcements."""
OBSERVED_AGAIN_MS = 900_000
"""An observed decision is taken again after this time if the topic still needs it."""
MAX_WAIT_FOR_LAYOUT_MS = 3_600_000
"""A topic of which only consumers are known is dropped when its layout has not come for this long."""


class TopicEnd(NamedTuple):
    """End of a topic's last incarnation."""

    at: int
    """Time of deletion; not after the batch that reported it."""
    created_at: int | None
    """Start of that incarnation, as announced; None if not announced."""
    sender: int
    """Sender of the deletion."""
    noted_at: int | None
    """Time of the batch that reported it; None: stored by an older release."""


class PolicySender(NamedTuple):
    """Sender of an announcement, and the time of its batch."""

    sender: int
    at: int


class TopicState(msgspec.Struct, array_like=True, gc=False):
    """State of one topic; instants are milliseconds since 1970.

    Stored as is, with fields in this order: add a field at the end, with a default for topics stored before.
    """

    name: str
    created_at: int | None = None
    """Announced start of the topic's incarnation (`schemas.kafka.messages.LayoutEvent`); None if unknown."""
    since: int = 0
    """Start by the job's clock: older loads do not belong to this incarnation. 0: unknown."""
    heard_at: int = 0
    """Time of the batch with the newest announcement of consumers, as long as there is no layout."""
    known: KnownLayout | None = None
    """The newest layout; None before the first."""
    consumers: dict[str, tuple[str, int]] = {}
    """Subscription to (type, sessions)."""
    cooldowns: Cooldowns = Cooldowns()
    merge_depths: dict[int, int] = {}
    """Merge depth of each active segment when it was made, kept through pruning."""
    open_decision: OpenDecision | None = None
    """The oldest open decision; `further_open` holds the others."""
    failures: Failures = Failures()
    attempt_of: str | None = None
    """Identity of the last decision as older releases stored it."""
    attempts: int = 0
    decision_seq: int = 0
    hold_seq: int = 0
    hold_gate: str | None = None
    layout_sender: int = 0
    """Sender of the layout (`schemas.kafka.messages.Sender`)."""
    consumers_sender: int = 0
    """Sender of the newest announcement of consumers."""
    due: int | None = None
    """Instant of the last extra tick requested."""
    observed_at: int | None = None
    """Time at which the last decision ended as observed, if nothing was decided or held since."""
    further_open: tuple[OpenDecision, ...] = ()
    """Further decisions of the same evaluation, on other parts of the key space (guard `parallelActions`)."""
    attempted: dict[str, int] = {}
    """Decisions on the newest epoch by identity, with their count; a repetition is the next attempt."""
    pasts: dict[int, Past] = {}
    """History of active segments, kept through pruning (guard `settleSeconds`)."""
    hot_keys: tuple[HotKey, ...] = ()
    """Hot keys found (guard `hotKeySplits`)."""

    @property
    def layout(self) -> SegmentLayout | None:
        """The layout in the form that decisions use, decoded on each access."""
        return None if self.known is None else self.known.layout

    @property
    def metadata_json(self) -> str | None:
        """The layout's record in JSON; built on access."""
        return None if self.known is None else self.known.metadata_json

    @property
    def active_ids(self) -> frozenset[int]:
        """Ids of the active segments; empty without a layout."""
        return frozenset() if self.known is None else frozenset(self.known.active_ids)

    @property
    def override(self) -> str | None:
        """The topic's own policy override, JSON, which is part of its metadata."""
        return None if self.known is None else self.known.override

    def decided(self, epoch: int, action: str, arguments: Mapping[str, Any], now: int) -> str:
        """Open a decision at `now` and return its id."""
        segments, this = arguments["segments"], _identity(epoch, action, arguments)
        before, self.attempt_of = self._attempts_of(this), None
        of_epoch = f"[{epoch},"
        self.attempted = {key: times for key, times in self.attempted.items() if key.startswith(of_epoch)}
        self.attempts = self.attempted[this] = before + 1
        by_id = self.layout.segments if self.layout else {}
        created = [by_id[i].created_at_ms if i in by_id else 0 for i in segments]
        identity = decision_id(self.name, epoch, action, segments, self.attempts, created)
        self.set_open([*self.all_open, OpenDecision(identity, epoch, now, action, segments=tuple(segments))])
        self.hold_gate = self.observed_at = None
        self.decision_seq += 1
        return identity

    def hold_at(self, gate: str) -> None:
        """Set a new binding gate."""
        self.hold_gate, self.observed_at = gate, None
        self.hold_seq += 1

    def was_observed_lately(self, epoch: int, action: str, arguments: Mapping[str, Any], now: int) -> bool:
        """Return whether this decision was the last one and ended as observed, recently."""
        is_same = self._attempts_of(_identity(epoch, action, arguments)) > 0
        return is_same and self.observed_at is not None and now - self.observed_at < OBSERVED_AGAIN_MS

    def _attempts_of(self, this: str) -> int:
        """Return how often this decision was taken on this epoch."""
        return self.attempted.get(this, self.attempts if self.attempt_of == this else 0)

    @property
    def all_open(self) -> list[OpenDecision]:
        """The open decisions, oldest first."""
        return [] if self.open_decision is None else [self.open_decision, *self.further_open]

    @property
    def in_flight(self) -> OpenAction | None:
        """The open decision that evaluations wait for: the oldest that blocks all, else the oldest merge."""
        if not (opened := self.all_open):
            return None
        first = next((decision for decision in opened if decision.applied or decision.action != "merge"), None)
        if first is None:
            return OpenAction(opened[0].decision_id, opened[0].since, "merge")
        return OpenAction(first.decision_id, first.since)

    def set_open(self, decisions: Sequence[OpenDecision]) -> None:
        """Replace the open decisions."""
        self.open_decision = decisions[0] if decisions else None
        self.further_open = tuple(decisions[1:])

    def set_back(self, now: int) -> None:
        """Clamp all clocks to `now` after the job's clock was set back."""
        self.cooldowns = Cooldowns(*(not_after(instant, now) for instant in self.cooldowns))
        self.failures = self.failures._replace(failed_at=not_after(self.failures.failed_at, now))
        self.set_open([replace(decision, since=min(decision.since, now)) for decision in self.all_open])
        self.pasts = {number: past._replace(at=min(past.at, now)) for number, past in self.pasts.items()}
        self.hot_keys = tuple(key._replace(found_at=min(key.found_at, now)) for key in self.hot_keys)
        self.observed_at = not_after(self.observed_at, now)
        self.since = min(self.since, now)


def _identity(epoch: int, action: str, arguments: Mapping[str, Any]) -> str:
    """Return the identity of a decision on a layout; `arguments` as in the column of `decisions`."""
    buckets = [arguments["bucketCount"]] if "bucketCount" in arguments else []
    return canonical_json([epoch, action, arguments["segments"], *buckets])


class ConfiguredPolicy(NamedTuple):
    """The profile and cluster-wide override that the job announces."""

    profile: Profile
    override: str | None
    """The override in JSON."""


@dataclass
class BucketState:
    """All topics of a bucket, and the policies that reach every bucket."""

    topics: dict[str, TopicState] = field(default_factory=dict)
    configured: ConfiguredPolicy | None = None
    """The cluster's policy as configured in the job; until it arrives nothing is decided."""
    cluster_policy: str | None = None
    """Override of the cluster, JSON, that replaces the configured one; None without one."""
    namespace_policies: dict[str, str] = field(default_factory=dict)
    """`tenant/namespace` to its override as JSON."""
    policy_senders: dict[str, PolicySender] = field(default_factory=dict)
    """Sender of each namespace's override (empty: the cluster's), also of `MAX_DELETED` removed ones."""
    ended: dict[str, TopicEnd] = field(default_factory=dict)
    """The newest `MAX_DELETED` deleted topics, so that late announcements do not revive them."""
    changed: set[str] = field(default_factory=set)
    """Topics that differ from the packed form."""
    held: set[str] = field(default_factory=set)
    """Topics whose binding gate has changed since packing; for some of them, that is the only change."""
    header_changed: bool = False
    without_layout: int = 0
    """Number of topics without a layout."""
    changes: Generations = field(default_factory=Generations)
    """Generation of the last change of each topic."""
    layouts: Generations = field(default_factory=Generations)
    """Generation of the last layout change of each topic."""
    policy_generation: int = 0
    """Generation of the last policy change that concerns more than one topic."""

    @property
    def is_changed(self) -> bool:
        """True if the packed form lacks some changes."""
        return bool(self.changed or self.held) or self.header_changed

    def touch(self, name: str) -> TopicState:
        """Return the topic's state, created if missing, and mark it as changed."""
        self.changed.add(name)
        self.changes.change(name)
        if (topic := self.topics.get(name)) is None:
            topic = self.topics[name] = TopicState(name)
            self.without_layout += 1
        return topic

    def hold_at(self, topic: TopicState, gate: str) -> None:
        """Set a new binding gate of a topic."""
        topic.hold_at(gate)
        self.held.add(topic.name)
        self.changes.change(topic.name)

    def hold_all(self, names: Sequence[str], gates: Sequence[str]) -> None:
        """Set new binding gates of many topics; the caller updates what is derived from them."""
        for name, gate in zip(names, gates, strict=True):
            self.topics[name].hold_at(gate)
        self.held.update(names)

    def set_layout(self, topic: TopicState, newer: KnownLayout) -> None:
        """Set a newer layout."""
        self.without_layout -= topic.known is None
        topic.known = newer
        self.layouts.change(topic.name)

    def end_of(self, name: str, now: int) -> TopicEnd | None:
        """Return how the topic's last incarnation ended, or None. `now`: the batch's time."""
        ended = self.ended.get(name)
        is_old = ended is not None and ended.noted_at is not None and now - ended.noted_at > REMEMBERED_MS
        return None if is_old else ended

    def end(self, name: str, ended: TopicEnd) -> None:
        """Remove a deleted topic and remember its end."""
        self.ended.pop(name, None)
        self.ended[name] = ended
        _forget_old(
            self.ended, {removed: ending.noted_at for removed, ending in self.ended.items()}, ended.noted_at or 0
        )
        self.header_changed = True
        self.remove(name)

    def begin(self, name: str, created_at: int | None, began: int | None, now: int) -> TopicState:
        """Start an incarnation, at `began` if announcements do not say, and discard any earlier one."""
        self.remove(name)
        self.layouts.change(name)
        topic, ended = self.touch(name), self.end_of(name, now)
        topic.created_at = created_at
        instants = [instant for instant in (created_at, began, ended.at if ended else None) if instant is not None]
        topic.since = min(now, instants[0]) if instants else 0
        return topic

    def waits_in_vain(self, topic: TopicState, now: int) -> bool:
        """Return whether a topic has waited too long for its layout."""
        return topic.known is None and now - topic.heard_at > MAX_WAIT_FOR_LAYOUT_MS

    def forget_waiting(self, now: int) -> None:
        """Remove topics that have waited too long for their layouts."""
        for name in [name for name, topic in self.topics.items() if self.waits_in_vain(topic, now)]:
            self.remove(name)

    def remove(self, name: str) -> None:
        """Remove a topic."""
        if (topic := self.topics.pop(name, None)) is not None:
            self.without_layout -= topic.known is None
            self.changed.add(name)
            self.changes.change(name)
            self.layouts.change(name)

    def set_back(self, names: Iterable[str], now: int) -> None:
        """Clamp the clocks of these topics after the job's clock was set back."""
        for name in names:
            self.touch(name).set_back(now)
            self.layouts.change(name)
        for name, ended in self.ended.items():
            if ended.at > now:
                self.ended[name] = ended._replace(at=now)
                self.header_changed = True

    def set_policy(self, namespace: str | None, override: str | None) -> bool:
        """Set the override of a namespace, or of the cluster; return whether it changed."""
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

    def set_policy_sender(self, namespace: str, announcement: PolicySender) -> None:
        """Set the sender of the newest policy announcement; empty name: the cluster's."""
        self.policy_senders.pop(namespace, None)
        self.policy_senders[namespace] = announcement
        removed = {
            name: sender.at
            for name, sender in self.policy_senders.items()
            if name and name not in self.namespace_policies
        }
        _forget_old(self.policy_senders, removed, announcement.at)
        self.header_changed = True

    def set_configured(self, configured: ConfiguredPolicy) -> bool:
        """Set the job's configured policy; return whether it changed."""
        changed, self.configured = self.configured != configured, configured
        if changed:
            self.header_changed = True
            self.policy_generation += 1
        return changed

    def forget_changes(self) -> None:
        """Reset change tracking after packing."""
        self.changed.clear()
        self.held.clear()
        self.header_changed = False


def _forget_old(remembered: dict[str, Any], noted_at: Mapping[str, int | None], now: int) -> None:
    """Remove entries beyond `MAX_DELETED` or `REMEMBERED_MS`; `noted_at` is sorted, oldest first."""
    surplus = len(noted_at) - MAX_DELETED
    for index, (name, instant) in enumerate(noted_at.items()):
        if index < surplus or (instant is not None and now - instant > REMEMBERED_MS):
            del remembered[name]
