"""Limits of an adoption, which the command asks for before it seals anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from anabranch.controller.errors import Conflict
from anabranch.controller.metadata.sqlite import SqliteStore
from anabranch.controller.operations.adoption import Adoption
from decisions.topic.layout import SegmentLayout
from tests.controller.owned import OwnedStore

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


@pytest.mark.parametrize("is_created", [True, False])
def test_adopted_topic_is_claimed_from_its_creation_on(tmp_path: Path, is_created: bool) -> None:
    store, first, second = OwnedStore(SqliteStore(tmp_path / "layouts.db")), "topic://a/b/first", "topic://a/b/second"
    adoption = Adoption(kafka_topic="orders", partitions=3, subscriptions={})
    adoption.check_unclaimed(second, store)
    layout = adoption.applied_to(SegmentLayout.create(1, 1_000), 1_000).to_metadata()
    with store.writing(first) as transaction:
        if is_created:
            transaction.insert_topic(first, layout)
        else:
            transaction.begin_creation(first, layout)
    with pytest.raises(Conflict, match="topic://a/b/first has adopted orders"):
        adoption.check_unclaimed(second, store)
    adoption.check_unclaimed(first, store)
    Adoption(kafka_topic="orders-2", partitions=3, subscriptions={}).check_unclaimed(second, store)
    store.close()
