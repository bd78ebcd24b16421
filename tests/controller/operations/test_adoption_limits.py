"""Limits of an adoption, which the command asks for before it seals anything."""

from __future__ import annotations

import json
from typing import Any

import pytest

from anabranch.controller.operations.adoption import Adoption

POSITIONS = {"billing": [5, 0, 7]}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, None),
        ({"partitions": 0}, "partitions: "),
        ({"partitions": 4}, "each subscription must have one position for each partition"),
        ({"segments": 3_334}, "partitions times segments must be <= 10000"),
        ({"subscriptions": {f"group-{number}": [0, 0, 0] for number in range(501)}}, "subscriptions: "),
        ({"partitions": 21, "subscriptions": {f"group-{n}": [0] * 21 for n in range(500)}}, "partitions times subscr"),
    ],
)
def test_impossible_adoptions_have_a_fault(change: dict[str, Any], fault: str | None) -> None:
    request = {"kafkaTopic": "orders", "partitions": 3, "segments": 2, "subscriptions": POSITIONS, **change}
    faults = Adoption.faults_of(json.dumps(request))
    assert len(faults) == (fault is not None)
    assert all(text.startswith(fault or "") for text in faults)
