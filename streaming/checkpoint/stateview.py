"""Read-only view of one topic's state in the checkpoint's state store, also of a running job.

Stage: under `anabranch lake state`.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from decisions.autoscale.policy import policy_override
from engine.autoscale.family import LOADS, TOPICS
from engine.autoscale.loads_codec import unpack_loads
from engine.autoscale.policies import Policies
from engine.autoscale.topics_codec import unpack_topics
from engine.families import PARTS
from engine.kernel.packed import Packed, StoredPart
from streaming.operator.processor import FINGERPRINT


@dataclass(frozen=True)
class BucketView:
    """The state of a bucket as of a batch."""

    batch_id: int
    packed: Packed


def stored_bucket(spark: SparkSession, checkpoint: str, bucket: int, names: Sequence[str] = tuple(PARTS)) -> BucketView:
    """Read the newest state of some stored parts of a bucket. Raises what Spark raises without any."""
    metadata = spark.read.format("state-metadata").load(checkpoint)
    batch_id = int(metadata.agg(F.max("maxBatchId")).first()[0])

    def rows(name: str) -> DataFrame:
        reader = spark.read.format("statestore").option("stateVarName", name).option("batchId", batch_id)
        return reader.load(checkpoint).where(F.col("key.bucket") == bucket)

    def value(name: str) -> bytes | None:
        row = rows(name).select("value.packed").first()
        return None if row is None else bytes(row[0])

    def log(name: str) -> list[bytes]:
        return [bytes(row[0]) for row in rows(name).select("list_element.packed").collect()]

    parts = {name: StoredPart(value(name) or b"", log(f"{name}_log")) for name in names}
    return BucketView(batch_id, Packed(value(FINGERPRINT), parts))


def topic_view(packed: Packed, topic: str) -> dict[str, Any] | None:
    """Return a topic's state as JSON, instants in milliseconds; None if unknown. Raises `StateError`."""
    state = unpack_topics(packed.parts[TOPICS])
    loads = unpack_loads(packed.parts[LOADS]).loads_of(topic)
    topic_state = state.topics.get(topic)
    if topic_state is None and not loads:
        return None
    topic_state = topic_state or state.touch(topic)
    policy = Policies().of(state, topic_state)
    return {
        "topic": topic,
        "layout": None if topic_state.known is None else json.loads(topic_state.known.metadata_json),
        "consumers": {
            name: {"type": kind, "count": count} for name, (kind, count) in sorted(topic_state.consumers.items())
        },
        "lastSplitAt": topic_state.cooldowns.last_split_at,
        "lastMergeAt": topic_state.cooldowns.last_merge_at,
        "lastRebucketAt": topic_state.cooldowns.last_rebucket_at,
        "mergeDepths": topic_state.merge_depths,
        "openDecision": None if topic_state.open_decision is None else asdict(topic_state.open_decision),
        "decisions": topic_state.decision_seq,
        "failures": topic_state.failures.in_a_row,
        "failedAt": topic_state.failures.failed_at,
        "failedAction": topic_state.failures.action,
        "hold": topic_state.hold_gate,
        "holds": topic_state.hold_seq,
        "tickAskedFor": topic_state.due,
        "loads": {str(segment): asdict(load) for segment, load in sorted(loads.items())},
        "policy": policy_override(policy.policy).model_dump(mode="json", by_alias=True, exclude_none=True),
        "policyDigest": policy.digest,
    }
