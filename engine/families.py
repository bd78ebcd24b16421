"""The families that run, in the order of their evaluation and stored parts.

The only place that names families. Add a family at the end, so that existing state stays readable. A disabled family
is not imported.
"""

from collections.abc import Sequence

from engine.autoscale.family import AUTOSCALE
from engine.kernel.bucket import BucketEngine
from engine.kernel.family import Family, part_names
from engine.kernel.packing import BucketPacker, Unpacked, unpack_bucket
from engine.kernel.settings import EngineSettings
from schemas.kafka.topics import CONTROL_EVENTS

FAMILIES: tuple[Family, ...] = (AUTOSCALE,)
"""Families that always run."""
PARTS = part_names(FAMILIES)
"""Names of their stored parts: state variables, and columns of a rebuilt checkpoint."""
SAMPLE_SOURCES = tuple(family.columns.source for family in FAMILIES if family.columns)
"""Kafka topics of samples, which are read apart from events."""


def families_of(settings: EngineSettings) -> tuple[Family, ...]:
    """Return the families that run under these settings."""
    if not settings.bundles:
        return FAMILIES
    from engine.bundles.family import BUNDLES

    return (*FAMILIES, BUNDLES)


def parts_of(settings: EngineSettings) -> list[str]:
    """Return the names of their stored parts."""
    return part_names(families_of(settings))


def event_sources(settings: EngineSettings) -> tuple[str, ...]:
    """Return the Kafka topics of their events."""
    return (*(source for family in families_of(settings) for source in family.sources), CONTROL_EVENTS.name)


def bucket_engine(settings: EngineSettings) -> BucketEngine:
    """Return an engine with all families."""
    return BucketEngine(settings, families_of(settings))


def bucket_packer(buckets: int, settings: EngineSettings | None = None) -> BucketPacker:
    """Return the stage before the shuffle; without settings, for the families that always run."""
    return BucketPacker(buckets, FAMILIES if settings is None else families_of(settings))


def unpack_rows(kinds: Sequence[str], bodies: Sequence[bytes]) -> Unpacked:
    """Unpack the packed rows of a bucket; only families that always run have samples."""
    return unpack_bucket(kinds, bodies, FAMILIES)
