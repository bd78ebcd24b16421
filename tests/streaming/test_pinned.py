"""A repeated batch runs with the settings of its first attempt, however often the settings change meanwhile."""

from __future__ import annotations

import json

import pytest

from engine.kernel.settings import EngineSettings, UnfinishedBatch
from schemas.settings.root import SettingsError
from streaming.checkpoint.claim import read_place
from streaming.checkpoint.pinned import pin_settings
from streaming.checkpoint.storage import LocalFiles

ONE, TWO, THREE = (EngineSettings(change_threshold, 60_000) for change_threshold in (0.1, 0.2, 0.3))


class Checkpoint:
    """A checkpoint in which batches begin and end."""

    def __init__(self, folder):
        self.files = LocalFiles(str(folder))
        self.files.write("metadata", json.dumps({"id": "q"}))

    def start(self, settings, buckets=4):
        return pin_settings(self.files, read_place(self.files), settings, buckets)

    def begin(self, batch):
        self.files.write(f"offsets/{batch}", f'v1\n{{"batchWatermarkMs":0,"batchTimestampMs":{1000 + batch}}}\n{{}}')

    def end(self, batch):
        self.files.write(f"commits/{batch}", "v1\n{}")


@pytest.fixture
def checkpoint(tmp_path):
    return Checkpoint(tmp_path)


def test_interrupted_batch_keeps_settings(checkpoint):
    """It keeps them through any number of starts."""
    assert checkpoint.start(ONE) is None
    checkpoint.begin(0)
    checkpoint.end(0)
    checkpoint.begin(1)
    assert checkpoint.start(TWO) == UnfinishedBatch(1001, ONE)
    assert checkpoint.start(THREE) == UnfinishedBatch(1001, ONE)
    assert checkpoint.start(ONE) is None
    assert checkpoint.start(TWO) == UnfinishedBatch(1001, ONE)
    checkpoint.end(1)
    checkpoint.begin(2)
    assert checkpoint.start(ONE) == UnfinishedBatch(1002, TWO)


def test_settings_without_batch_leave_nothing(checkpoint):
    for settings in (ONE, TWO, THREE):
        assert checkpoint.start(settings) is None
    checkpoint.begin(0)
    assert checkpoint.start(ONE) == UnfinishedBatch(1000, THREE)


def test_ended_batch_not_repeated_older_one_runs(checkpoint):
    """One of an older release runs with what there is."""
    checkpoint.begin(0)
    assert checkpoint.start(ONE) is None
    checkpoint.end(0)
    checkpoint.begin(1)
    checkpoint.end(1)
    assert checkpoint.start(TWO) is None


def test_bucket_count_fixed_once_state_exists(checkpoint):
    checkpoint.start(ONE, buckets=4)
    checkpoint.start(ONE, buckets=8)
    checkpoint.begin(0)
    with pytest.raises(
        SettingsError, match=r"is laid out by 8 buckets, and .stream. buckets is 4: set it back, or move"
    ):
        checkpoint.start(ONE, buckets=4)
