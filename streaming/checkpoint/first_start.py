"""Data for the first start on a rebuilt checkpoint, given to Spark until a batch is committed."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from engine.families import FAMILIES
from engine.kernel.family import part_names
from streaming.checkpoint.claim import REBUILT
from streaming.checkpoint.storage import CheckpointFiles, spark_location
from streaming.operator.processor import FINGERPRINT

START, STATE_FILE = f"{REBUILT}/start.json", f"{REBUILT}/state.parquet"
"""Files of the checkpoint."""


@dataclass(frozen=True)
class FirstStart:
    """Initial data of a rebuilt checkpoint."""

    buckets: int
    starting_offsets: dict[str, dict[int, int]]
    parts: list[str]
    """Stored parts in the state; an older release has only those of topics."""
    state: str
    """Parquet file with rows of `state_ddl`."""

    def offsets_json(self, topics: str) -> str:
        """Return the offsets of comma-separated topics in the form of Spark's `startingOffsets`."""
        return json.dumps({topic: self.starting_offsets[topic] for topic in topics.split(",")})


def first_start(files: CheckpointFiles) -> FirstStart | None:
    """Return the data for the next start; None if the checkpoint was not rebuilt, or has already run."""
    text = files.text(START)
    if text is None or files.numbers("commits"):
        return None
    start = json.loads(text)
    offsets = {
        topic: {int(partition): offset for partition, offset in of_topic.items()}
        for topic, of_topic in start["startingOffsets"].items()
    }
    parts = start.get("parts", part_names(FAMILIES))
    return FirstStart(start["buckets"], offsets, parts, f"{spark_location(files.checkpoint)}/{STATE_FILE}")


def state_ddl(parts: Sequence[str]) -> str:
    """Return the schema of a bucket's packed state, by state variable; null for a part without data."""
    return ", ".join(["bucket INT", *(f"{name} BINARY" for name in (FINGERPRINT, *parts))])
