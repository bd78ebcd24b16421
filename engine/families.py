"""The families that run, in the order of their turns and of their stored parts: the one place that names them.

A family that is added goes to the end, so that the state of those before it is read on. One that is switched off is
not imported.
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
"""Those that always run."""
PARTS = part_names(FAMILIES)
"""Names of their stored parts: state variables, and columns of a rebuilt checkpoint."""
SAMPLE_SOURCES = tuple(family.columns.source for family in FAMILIES if family.columns)
"""Kafka topics of samples; events are read apart from them."""


def families_of(settings: EngineSettings) -> tuple[Family, ...]:
    """The families that run under these settings."""
    if not settings.bundles:
        return FAMILIES
    from engine.bundles.family import BUNDLES

    return (*FAMILIES, BUNDLES)


def parts_of(settings: EngineSettings) -> list[str]:
    """The names of their stored parts."""
    return part_names(families_of(settings))


def event_sources(settings: EngineSettings) -> tuple[str, ...]:
    """The Kafka topics of their events."""
    return (*(source for family in families_of(settings) for source in family.sources), CONTROL_EVENTS.name)


def bucket_engine(settings: EngineSettings) -> BucketEngine:
    """The engine with all families."""
    return BucketEngine(settings, families_of(settings))


def bucket_packer(buckets: int, settings: EngineSettings | None = None) -> BucketPacker:
    """The stage before the shuffle, with all families; without settings those that always run."""
    return BucketPacker(buckets, FAMILIES if settings is None else families_of(settings))


def unpack_rows(kinds: Sequence[str], bodies: Sequence[bytes]) -> Unpacked:
    """What the packer has packed of a bucket; only families that always run have samples."""
    return unpack_bucket(kinds, bodies, FAMILIES)
