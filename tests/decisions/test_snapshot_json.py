"""The quick ways to JSON give what the models read, and lose nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from decisions.autoscale.answers import answer_to_json, gates_to_json
from decisions.autoscale.decide import decide
from decisions.autoscale.policy import policy_override
from decisions.autoscale.snapshot import snapshot_from_wire, snapshot_to_json
from schemas.ids import canonical_json
from schemas.snapshot import Snapshot
from tests.decisions.snapshots import bucket_snapshot, random_snapshot


@given(st.integers(0, 2**32), st.booleans())
def test_snapshot_and_gates_match_model_json(seed, guards):
    snapshot = (bucket_snapshot if seed % 3 == 0 else random_snapshot)(Random(seed), guards)
    policy = policy_override(snapshot.policy, snapshot.has_buckets)
    line = snapshot_to_json(snapshot, snapshot.layout.to_metadata().to_json(), policy.to_json())
    wire = Snapshot.model_validate_json(line)
    assert (wire.to_json(), wire.policy) == (line, policy)
    # A policy that contradicts itself is read as one that is off.
    assert replace(snapshot_from_wire(wire, "default"), policy=snapshot.policy) == snapshot
    answer = decide(snapshot)
    wire = json.loads(answer_to_json(answer))["gates"]
    assert gates_to_json(answer.gates) == canonical_json(wire)
