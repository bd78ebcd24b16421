"""The effective policy of a topic inside the job, resolved once per combination of overrides.

Stage: inside the stateful operator. The rules of resolution are `decisions.autoscale.policy` (PIP-483 "Policy
resolution").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decisions.autoscale.policy import Policy, policy_digest, policy_override, resolve_policy
from decisions.autoscale.significance import crossing_thresholds
from engine.autoscale.topics import BucketState, ConfiguredPolicy, TopicState
from schemas.ids import topic_parts
from schemas.metadata import AutoScalePolicyOverride, Profile


@dataclass(frozen=True)
class EffectivePolicy:
    """A resolved policy, and what the filter needs of it as arrays."""

    policy: Policy
    digest: str
    override_json: str
    """All of it as an override, JSON: what a snapshot of a topic without entry buckets carries."""
    bucket_override_json: str
    """The same where entry buckets matter."""
    merge_thresholds: np.ndarray
    """The four merge thresholds in the order of the rates."""
    crossing_thresholds: np.ndarray
    """As `decisions.autoscale.significance.crossing_thresholds`; NaN when crossing one is not significant."""


_Sources = tuple[Profile, str | None, str | None, str | None]
_UNKNOWN = ConfiguredPolicy("default", None)
"""What the filter goes by while the job's policy is not known; nothing is decided then."""


class Policies:
    """Resolves policies: profile, cluster, namespace and topic, all of them as the state has them from the stream.

    Nothing comes from the settings of a worker: a batch that is replayed sees the policies that its first attempt saw.
    """

    def __init__(self) -> None:
        self._resolved: dict[_Sources, EffectivePolicy] = {}

    def of(self, state: BucketState, topic: TopicState) -> EffectivePolicy:
        """The topic's effective policy as things stand. Total: an invalid combination is disabled by its resolution."""
        return self.of_name(state, topic.name, topic.override)

    def of_name(self, state: BucketState, topic: str, own: str | None) -> EffectivePolicy:
        """The same of a topic by its name and its own override, JSON."""
        namespace = None
        if state.namespace_policies:
            namespace = state.namespace_policies.get(topic_parts(topic).full_namespace)
        return self._of(state, namespace, own)

    def of_cluster(self, state: BucketState) -> EffectivePolicy:
        """The policy of a topic that neither its namespace nor itself has an override for."""
        return self._of(state, None, None)

    def _of(self, state: BucketState, namespace: str | None, own: str | None) -> EffectivePolicy:
        profile, cluster = state.configured or _UNKNOWN
        if state.cluster_policy is not None:
            cluster = state.cluster_policy
        key = (profile, cluster, namespace, own)
        if key not in self._resolved:
            if len(self._resolved) > 10_000:
                self._resolved.clear()
            self._resolved[key] = self._resolve(*key)
        return self._resolved[key]

    def _resolve(
        self, profile: Profile, cluster: str | None, namespace: str | None, own: str | None
    ) -> EffectivePolicy:
        overrides = [
            None if text is None else AutoScalePolicyOverride.model_validate_json(text)
            for text in (cluster, namespace, own)
        ]
        policy = resolve_policy(profile, *overrides).policy
        crossing = crossing_thresholds(policy)
        return EffectivePolicy(
            policy=policy,
            digest=policy_digest(policy),
            override_json=policy_override(policy, has_buckets=False).to_json(),
            bucket_override_json=policy_override(policy).to_json(),
            merge_thresholds=np.array(policy.merge_thresholds, np.float64),
            crossing_thresholds=np.array(
                crossing if policy.threshold_crossing else [np.nan] * len(crossing), np.float64
            ),
        )
