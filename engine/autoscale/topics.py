"""What a bucket remembers of its topics: layout, consumers, clocks, the open decision, the last hold, and policies.

Stage: the state of the family, without its loads (`engine.autoscale.loads`). Its bytes are
`engine.autoscale.topics_codec`. The rules by which clocks change are `decisions.autoscale.clocks`.
"""

from __future__ import annotations

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
"""Deleted topics of a bucket that are remembered, so that announcements that come late do not bring them back."""
REMEMBERED_MS = 7 * 86_400_000
"""For how long: as long as Kafka keeps the announcements."""
OBSERVED_AGAIN_MS = 900_000
"""A decision that was only observed is taken again after this time, if the topic still wants it."""
MAX_WAIT_FOR_LAYOUT_MS = 3_600_000
"""A topic of which nothing is known but its consumers is forgotten when its layout has not come for so long."""


class Ended(NamedTuple):
    """The end of a topic's last life."""

    at: int
    """When it was deleted; no later than the batch that has heard of it."""
    created_at: int | None
    """When that life began, as its announcement says; None: it does not."""
    sender: int
    """Who said so."""
    noted_at: int | None
    """Time of the batch that has heard of it; None: an older release did not keep it."""


class Said(NamedTuple):
    """Whose announcement something is, and the time of the batch that took it."""

    sender: int
    at: int


class TopicState(msgspec.Struct, array_like=True, gc=False):
    """What is known of one topic; instants are milliseconds since 1970.

    Stored as it is, fields in this order: a new one comes last, with a value for topics that were stored before it.
    """

    name: str
    created_at: int | None = None
    """When this life of the topic began, as announcements say (`schemas.messages.LayoutEvent`); None: none did."""
    since: int = 0
    """The same by the job's clock: no load that was seen before is its. 0: it is not known."""
    heard_at: int = 0
    """Time of the batch with the newest announcement of consumers, as long as no layout has come."""
    known: KnownLayout | None = None
    """The newest layout; None: none has come."""
    consumers: dict[str, tuple[str, int]] = {}
    """Subscription to (type, sessions)."""
    cooldowns: Cooldowns = Cooldowns()
    merge_depths: dict[int, int] = {}
    """Merge depth of each active segment when it was made, kept through pruning."""
    open_decision: OpenDecision | None = None
    """The oldest; `further_open` has the others."""
    failures: Failures = Failures()
    attempt_of: str | None = None
    """As older releases kept it: what the last decision was, and on which epoch."""
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
    observed_at: int | None = None
    """When the last decision ended as observed, if it did and nothing was decided or held since."""
    further_open: tuple[OpenDecision, ...] = ()
    """More decisions of the same evaluation, on other parts of the key space (guard `parallelActions`)."""
    attempted: dict[str, int] = {}
    """What was decided on the newest epoch, and how often: the same again is the next attempt."""
    pasts: dict[int, Past] = {}
    """Of active segments, kept through pruning (guard `settleSeconds`)."""
    hot_keys: tuple[HotKey, ...] = ()
    """That were found (guard `hotKeySplits`)."""

    @property
    def layout(self) -> SegmentLayout | None:
        """The layout as the decisions see it; read off its record, so not for what is asked of every topic."""
        return None if self.known is None else self.known.layout

    @property
    def metadata_json(self) -> str | None:
        """The layout's record in JSON; made on demand."""
        return None if self.known is None else self.known.metadata_json

    @property
    def active_ids(self) -> frozenset[int]:
        """Ids of the active segments; empty when no layout is known."""
        return frozenset() if self.known is None else frozenset(self.known.active_ids)

    @property
    def override(self) -> str | None:
        """The topic's own policy override, which travels in its metadata, JSON."""
        return None if self.known is None else self.known.override

    def decided(self, epoch: int, action: str, arguments: Mapping[str, Any], now: int) -> str:
        """A decision has been taken: it is open from `now` on. Answers its id."""
        segments, this = arguments["segments"], _identity(epoch, action, arguments)
        before, self.attempt_of = self._attempts_of(this), None
        of_epoch = f"[{epoch},"
        self.attempted = {one: times for one, times in self.attempted.items() if one.startswith(of_epoch)}
        self.attempts = self.attempted[this] = before + 1
        known = self.layout.segments if self.layout else {}
        created = [known[i].created_at_ms if i in known else 0 for i in segments]
        identity = decision_id(self.name, epoch, action, segments, self.attempts, created)
        self.set_open([*self.all_open, OpenDecision(identity, epoch, now, action, segments=tuple(segments))])
        self.hold_gate = self.observed_at = None
        self.decision_seq += 1
        return identity

    def hold_at(self, gate: str) -> None:
        """Another gate has become the binding one."""
        self.hold_gate, self.observed_at = gate, None
        self.hold_seq += 1

    def was_observed_lately(self, epoch: int, action: str, arguments: Mapping[str, Any], now: int) -> bool:
        """Whether this very decision was the last one, and nobody was to act on it."""
        is_same = self._attempts_of(_identity(epoch, action, arguments)) > 0
        return is_same and self.observed_at is not None and now - self.observed_at < OBSERVED_AGAIN_MS

    def _attempts_of(self, this: str) -> int:
        """How often this very decision was taken on this very epoch."""
        return self.attempted.get(this, self.attempts if self.attempt_of == this else 0)

    @property
    def all_open(self) -> list[OpenDecision]:
        """The open decisions, the oldest first."""
        return [] if self.open_decision is None else [self.open_decision, *self.further_open]

    @property
    def in_flight(self) -> OpenAction | None:
        """The open decision that an evaluation waits for: the oldest that holds everything, else the oldest merge."""
        opened = self.all_open
        if not opened:
            return None
        first = next((one for one in opened if one.applied or one.action != "merge"), None)
        if first is None:
            return OpenAction(opened[0].decision_id, opened[0].since, "merge")
        return OpenAction(first.decision_id, first.since)

    def set_open(self, decisions: Sequence[OpenDecision]) -> None:
        """These are open from here on."""
        self.open_decision = decisions[0] if decisions else None
        self.further_open = tuple(decisions[1:])

    @property
    def newest_instant(self) -> int:
        """The newest instant of all that its clocks hold."""
        opened = self.open_decision.since if self.open_decision else None
        found = (*self.cooldowns, self.failures.failed_at, opened, self.observed_at, self.since)
        return max(at for at in found if at is not None)

    def set_back(self, now: int) -> None:
        """The job's clock was set back: no clock is ahead of `now` from here on."""
        self.cooldowns = Cooldowns(*(not_after(at, now) for at in self.cooldowns))
        self.failures = self.failures._replace(failed_at=not_after(self.failures.failed_at, now))
        self.set_open([replace(one, since=min(one.since, now)) for one in self.all_open])
        self.pasts = {number: past._replace(at=min(past.at, now)) for number, past in self.pasts.items()}
        self.hot_keys = tuple(key._replace(found_at=min(key.found_at, now)) for key in self.hot_keys)
        self.observed_at = not_after(self.observed_at, now)
        self.since = min(self.since, now)


def _identity(epoch: int, action: str, arguments: Mapping[str, Any]) -> str:
    """Tell a decision from others on the same layout; `arguments` as the column of `decisions` has them."""
    buckets = [arguments["bucketCount"]] if "bucketCount" in arguments else []
    return canonical_json([epoch, action, arguments["segments"], *buckets])


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
    policy_senders: dict[str, Said] = field(default_factory=dict)
    """Whose announcement the override of a namespace is, or of the cluster (empty name); of those that are removed the
    newest `MAX_DELETED`."""
    ended: dict[str, Ended] = field(default_factory=dict)
    """Topics that are gone, the newest `MAX_DELETED`: what comes late of them does not bring them back."""
    changed: set[str] = field(default_factory=set)
    """Topics that differ from what was packed."""
    held: set[str] = field(default_factory=set)
    """Topics of which another gate has become the binding one since, and nothing else may have changed."""
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
        return bool(self.changed or self.held) or self.header_changed

    def touch(self, name: str) -> TopicState:
        """The topic's state, made if it is new, and marked as changed."""
        self.changed.add(name)
        self.changes.change(name)
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = TopicState(name)
            self.without_layout += 1
        return topic

    def hold_at(self, topic: TopicState, gate: str) -> None:
        """Another gate has become the binding one of a topic."""
        topic.hold_at(gate)
        self.held.add(topic.name)
        self.changes.change(topic.name)

    def hold_all(self, names: Sequence[str], gates: Sequence[str]) -> None:
        """The same of many topics, by whom keeps what is derived of them up to date itself."""
        for name, gate in zip(names, gates, strict=True):
            self.topics[name].hold_at(gate)
        self.held.update(names)

    def set_layout(self, topic: TopicState, known: KnownLayout) -> None:
        """Takes over a newer layout."""
        self.without_layout -= topic.known is None
        topic.known = known
        self.layouts.change(topic.name)

    def end_of(self, name: str, now: int) -> Ended | None:
        """How the last life of a topic ended; None: it has not, or is forgotten. `now`: the batch's time."""
        ended = self.ended.get(name)
        is_old = ended is not None and ended.noted_at is not None and now - ended.noted_at > REMEMBERED_MS
        return None if is_old else ended

    def end(self, name: str, ended: Ended) -> None:
        """Forgets a topic that was deleted, and remembers that."""
        self.ended.pop(name, None)
        self.ended[name] = ended
        _forget_old(self.ended, {gone: one.noted_at for gone, one in self.ended.items()}, ended.noted_at or 0)
        self.header_changed = True
        self.remove(name)

    def begin(self, name: str, created_at: int | None, began: int | None, now: int) -> TopicState:
        """A life of a topic begins: whatever is known of an earlier one is forgotten.

        `began`: when, where announcements do not say it (`created_at` is None) and something else does.
        """
        self.remove(name)
        self.layouts.change(name)
        topic, ended = self.touch(name), self.end_of(name, now)
        topic.created_at = created_at
        known = [at for at in (created_at, began, ended.at if ended else None) if at is not None]
        topic.since = min(now, known[0]) if known else 0
        return topic

    def waits_in_vain(self, topic: TopicState, now: int) -> bool:
        """Whether the layout of a topic has not come for too long."""
        return topic.known is None and now - topic.heard_at > MAX_WAIT_FOR_LAYOUT_MS

    def forget_waiting(self, now: int) -> None:
        """Forgets topics whose layouts have not come for too long."""
        for name in [name for name, topic in self.topics.items() if self.waits_in_vain(topic, now)]:
            self.remove(name)

    def remove(self, name: str) -> None:
        """Forgets a topic."""
        topic = self.topics.pop(name, None)
        if topic is not None:
            self.without_layout -= topic.known is None
            self.changed.add(name)
            self.changes.change(name)
            self.layouts.change(name)

    def set_back(self, names: Iterable[str], now: int) -> None:
        """The job's clock was set back, behind clocks of these topics."""
        for name in names:
            self.touch(name).set_back(now)
            self.layouts.change(name)
        for name, ended in self.ended.items():
            if ended.at > now:
                self.ended[name] = ended._replace(at=now)
                self.header_changed = True

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

    def set_policy_sender(self, namespace: str, said: Said) -> None:
        """Notes whose the newest announcement about a policy is; empty name: about that of the cluster."""
        self.policy_senders.pop(namespace, None)
        self.policy_senders[namespace] = said
        removed = {
            name: one.at for name, one in self.policy_senders.items() if name and name not in self.namespace_policies
        }
        _forget_old(self.policy_senders, removed, said.at)
        self.header_changed = True

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
        self.held.clear()
        self.header_changed = False


def _forget_old(remembered: dict[str, Any], noted_at: Mapping[str, int | None], now: int) -> None:
    """Of what may be forgotten (`noted_at`, oldest first) only the newest is kept, and for a time only."""
    surplus = len(noted_at) - MAX_DELETED
    for place, (name, at) in enumerate(noted_at.items()):
        if place < surplus or (at is not None and now - at > REMEMBERED_MS):
            del remembered[name]
