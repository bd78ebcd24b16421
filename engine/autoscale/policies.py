"""Effective policies of topics inside the job, resolved once per combination of overrides.

Stage: inside the stateful operator. The resolution rules are in `decisions.autoscale.policy` (PIP-483 "Policy
resolution").
"""

from dataclasses import dataclass

import numpy as np

from decisions.autoscale.policy import Policy, policy_digest, policy_override, resolve_policy
from decisions.autoscale.significance import crossing_thresholds
from engine.autoscale.topics import BucketState, ConfiguredPolicy, TopicState
from schemas.ids import topic_parts
from schemas.metadata import AutoScalePolicyOverride, Profile


@dataclass(frozen=True)
class ResolvedTopicPolicy:
    """A resolved policy, with the arrays that filtering needs."""

    policy: Policy
    digest: str
    override_json: str
    """The whole policy as an override, JSON, as in the snapshot of a topic without entry buckets."""
    bucket_override_json: str
    """Same, for a topic with entry buckets."""
    merge_thresholds: np.ndarray
    """The four merge thresholds in the order of the rates."""
    crossing_thresholds: np.ndarray
    """Crossing thresholds (`decisions.autoscale.significance`); NaN if crossing one is not significant."""


_Sources = tuple[Profile, str | None, str | None, str | None]
_UNKNOWN = ConfiguredPolicy("default", None)
"""Policy for filtering until the job's policy arrives; nothing is decided before."""


class Policies:
    """Resolver of policies from profile, cluster, namespace and topic overrides, all read from the stream.

    Nothing comes from a worker's settings, so a replayed batch resolves the same policies as its first attempt.
    """

    def __init__(self) -> None:
        self._resolved: dict[_Sources, ResolvedTopicPolicy] = {}

    def of(self, state: BucketState, topic: TopicState) -> ResolvedTopicPolicy:
        """Return the topic's effective policy. Total: resolution disables an invalid combination."""
        return self.of_name(state, topic.name, topic.override)

    def of_name(self, state: BucketState, topic: str, own: str | None) -> ResolvedTopicPolicy:
        """Return the effective policy by topic name and its own override, JSON."""
        namespace = None
        if state.namespace_policies:
            namespace = state.namespace_policies.get(topic_parts(topic).full_namespace)
        return self._of(state, namespace, own)

    def of_cluster(self, state: BucketState) -> ResolvedTopicPolicy:
        """Return the policy of a topic without an override of its own or of its namespace."""
        return self._of(state, None, None)

    def _of(self, state: BucketState, namespace: str | None, own: str | None) -> ResolvedTopicPolicy:
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
    ) -> ResolvedTopicPolicy:
        overrides = [
            None if text is None else AutoScalePolicyOverride.model_validate_json(text)
            for text in (cluster, namespace, own)
        ]
        policy = resolve_policy(profile, *overrides).policy
        crossing = crossing_thresholds(policy)
        return ResolvedTopicPolicy(
            policy=policy,
            digest=policy_digest(policy),
            override_json=policy_override(policy, has_buckets=False).to_json(),
            bucket_override_json=policy_override(policy).to_json(),
            merge_thresholds=np.array(policy.merge_thresholds, np.float64),
            crossing_thresholds=np.array(
                crossing if policy.threshold_crossing else [np.nan] * len(crossing), np.float64
            ),
        )
