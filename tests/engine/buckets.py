"""A bucket over several batches, and the state store after each."""

from __future__ import annotations

from engine.autoscale.family import AUTOSCALE, LOADS, TOPICS
from engine.autoscale.loads_codec import unpack_loads
from engine.autoscale.topics import ConfiguredPolicy
from engine.autoscale.topics_codec import unpack_topics
from engine.families import FAMILIES
from engine.kernel.bucket import BucketEngine
from engine.kernel.packed import Packed, StoredPart, WrittenPart, pack_anew
from engine.kernel.settings import EngineSettings

SETTINGS = EngineSettings(0.25, 60_000)
CONFIGURED = ConfiguredPolicy("default", None)


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
        written, output = self.engine.run(0, self.packed, list(records), now)
        self.packed = stored(self.packed, written)
        return output


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
