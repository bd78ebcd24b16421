"""The families that run, in the order of their turns and of their stored parts: the one place that names them.

A family that is added goes to the end, so that the state of those before it is read on.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.autoscale.family import AUTOSCALE
from engine.kernel.bucket import BucketEngine
from engine.kernel.family import Family, part_names
from engine.kernel.packing import BucketPacker, Unpacked, unpack_bucket
from engine.kernel.settings import EngineSettings
from schemas.kafka import CONTROL_EVENTS

FAMILIES: tuple[Family, ...] = (AUTOSCALE,)
PARTS = part_names(FAMILIES)
"""Names of the stored parts: state variables, and columns of a rebuilt checkpoint."""
EVENT_SOURCES = (*(source for family in FAMILIES for source in family.sources), CONTROL_EVENTS.name)
"""Kafka topics of events; samples are read apart from them, from `SAMPLE_SOURCES`."""
SAMPLE_SOURCES = tuple(family.columns.source for family in FAMILIES if family.columns)


def bucket_engine(settings: EngineSettings) -> BucketEngine:
    """The engine with all families."""
    return BucketEngine(settings, FAMILIES)


def bucket_packer(buckets: int) -> BucketPacker:
    """The stage before the shuffle, with all families."""
    return BucketPacker(buckets, FAMILIES)


def unpack_rows(kinds: Sequence[str], bodies: Sequence[bytes]) -> Unpacked:
    """What the packer has packed of a bucket."""
    return unpack_bucket(kinds, bodies, FAMILIES)
