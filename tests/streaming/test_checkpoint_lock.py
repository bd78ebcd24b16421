"""One job at a time has a checkpoint, however it is spelt."""

from __future__ import annotations

import pytest

from schemas.settings.root import load_settings
from streaming.checkpoint.claim import CheckpointInUse, holder_name, lock_checkpoint
from streaming.checkpoint.storage import checkpoint_of, is_local


def of(checkpoint: object) -> str:
    return checkpoint_of(load_settings(environment={}), str(checkpoint))


@pytest.mark.parametrize(
    "spelt", ["{}", "file:{}", "file://{}", "file://localhost{}", "{}/", "file://{}/", "{}/../stream"]
)
def test_second_holder_refused_until_release(tmp_path, spelt):
    checkpoint = tmp_path / "checkpoints" / "stream"
    first, second = holder_name(), holder_name()
    with lock_checkpoint(of(checkpoint), first) as before:
        assert before is None
        for _ in range(2):
            with (
                pytest.raises(CheckpointInUse, match=f"in use by {first}"),
                lock_checkpoint(of(spelt.format(checkpoint)), second),
            ):
                pass
    with lock_checkpoint(of(spelt.format(checkpoint)), second) as before:
        assert before == first


def test_a_link_to_a_checkpoint_has_its_lock(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with (
        lock_checkpoint(of(tmp_path / "link"), "one"),
        pytest.raises(CheckpointInUse, match="in use by one"),
        lock_checkpoint(of(tmp_path / "real"), "two"),
    ):
        pass


@pytest.mark.parametrize("url", ["s3a://bucket/stream", "hdfs:/stream", "abfss://c@a.dfs.core.windows.net/stream"])
def test_foreign_url_unchanged_and_unlocked(url):
    assert (of(url), is_local(of(url))) == (url, False)
    with lock_checkpoint(of(url), "one") as before, lock_checkpoint(of(url), "two"):
        assert before is None
