"""`python -m schemas.export`: write the JSON Schemas of all models to `schemas/json/`.

A new model that crosses a boundary is added to `_EXPORTED`; a test compares the files with the models.
"""

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from schemas.bookie_answers import BookieAnswer
from schemas.bookies import BookieSnapshot
from schemas.bundles import BundleAnswer, BundleSnapshot
from schemas.kafka.broker_messages import BrokerEvent, BrokerLoadMessage
from schemas.kafka.messages import ConsumerEvent, ControlEvent, SegmentStatsMessage
from schemas.metadata import AutoScalePolicyOverride, ScalableTopicMetadata
from schemas.settings.root import Settings
from schemas.snapshot import Answer, Snapshot
from schemas.tables.rows import TABLES

FOLDER = Path(__file__).parent / "json"

_EXPORTED: dict[str, Any] = {
    "segment-stats": SegmentStatsMessage,
    "consumer-events": ConsumerEvent,
    "control-events": ControlEvent,
    "broker-load": BrokerLoadMessage,
    "broker-events": BrokerEvent,
    "scalable-topic-metadata": ScalableTopicMetadata,
    "auto-scale-policy-override": AutoScalePolicyOverride,
    "snapshot": Snapshot,
    "answer": Answer,
    "bundle-snapshot": BundleSnapshot,
    "bundle-answer": BundleAnswer,
    "bookie-snapshot": BookieSnapshot,
    "bookie-answer": BookieAnswer,
    "settings": Settings,
    **{f"table-{name}": table.row for name, table in TABLES.items()},
}


def json_schemas() -> dict[str, str]:
    """Return file name to JSON Schema text (draft 2020-12), for every model that crosses a boundary."""
    return {
        f"{name}.schema.json": json.dumps(TypeAdapter(model).json_schema(by_alias=True), indent=2, sort_keys=True)
        + "\n"
        for name, model in _EXPORTED.items()
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file_name, text in json_schemas().items():
        (FOLDER / file_name).write_text(text)
