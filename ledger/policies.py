"""The effective policy of each topic as `events` have it: that of the job, of the cluster, of namespaces and of topics.

Stage: under what shows load against thresholds. The rules are those of the job (`engine.autoscale.policies`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from decisions.autoscale.policy import Policy
from engine.autoscale.policies import Policies
from engine.autoscale.topics import BucketState, ConfiguredPolicy
from schemas.messages import PolicyEvent
from schemas.metadata import AutoScalePolicyOverride


class PoliciesOnRecord:
    """Takes rows of `events` in, in their order."""

    def __init__(self) -> None:
        self._state, self._policies = BucketState(), Policies()
        self._senders: dict[str, int] = {}

    def take(self, body: str) -> None:
        """An event of type `policy`, JSON; one of a sender before the last is not believed."""
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

    def of(self, topic: str, own: Mapping[str, Any] | None) -> Policy | None:
        """The policy of a topic with this override of its own; None: the job has not said its policy."""
        if self._state.configured is None:
            return None
        override = AutoScalePolicyOverride.model_validate_json(json.dumps(own)).known_json() if own else None
        return self._policies.of_name(self._state, topic, override).policy
