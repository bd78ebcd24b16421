"""Effective policy of each topic from `events`: those of the job, the cluster, namespaces and topics.

Stage: under the views that compare load with thresholds. The rules are those of the job (`engine.autoscale.policies`).
"""

import json
from collections.abc import Mapping
from typing import Any

from decisions.autoscale.policy import Policy, ResolvedPolicy, resolve_policy
from engine.autoscale.policies import Policies
from engine.autoscale.topics import BucketState, ConfiguredPolicy
from schemas.ids import topic_parts
from schemas.kafka.messages import PolicyEvent
from schemas.metadata import AutoScalePolicyOverride


class PoliciesOnRecord:
    """Policies from rows of `events`, taken in their order."""

    def __init__(self) -> None:
        self._state, self._policies = BucketState(), Policies()
        self._senders: dict[str, int] = {}

    def take(self, body: str) -> None:
        """Apply a `policy` event, JSON; one of an earlier sender than the last is ignored."""
        event = PolicyEvent.model_validate_json(body)
        name, sender = event.name or "", event.sender or 0
        if event.profile is None and sender < self._senders.get(name, 0):
            return
        override = event.policy.known_json() if event.policy else None
        if event.profile is not None:
            self._state.set_configured(ConfiguredPolicy(event.profile, override))
        else:
            self._senders[name] = sender
            self._state.set_policy(event.name, override)

    def resolved(self, topic: str, own: Mapping[str, Any] | None) -> ResolvedPolicy | None:
        """Return the policy of a topic with the source of each value.

        `own`: the topic's override. None: the job has not announced its policy.
        """
        state = self._state
        if state.configured is None:
            return None
        cluster = state.configured.override if state.cluster_policy is None else state.cluster_policy
        namespace = state.namespace_policies.get(topic_parts(topic).full_namespace)
        wider = [None if text is None else _override(text) for text in (cluster, namespace)]
        return resolve_policy(state.configured.profile, wider[0], wider[1], _override(json.dumps(own)) if own else None)

    def of(self, topic: str, own: Mapping[str, Any] | None) -> Policy | None:
        """Return a topic's policy with its `own` override; None: the job has not announced its policy."""
        if self._state.configured is None:
            return None
        override = _override(json.dumps(own)).known_json() if own else None
        return self._policies.of_name(self._state, topic, override).policy


def _override(text: str) -> AutoScalePolicyOverride:
    return AutoScalePolicyOverride.model_validate_json(text)
