"""A bucket over several batches, and the state store after each."""

from __future__ import annotations

import json

import pyarrow as pa

from engine.autoscale.family import AUTOSCALE, LOADS, TOPICS
from engine.autoscale.loads_codec import unpack_loads
from engine.autoscale.topics import ConfiguredPolicy
from engine.autoscale.topics_codec import unpack_topics
from engine.families import FAMILIES, SAMPLE_SOURCES, bucket_packer, unpack_rows
from engine.kernel.bucket import BucketEngine
from engine.kernel.packed import Packed, StoredPart, WrittenPart, pack_anew
from engine.kernel.packing import Unpacked
from engine.kernel.records import RAW_SCHEMA
from engine.kernel.settings import EngineSettings

SETTINGS = EngineSettings(0.25, 60_000)
CONFIGURED = ConfiguredPolicy("default", '{"promptSplits":false}')
"""Decisions come with ticks: tests say when."""
PROMPT = ConfiguredPolicy("default", None)
"""The profile as it is: hot samples lead to decisions too."""
ONE_AT_A_TIME = ConfiguredPolicy("default", '{"parallelActions":false,"settleSeconds":0,"promptSplits":false}')
"""Without the guards that act on several segments at once, and that keep what was split from being merged."""
FORMER = ConfiguredPolicy(
    "default",
    json.dumps(
        {
            "parallelActions": False,
            "settleSeconds": 0,
            "returnsWithinSeconds": 0,
            "mergeHeadroom": 0,
            "hotKeySplits": 0,
            "promptSplits": False,
            "regretWindowSeconds": 0,
        }
    ),
)
"""The profile as it was before: for what is shown of splits and merges that undo one another."""


def knowing(configured=CONFIGURED, settings=SETTINGS):
    """A stored bucket that knows the job's policy and nothing else."""
    state = AUTOSCALE.opener(settings)({})
    state.topics.set_configured(configured)
    return pack_anew(state.parts)


class Bucket:
    """A bucket over several batches; `restart` forgets what the worker had in memory."""

    def __init__(self, settings=SETTINGS, families=FAMILIES, configured=CONFIGURED):
        self.settings, self.families = settings, families
        self.packed = Packed() if configured is None else knowing(configured, settings)
        self.restart()

    def restart(self):
        self.engine = BucketEngine(self.settings, self.families)

    def batch(self, now, *records):
        written, output = run(self.engine, self.packed, records, now)
        self.packed = stored(self.packed, written)
        return output

    def live(self):
        """Topics and loads as the engine has them in memory, which costs less than to read the store."""
        state = self.engine._decoded[0].states[0]
        return state.topics, state.loads


def run(engine, before, records, now):
    """One batch of the only bucket: samples come packed, the other records as they are."""
    samples = [one for one in records if one.source in SAMPLE_SOURCES]
    found = packed(samples, now)[0] if samples else Unpacked([], {}, [], [])
    others = [one for one in records if one.source not in SAMPLE_SOURCES]
    return engine.run(0, before, others, now, *found[1:])


RAW = pa.schema([*(field for field in RAW_SCHEMA if field.name != "home"), ("now", pa.int64()), ("bucket", pa.int32())])


def packed(records, now, buckets=1, bucket_of=lambda key: 0):
    """Records through the packer; by bucket what comes out. `bucket_of`: the bucket of a key."""
    columns = list(zip(*[(*one[:7], now, bucket_of(one.key)) for one in records], strict=True))
    arrays = [pa.array(column, field.type) for column, field in zip(columns, RAW, strict=True)]
    found = {}
    for batch in bucket_packer(buckets)(iter([pa.RecordBatch.from_arrays(arrays, schema=RAW)])):
        for row in batch.to_pylist():
            assert row["now"] == now
            kinds, bodies = found.setdefault(row["bucket"], ([], []))
            kinds.append(row["kind"])
            bodies.append(row["body"])
    return {bucket: unpack_rows(*parts) for bucket, parts in found.items()}


def stored(before, written):
    """What the state store holds after a batch."""
    parts = {}
    for name in {**before.parts, **written.parts}:
        old, new = before.parts.get(name, StoredPart()), written.parts.get(name, WrittenPart())
        if new.base is not None:
            parts[name] = StoredPart(new.base)
        else:
            parts[name] = StoredPart(old.base, (*old.log, *([] if new.entry is None else [new.entry])))
    return Packed(written.fingerprint, parts)


def topics_of(packed):
    """What is known of the topics of a stored bucket."""
    return unpack_topics(packed.parts.get(TOPICS, StoredPart()))


def loads_of(packed):
    """The loads of a stored bucket."""
    return unpack_loads(packed.parts.get(LOADS, StoredPart()))
