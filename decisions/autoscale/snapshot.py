"""The snapshot: the frozen value that one evaluation of one topic sees, and its form on the wire.

Stage: the input of `decisions.autoscale.decide`. `now` and all instants are milliseconds since 1970; rates are per
second.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import pydantic_core
from pydantic.alias_generators import to_camel

from decisions.autoscale.hot_keys import HotKey, hot_key_fields
from decisions.autoscale.past import Past, depths_after_layout, faded_depth, made_at, past_after_layout, shallow_at
from decisions.autoscale.policy import Policy, policy_override, resolve_policy
from decisions.kernel.readings import MAX_INSTANT_MS
from decisions.topic.layout import SegmentLayout
from schemas.kafka.delivery import Delivery
from schemas.metadata import AutoScalePolicyOverride
from schemas.snapshot import Snapshot, Trigger

MANAGED = frozenset({"STREAM", "CHECKPOINT"})
"""Types of which a consumer needs a segment (PIP-483 "Subscription types and what each load type drives")."""

SHARING = frozenset({"STREAM"})
"""Those of them whose consumers can share a segment by its entry buckets: a checkpoint needs whole segments."""


def required_segments(consumers: Mapping[str, tuple[str, int]]) -> int:
    """Return the segments that consumers need: the largest count over the managed subscriptions."""
    return max((count for kind, count in consumers.values() if kind in MANAGED), default=0)


def sharing_consumers(consumers: Mapping[str, tuple[str, int]]) -> int:
    """The largest count over the subscriptions whose consumers can share a segment."""
    return max((count for kind, count in consumers.values() if kind in SHARING), default=0)


def unshared_consumers(consumers: Mapping[str, tuple[str, int]]) -> int:
    """The largest count over the subscriptions whose consumers need a segment each."""
    return max((count for kind, count in consumers.values() if kind in MANAGED - SHARING), default=0)


@dataclass(frozen=True, slots=True)
class Load:
    """The last accepted load record of a segment."""

    msg_rate_in: float
    bytes_rate_in: float
    msg_rate_out: float
    bytes_rate_out: float
    modified_at: int
    seen_at: int | None = None
    """When any sample was last seen; None: `modified_at` stands in."""
    cold_since: int | None = None
    """Since when it has been below the merge thresholds; None: `modified_at` stands in."""
    returned_after: int | None = None
    """How long the pause was after which it came back last, milliseconds; 0: it fell, None: it never did."""

    @property
    def rates(self) -> tuple[float, float, float, float]:
        """The four rates in the PIP's order."""
        return (self.msg_rate_in, self.bytes_rate_in, self.msg_rate_out, self.bytes_rate_out)

    @property
    def last_seen_at(self) -> int:
        """Instant at which the load was last known to be true; the guard `maxLoadAgeSeconds` measures from it."""
        return self.modified_at if self.seen_at is None else self.seen_at

    def window_start(self, policy: Policy) -> int:
        """Return when the merge window of a cold segment began.

        It begins with the load record, by the modified time of PIP-483 "`SegmentLoadStats` (new metadata record)"; with
        the guard `coldSinceThreshold`, when the segment became cold.
        """
        return self.cold_since if policy.cold_since_threshold and self.cold_since is not None else self.modified_at


class OpenAction(NamedTuple):
    """The open decision of a topic, as an evaluation sees it."""

    decision_id: str
    since: int
    action: Literal["merge"] | None = None
    """`merge`: only merges are open, and none has been applied yet."""


@dataclass(frozen=True)
class TopicSnapshot:
    """Everything that one evaluation sees (PIP-483 "The decision: `AutoScalePolicyEvaluator`")."""

    topic: str
    now: int
    layout: SegmentLayout
    policy: Policy
    trigger: Trigger = "tick"
    loads: Mapping[int, Load] = field(default_factory=dict)
    consumers: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """Subscription to (type, sessions)."""
    last_split_at: int | None = None
    last_merge_at: int | None = None
    last_rebucket_at: int | None = None
    in_flight: OpenAction | None = None
    failures: int = 0
    failed_at: int | None = None
    failed_action: str | None = None
    """Which action failed, and is backed off from; None: both."""
    merge_depths: Mapping[int, int] | None = None
    """Merge depths of active segments when they were made (guard `explicitLineage`); None: as the layout says."""
    pasts: Mapping[int, Past] | None = None
    """Pasts kept through pruning; None: as the layout says."""
    hot_keys: tuple[HotKey, ...] = ()
    """As the last answer had them."""
    delivery: Delivery | None = None
    """For explanations (`decisions.autoscale.slowness`); the job's own snapshots have none."""

    @cached_property
    def known_pasts(self) -> Mapping[int, Past]:
        """The pasts of the active segments."""
        return past_after_layout({}, (), self.layout, self.now) if self.pasts is None else self.pasts

    @property
    def may_split_meanwhile(self) -> bool:
        """Tell if the open decision is a merge, which never holds a split (guard `parallelActions`)."""
        return self.policy.parallel_actions and self.in_flight is not None and self.in_flight.action == "merge"

    @cached_property
    def has_buckets(self) -> bool:
        """Tell if entry buckets matter: the topic has them, or every segment counts as one (`asShipped`)."""
        return self.policy.as_shipped or self.layout.has_buckets

    @property
    def shares_segments(self) -> bool:
        """Tell if consumers share segments by their entry buckets (guard `rebuckets`)."""
        return self.policy.rebuckets and self.has_buckets

    @cached_property
    def capacity(self) -> int:
        """Entry buckets of all active segments: consumers of one subscription that can work."""
        return sum(segment.bucket_count for segment in self.layout.active)

    @property
    def sharing_consumers(self) -> int:
        """Consumers of the largest subscription that can share a segment by its entry buckets."""
        return sharing_consumers(self.consumers)

    @property
    def unshared_consumers(self) -> int:
        """Consumers of the largest subscription that need a segment each, whatever its buckets."""
        return unshared_consumers(self.consumers)

    @property
    def required_segments(self) -> int:
        """Segments that the consumers need: the largest count over the managed subscriptions."""
        return required_segments(self.consumers)

    @cached_property
    def known_depths(self) -> Mapping[int, int]:
        """The merge depths of the active segments when they were made (guard `explicitLineage`)."""
        if self.merge_depths is None:
            return depths_after_layout({}, {}, (), self.layout, self.now)
        return self.merge_depths

    def merge_depth(self, segment_id: int) -> int:
        """Return a segment's merges as the layout shows them, or as still count (guard `explicitLineage`)."""
        if not self.policy.explicit_lineage:
            return self.layout.merge_depth(segment_id)
        depth = self.known_depths.get(segment_id, 0)
        return faded_depth(depth, self._made_at(segment_id), self.now) if depth else 0

    def shallow_at(self, segment_id: int) -> int:
        """Return from when on a segment's depth lets it be merged; `MAX_INSTANT_MS` if time alone never does."""
        cap = self.policy.max_dag_depth
        if not self.policy.explicit_lineage:
            return -MAX_INSTANT_MS if self.layout.merge_depth(segment_id) < cap else MAX_INSTANT_MS
        depth = self.known_depths.get(segment_id, 0)
        return shallow_at(depth, self._made_at(segment_id) if depth else 0, cap)

    def _made_at(self, segment_id: int) -> int:
        return made_at(segment_id, self.known_pasts, self.layout.segments, self.now)


def snapshot_from_wire(
    wire: Snapshot, profile: str = "default", over: AutoScalePolicyOverride | None = None
) -> TopicSnapshot:
    """The frozen value of a wire snapshot, its policy laid over the profile, and `over` laid over both.

    A combination that breaks a rule is kept and disabled: `decide` answers `invalid-policy`. Raises `LayoutStateError`
    for a layout that does not tile the hash space, `KeyError` for an unknown profile.
    """
    if wire.policy.merge_keeps_consumers is not None and wire.policy.as_shipped is None:
        # The job's whole policy, without the fields of entry buckets: those of a profile must not be laid under it.
        profile = "default"
    return TopicSnapshot(
        topic=wire.topic,
        now=wire.now,
        trigger=wire.trigger,
        layout=SegmentLayout.from_metadata(wire.layout),
        loads={number: Load(**dict(record)) for number, record in wire.loads.items()},
        consumers={name: (count.type, count.count) for name, count in wire.consumers.items()},
        policy=_resolve_policies(
            profile, _override_values(wire.policy), None if over is None else _override_values(over)
        ),
        last_split_at=wire.last_split_at,
        last_merge_at=wire.last_merge_at,
        last_rebucket_at=wire.last_rebucket_at,
        in_flight=None
        if wire.in_flight is None
        else OpenAction(*(getattr(wire.in_flight, name) for name in OpenAction._fields)),
        failures=wire.failures,
        failed_at=wire.failed_at,
        failed_action=wire.failed_action,
        merge_depths=wire.merge_depths,
        pasts=None if wire.pasts is None else {n: Past(**entry.model_dump()) for n, entry in wire.pasts.items()},
        hot_keys=tuple(
            HotKey(**{name: getattr(entry, name) for name in HotKey._fields}) for entry in wire.hot_keys or ()
        ),
        delivery=wire.delivery,
    )


def snapshot_to_wire(snapshot: TopicSnapshot) -> Snapshot:
    """Return the wire form with the whole effective policy, so it is decided the same in any profile."""
    layout = snapshot.layout.to_metadata().to_json()
    policy = policy_override(snapshot.policy, snapshot.has_buckets).to_json()
    return Snapshot.model_validate_json(snapshot_to_json(snapshot, layout, policy))


def snapshot_to_json(snapshot: TopicSnapshot, layout: str, policy: str) -> str:
    """Return a snapshot as a line of `decide`, from two parts already in JSON.

    `layout` is the layout's record as JSON, `policy` is that of `policy_override` with `snapshot.has_buckets`.
    """
    head = {"topic": snapshot.topic, "now": snapshot.now, "trigger": snapshot.trigger}
    loads = {
        str(number): _set_fields(dict(zip(_LOAD_NAMES, _load_values(load), strict=True)))
        for number, load in snapshot.loads.items()
    }
    consumers = {name: {"type": kind, "count": count} for name, (kind, count) in snapshot.consumers.items()}
    decision = snapshot.in_flight
    unchanging = _set_fields(
        {
            "lastSplitAt": snapshot.last_split_at,
            "lastMergeAt": snapshot.last_merge_at,
            "lastRebucketAt": snapshot.last_rebucket_at,
            "inFlight": None if decision is None else _set_fields(dict(zip(_OPEN_NAMES, decision, strict=True))),
            "failures": snapshot.failures,
            "failedAt": snapshot.failed_at,
            "failedAction": snapshot.failed_action,
            "mergeDepths": None
            if snapshot.merge_depths is None
            else {str(number): depth for number, depth in snapshot.merge_depths.items()},
            "pasts": None
            if snapshot.pasts is None
            else {str(number): dict(zip(_PAST_NAMES, past, strict=True)) for number, past in snapshot.pasts.items()},
            "hotKeys": [hot_key_fields(key) for key in snapshot.hot_keys] or None,
            "delivery": snapshot.delivery and snapshot.delivery.model_dump(by_alias=True, exclude_none=True),
        }
    )
    return (
        f'{_json_text(head)[:-1]},"layout":{layout},"loads":{_json_text(loads)},"consumers":{_json_text(consumers)},'
        f'"policy":{policy},{_json_text(unchanging)[1:]}'
    )


def _set_fields(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _json_text(value: object) -> str:
    return pydantic_core.to_json(value).decode()


_LOAD_NAMES, _PAST_NAMES, _OPEN_NAMES = (
    [to_camel(name) for name in names] for names in (Load.__slots__, Past._fields, OpenAction._fields)
)
_load_values = attrgetter(*Load.__slots__)
_FIELDS = tuple(AutoScalePolicyOverride.model_fields)
_Values = tuple[object, ...]


def _override_values(override: AutoScalePolicyOverride) -> _Values:
    return tuple([getattr(override, name) for name in _FIELDS])


@lru_cache(maxsize=1024)
def _resolve_policies(profile: str, own: _Values, over: _Values | None) -> Policy:
    """Most snapshots of a fleet share a policy: resolve each combination once."""
    overrides = [None if values is None else _read_override(values) for values in (own, over)]
    return resolve_policy(profile, *overrides).policy


def _read_override(values: _Values) -> AutoScalePolicyOverride:
    fields: dict[str, Any] = dict(zip(_FIELDS, values, strict=True))
    return AutoScalePolicyOverride.model_construct(None, **fields)
