"""A repeated batch runs with the settings of its first attempt, however often the settings change meanwhile."""

from __future__ import annotations

import json

import pytest

from engine.kernel.settings import EngineSettings, Repeated
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


def test_a_batch_that_was_cut_off_keeps_its_settings_through_any_number_of_starts(checkpoint):
    assert checkpoint.start(ONE) is None
    checkpoint.begin(0)
    checkpoint.end(0)
    checkpoint.begin(1)
    assert checkpoint.start(TWO) == Repeated(1001, ONE)
    assert checkpoint.start(THREE) == Repeated(1001, ONE)
    assert checkpoint.start(ONE) is None
    assert checkpoint.start(TWO) == Repeated(1001, ONE)
    checkpoint.end(1)
    checkpoint.begin(2)
    assert checkpoint.start(ONE) == Repeated(1002, TWO)


def test_settings_that_no_batch_was_begun_with_leave_nothing_behind(checkpoint):
    for settings in (ONE, TWO, THREE):
        assert checkpoint.start(settings) is None
    checkpoint.begin(0)
    assert checkpoint.start(ONE) == Repeated(1000, THREE)


def test_a_batch_that_has_ended_is_not_repeated_and_one_of_an_older_release_runs_with_what_there_is(checkpoint):
    checkpoint.begin(0)
    assert checkpoint.start(ONE) is None
    checkpoint.end(0)
    checkpoint.begin(1)
    checkpoint.end(1)
    assert checkpoint.start(TWO) is None


def test_another_number_of_buckets_is_refused_once_there_is_state(checkpoint):
    checkpoint.start(ONE, buckets=4)
    checkpoint.start(ONE, buckets=8)
    checkpoint.begin(0)
    with pytest.raises(
        SettingsError, match=r"is laid out by 8 buckets, and .stream. buckets is 4: set it back, or move"
    ):
        checkpoint.start(ONE, buckets=4)
