"""The job under spark-submit, on local cores and on a standalone cluster: it decides, and stops between two batches."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from decisions.topic.layout import SegmentLayout
from schemas.settings.root import load_settings
from schemas.tables.rows import BATCHES, DEAD_LETTERS, DECISIONS, EVENTS, HOLDS, SEGMENT_LOAD
from tests.engine.records import layout, tick
from tests.examples import only_first
from tests.harness.spark_cluster import StandaloneCluster
from tests.streaming.jobs import BATCH_SECONDS, TOPICS, Feed, Job, fed_all_along, load_round, now_ms, read, rows
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(600)]

WRITTEN = (BATCHES, DECISIONS, HOLDS, EVENTS, DEAD_LETTERS, SEGMENT_LOAD)


@pytest.fixture(params=only_first(1, [1, 2]), ids="{} workers".format)
def cluster(request, tmp_path, jars) -> Iterator[StandaloneCluster]:
    """Two cores, of one worker or of two."""
    one = StandaloneCluster(tmp_path / "cluster", request.param, cores=2 // request.param, memory="512m")
    one.start()
    try:
        yield one
    finally:
        one.stop()


def submitted(master: str, settings_file: Path, jars: Path) -> list[str]:
    """The command line of docs/deploy.md, with small heaps."""
    return [
        str(Path(pyspark.__file__).with_name("bin") / "spark-submit"),
        "--master",
        master,
        "--properties-file",
        "conf/spark.conf",
        "--driver-class-path",
        f"{jars}/*",
        "--conf",
        f"spark.pyspark.python={sys.executable}",
        "--driver-memory",
        "512m",
        "--executor-memory",
        "512m",
        "--conf",
        "spark.executor.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "deploy/stream.py",
        "--config",
        str(settings_file),
    ]


def decides_and_stops_between_batches(job: Job, feed: Feed, settings_file: Path) -> None:
    settings = load_settings([settings_file])
    layouts = [layout(SegmentLayout.create(2, now_ms()), topic=topic) for topic in TOPICS]
    feed.send(*layouts, *load_round(6), tick(now_ms()))
    wait_until(lambda: job.process.poll() is not None or read(settings) == feed.end_offsets(), 180, 0.2)
    assert job.process.poll() is None
    assert {row["subject"] for row in rows(settings, DECISIONS)} == set(TOPICS)
    checkpoint = Path(settings.stream.checkpoint)
    with fed_all_along(feed):
        before = read(settings)
        wait_until(lambda: read(settings) > before, BATCH_SECONDS, 0.05)
        assert job.stop() == 0
    assert "cut off" not in job.log.read_text()
    begun, ended = ({int(file.name) for file in (checkpoint / log).glob("[0-9]*")} for log in ("offsets", "commits"))
    assert ended
    written = {row["batch_id"] for table in WRITTEN for row in rows(settings, table)}
    assert written <= ended, "rows of a batch that did not end"
    assert begun - ended <= {max(ended) + 1}, "one that was planned when the signal came may be left for the next start"


@pytest.mark.soak
def test_local_submit_decides_and_stops_cleanly(tmp_path, jars, own_broker, job_settings, run):
    """It asks for a person when no restart helps."""
    command = submitted("local[2]", job_settings, jars.spark)
    decides_and_stops_between_batches(run(command), Feed(own_broker.bootstrap), job_settings)
    (tmp_path / "checkpoint" / "metadata").unlink()
    assert run(command).process.wait(180) == 4
    last_line = (tmp_path / "job.log").read_text().rstrip().rpartition("Error: ")[2]
    assert "put its newest copy in its place" in last_line


@pytest.mark.soak
def test_cluster_submit_decides_and_stops_on_sigterm(jars, own_broker, job_settings, run, cluster):
    """SIGTERM ends it between batches."""
    job = run(submitted(cluster.url, job_settings, jars.spark))
    decides_and_stops_between_batches(job, Feed(own_broker.bootstrap), job_settings)
    assert all(list(cluster.folder.glob(f"worker-{number}/app-*/*")) for number in range(cluster.workers))
