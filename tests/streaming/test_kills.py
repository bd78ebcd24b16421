"""One checkpoint and one lake through kills at every named point, under load; then every row is held to account."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from lab.offsets import end_offsets
from lake.integrity import check_integrity
from schemas.settings import load_settings
from schemas.tables import BATCHES, DEAD_LETTERS, DECISIONS, EVENTS, HOLDS, SEGMENT_LOAD
from tests.streaming.answering import restless_cluster
from tests.streaming.jobs import HOME, Feed, check_nothing_lost_and_nothing_twice, read, rows
from tests.streaming.recomputation import in_order, recomputed
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(1800)]

KILLS = [
    ("delta-rs", "decisions:before", "all", -signal.SIGKILL),
    ("delta-rs", "decisions:after", "jvm", 1),
    ("delta-rs", "segment_load:before", "driver", -signal.SIGKILL),
    ("delta-rs", "batches:before", "all", -signal.SIGKILL),
    ("delta-rs", "state-upload", "all", -signal.SIGKILL),
    ("delta-spark", "operator", "worker", 1),
    ("delta-spark", "segment_load:after", "all", -signal.SIGKILL),
    ("delta-spark", "batches:after", "all", -signal.SIGKILL),
    ("delta-spark", "commit-log", "all", -signal.SIGKILL),
]
"""Writer of the loads, point, victim, and how the driver ends. After the last commit is before Spark's own."""


def test_killed_at_every_point_under_load_the_lake_is_what_an_undisturbed_computation_gives(
    start, job_settings, own_broker, tmp_path
):
    keep_all_batches(job_settings, tmp_path)
    settings, feed = load_settings([job_settings]), Feed(own_broker.bootstrap)
    checkpoint, scratch = Path(settings.stream.checkpoint), settings.path(settings.local.folder) / "scratch"
    with restless_cluster(feed, settings):
        for writer, point, victim, end in KILLS:
            written_by(job_settings, writer)
            logged = entries_of(checkpoint)
            assert start(point, victim).process.wait(180) == end, (writer, point)
            assert entries_of(checkpoint) > logged, f"no progress before {point}"
            left = list(scratch.glob("job-*"))
            assert len(left) == (end == -signal.SIGKILL), "the folder of this one at most, and none of those before"
            assert victim != "all" or list(left[0].glob("librocksdb*"))
        job = start()
        decided = len(rows(settings, DECISIONS))
        wait_until(lambda: len(rows(settings, DECISIONS)) > decided + 2, 120, 0.2)
    wait_until(lambda: read(settings) == feed.end_offsets(), 180, 0.2)
    assert job.stop() == 0
    assert not list(scratch.glob("job-*"))
    check_nothing_lost_and_nothing_twice(settings, feed)
    found = {table.name: rows(settings, table) for table in (DECISIONS, HOLDS, EVENTS, DEAD_LETTERS, SEGMENT_LOAD)}
    integrity = check_integrity(
        rows(settings, BATCHES), found["decisions"], found["holds"], [], found["events"], found["dead_letters"],
        end_offsets(own_broker.bootstrap),
    )  # fmt: skip
    assert integrity["ok"], integrity
    assert max(row["seq"] for row in found["decisions"]) > 1
    for name, expected in recomputed(settings).items():
        assert in_order(found[name]) == expected, name


def written_by(job_settings: Path, writer: str) -> None:
    """Has the next start write the loads with another writer."""
    lines = [line for line in job_settings.read_text().splitlines() if not line.startswith("bulk_writer")]
    job_settings.write_text("\n".join([*lines, f'bulk_writer = "{writer}"', ""]))


def entries_of(checkpoint: Path) -> int:
    """Batches begun and batches ended, in Spark's own logs."""
    return sum(len(list((checkpoint / log).glob("[0-9]*"))) for log in ("offsets", "commits"))


def keep_all_batches(job_settings: Path, folder: Path) -> None:
    """Lets Spark keep its log of offsets from the first batch on."""
    conf = folder / "spark.conf"
    given = (HOME / "conf" / "spark.conf").read_text()
    conf.write_text(given.replace("minBatchesToRetain                    50", "minBatchesToRetain 5000"))
    assert conf.read_text() != given
    with open(job_settings, "a") as file:
        file.write(f'spark_conf = "{conf}"\n')
