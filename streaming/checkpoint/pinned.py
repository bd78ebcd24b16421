"""Settings of each batch, stored in the checkpoint, so that a repeated batch runs with its own.

Stage: start-up, before the query plans a batch. A batch that was begun but not completed is repeated by the next
start, and part of it may be in the lake. Other settings could change its decisions. So each start stores its
settings in the checkpoint, under the number of the first batch that it can begin. Settings that determine the
state's layout cannot change at all.
"""

import json
import logging
from dataclasses import asdict

from engine.kernel.settings import EngineSettings, UnfinishedBatch
from schemas.settings.root import SettingsError
from streaming.checkpoint.claim import Place
from streaming.checkpoint.storage import CheckpointFiles

log = logging.getLogger(__name__)

FOLDER = "settings"
"""Folder in the checkpoint: one file per batch number from which other settings apply."""


def pin_settings(
    files: CheckpointFiles, position: Place | None, settings: EngineSettings, buckets: int
) -> UnfinishedBatch | None:
    """Store the settings of this start; return the batch that still runs with earlier ones, if any.

    Raises `SettingsError` when the state in the checkpoint has another number of buckets.
    """
    begun, ended = (-1, -1) if position is None else (position.newest_batch, position.newest_ended)
    numbers = sorted(files.numbers(FOLDER))
    former = max((number for number in numbers if number <= begun), default=None)
    repeated = None
    if former is not None:
        pinned = json.loads(files.text(f"{FOLDER}/{former}") or "{}")
        if pinned["buckets"] != buckets:
            raise SettingsError(
                f"the state in {files.checkpoint} is laid out by {pinned['buckets']} buckets, and [stream] buckets is "
                f"{buckets}: set it back, or move the checkpoint away and `anabranch lake state rebuild` with the "
                "new number"
            )
        before = EngineSettings(**pinned["engine"])
        if before.bundles and not settings.bundles:
            raise SettingsError(
                f"the state in {files.checkpoint} has clusters with bundles, and [bundles] enabled is false: set it "
                "back, or move the checkpoint away and `anabranch serve stream --new-checkpoint`"
            )
        if begun > ended and before != settings:
            repeated = _repeated_batch(files, begun, before)
    text = json.dumps({"engine": _stored_settings(settings), "buckets": buckets})
    if not numbers or files.text(f"{FOLDER}/{numbers[-1]}") != text:
        files.write(f"{FOLDER}/{begun + 1}", text)
    return repeated


def _stored_settings(settings: EngineSettings) -> dict[str, object]:
    """Return the settings to store; those unknown to older releases only if used."""
    stored = asdict(settings)
    return stored if settings.bundles else {name: value for name, value in stored.items() if name != "bundles"}


def _repeated_batch(files: CheckpointFiles, batch: int, settings: EngineSettings) -> UnfinishedBatch | None:
    """Return the repeated batch with its time, from the line of Spark's offset log that has it."""
    for line in (files.text(f"offsets/{batch}") or "").splitlines():
        if '"batchTimestampMs"' in line:
            log.info("batch %d was begun with other settings, and is repeated with those: %s", batch, settings)
            return UnfinishedBatch(json.loads(line)["batchTimestampMs"], settings)
    return None
