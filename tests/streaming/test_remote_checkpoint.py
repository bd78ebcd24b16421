"""A checkpoint at a URL: one job at a time has the lake, and what was rebuilt there is taken up.

The storage is Hadoop's `viewfs`, which Spark knows by a URL only, as it knows an object store.
"""

from __future__ import annotations

import shutil
import threading

import pytest

from decisions.topic.layout import SegmentLayout
from lake import job_lease
from lake.job_lease import NoLease
from schemas.settings.root import load_settings
from schemas.tables.rows import DECISIONS
from streaming.job.job import PersonNeeded, run_job
from tests.engine.records import layout, stats, tick
from tests.streaming.jobs import BATCH_SECONDS, TOPICS, Feed, check_nothing_lost_and_nothing_twice, now_ms, read, rows
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(600)]


@pytest.fixture
def at_a_url(spark, job_settings, tmp_path, monkeypatch):
    """The job's checkpoint is at a URL; answers where the test sees its files."""
    # Who renews it shares this process with Spark's driver, which may keep it waiting for seconds.
    monkeypatch.setattr(job_lease, "SECONDS", 12.0)
    folder = tmp_path / "remote"
    folder.mkdir()
    host = tmp_path.name.replace("_", "-")
    spark._jsc.hadoopConfiguration().set(f"fs.viewfs.mounttable.{host}.link./ck", folder.as_uri())
    text = job_settings.read_text()
    job_settings.write_text(text.replace(f"{tmp_path}/checkpoint", f"viewfs://{host}/ck/stream"))
    return folder / "stream"


def test_remote_checkpoint_exclusive_and_rebuildable(at_a_url, start, state, job_settings, own_broker):
    """A second job is refused; a lost checkpoint is rebuilt there and used."""
    settings, feed = load_settings([job_settings]), Feed(own_broker.bootstrap)
    job = start()
    feed.send(*[layout(SegmentLayout.create(2, now_ms()), topic=topic) for topic in TOPICS])
    feed.send(*[stats({0: 50_000.0, 1: 1.0}, now_ms(), topic) for topic in TOPICS], tick(now_ms()))
    wait_until(lambda: not job.is_running or read(settings) == feed.end_offsets(), BATCH_SECONDS, 0.2)
    assert job.failure is None
    with pytest.raises(NoLease, match=r"in use by the job of process \d+ on .* with the checkpoint viewfs:"):
        run_job(settings, threading.Event())
    job.stop()
    assert max(int(file.name) for file in (at_a_url / "commits").glob("[0-9]*")) >= 0
    decided = len(rows(settings, DECISIONS))
    assert decided == len(TOPICS)

    shutil.move(at_a_url, at_a_url.with_name("lost"))
    assert "4 topics, 4 open decisions" in state("rebuild")
    shutil.move(at_a_url / "rebuilt", at_a_url.with_name("left"))
    failure = start().end()
    assert isinstance(failure, PersonNeeded)
    assert "Copy the checkpoint as a whole" in str(failure)
    shutil.move(at_a_url.with_name("left"), at_a_url / "rebuilt")

    job = start()
    feed.send(tick(now_ms()))
    wait_until(lambda: not job.is_running or read(settings) == feed.end_offsets(), BATCH_SECONDS, 0.2)
    assert job.failure is None
    job.stop()
    assert len(rows(settings, DECISIONS)) == decided
    check_nothing_lost_and_nothing_twice(settings, feed)
