"""Rows of `decisions` of the family `bundles`, as the job writes them."""

from __future__ import annotations

from typing import Any

from decisions.topic.layout import SegmentLayout
from schemas.ids import canonical_json
from schemas.tables.rows import DecisionRow
from tests.executor import orders

CLUSTER = "test"
_ANY = orders.decision(SegmentLayout.create(1, 0), 0)


def unload(identity: str, bundle: str, source: str, destination: str | None, cluster: str = CLUSTER) -> DecisionRow:
    """A bundle goes from one broker to another."""
    arguments = {"bundle": bundle, "sourceBroker": source, "destinationBroker": destination}
    return _row(identity, "unload", arguments, cluster)


def split(identity: str, bundle: str, positions: list[str] | None, cluster: str = CLUSTER) -> DecisionRow:
    """A bundle is split."""
    return _row(identity, "split", {"bundle": bundle, "sourceBroker": "a:1", "positions": positions}, cluster)


def of_columns(columns: dict[str, Any]) -> DecisionRow:
    """What a cycle has put on record (`engine.bundles.recording`), with its instant as the lake has it."""
    return orders.row(_ANY, **columns)


def _row(identity: str, action: str, arguments: dict[str, Any], cluster: str) -> DecisionRow:
    return orders.row(
        _ANY,
        decision_id=identity,
        family="bundles",
        subject=cluster,
        action=action,
        layout_epoch=None,
        inputs="{}",
        arguments=canonical_json(arguments),
    )
