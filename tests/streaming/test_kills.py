"""One checkpoint and one lake through crashes at every named point, under load; then every row is checked.

Most crashes are exceptions inside one process, on one session; kills of whole processes stand beside them.
"""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from tempfile import gettempdir

import pytest

import streaming.job.job
from anabranch.local.offsets import end_offsets
from lake.integrity import check_integrity
from schemas.settings.root import Settings, load_settings
from schemas.tables.rows import BATCHES, DEAD_LETTERS, DECISIONS, EVENTS, HOLDS, SEGMENT_LOAD
from streaming.job.job import JobFailed
from streaming.operator.outbox import INLINE_BYTES
from streaming.operator.processor import BucketProcessor
from streaming.sink.sink import LakeSink
from tests.streaming.answering import restless_cluster
from tests.streaming.crashes import SINK_POINTS, crashing_processor, crashing_sink
from tests.streaming.jobs import HOME, Feed, check_nothing_lost_and_nothing_twice, rows, stop_when_all_is_read
from tests.streaming.recomputation import in_order, recomputed
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(900)]

KILLS = [("state-upload", "all", -signal.SIGKILL)]
"""Point, victim, and how the driver ends."""
MORE_KILLS = [
    ("segment_load:after", "jvm", 1),
    ("output:before", "all", -signal.SIGKILL),
    ("events:after", "driver", -signal.SIGKILL),
    ("commit-log", "driver", -signal.SIGKILL),
    ("decisions:after", "manager", 1),
]
POINTS = ["batch:begin", "output:before", "decisions:after", "holds:before", "segment_load:before", "batches:before"]
"""One before anything of a batch, and those between which something else is written."""


@pytest.mark.parametrize(
    ("inline_bytes", "points"),
    [
        pytest.param(INLINE_BYTES, POINTS, id="through Spark"),
        pytest.param(INLINE_BYTES, SINK_POINTS, id="through Spark, every point", marks=pytest.mark.soak),
        pytest.param(0, SINK_POINTS, id="in files, every point", marks=pytest.mark.soak),
    ],
)
def test_crashes_under_load_leave_the_exact_lake(
    inline_bytes, points, start, job_settings, own_broker, tmp_path, monkeypatch
):
    """Crashed at each point; an undisturbed computation gives the same lake."""
    keep_all_batches(job_settings, tmp_path)
    monkeypatch.setattr(streaming.job.job, "BucketProcessor", partial(BucketProcessor, inline_bytes=inline_bytes))
    settings, feed = load_settings([job_settings]), Feed(own_broker.bootstrap)
    checkpoint = Path(settings.stream.checkpoint)
    with restless_cluster(feed, settings):
        for point in points:
            crashes_after_progress(partial(start, crashing_sink(point)), checkpoint, f"crashed at {point}")
        for how, said in (("raises", "crashed in the operator"), ("killed", "Python worker exited unexpectedly")):
            with monkeypatch.context() as patched:
                crashing = partial(crashing_processor(checkpoint, how), inline_bytes=inline_bytes)
                patched.setattr(streaming.job.job, "BucketProcessor", crashing)
                crashes_after_progress(start, checkpoint, said)
        job = start()
        goes_on_deciding(settings)
    stop_when_all_is_read(job, start, settings, feed)
    is_what_an_undisturbed_computation_gives(settings, feed)


def crashes_after_progress(start, checkpoint: Path, said: str) -> None:
    """Starts a job that crashes, and checks that it came further than the one before it."""
    logged = entries_of(checkpoint)
    failure = start().end()
    assert isinstance(failure, JobFailed)
    assert said in str(failure.__cause__)
    assert entries_of(checkpoint) > logged, f"no progress before: {said}"


@pytest.mark.soak
def test_late_connections_restart_the_query(start, job_settings, own_broker, tmp_path):
    keep_all_batches(job_settings, tmp_path)
    settings, feed = load_settings([job_settings]), Feed(own_broker.bootstrap)
    points = ["batch:begin", "decisions:after", "batches:after"]

    def gives_up(point: str) -> None:
        raise TimeoutError(f"Python worker failed to connect back. At {point}")

    def sinks(*arguments):
        kind = crashing_sink(points.pop(0), gives_up) if points else LakeSink
        return kind(*arguments)

    with restless_cluster(feed, settings):
        job = start(sinks)
        wait_until(lambda: not points, 240, 0.2)
        goes_on_deciding(settings)
    stop_when_all_is_read(job, start, settings, feed)
    is_what_an_undisturbed_computation_gives(settings, feed)


@pytest.mark.parametrize(
    "kills",
    [pytest.param(KILLS, id="all at once"), pytest.param(MORE_KILLS + KILLS, id="each victim", marks=pytest.mark.soak)],
)
def test_killed_processes_leave_startable_state(kills, start_process, start, job_settings, own_broker, tmp_path):
    """The next start continues from the checkpoint and the lake."""
    keep_all_batches(job_settings, tmp_path)
    settings, feed = load_settings([job_settings]), Feed(own_broker.bootstrap)
    checkpoint, scratch = Path(settings.stream.checkpoint), settings.path(settings.local.folder) / "scratch"
    with restless_cluster(feed, settings):
        for point, victim, end in kills:
            logged = entries_of(checkpoint)
            assert start_process(point, victim).process.wait(180) == end, point
            assert entries_of(checkpoint) > logged, f"no progress before {point}"
            left = list(scratch.glob("job-*"))
            assert len(left) == (end == -signal.SIGKILL), "the folder of this one at most, and none of those before"
            # Where the path is too long for sockets, the JVM's files lie beside them.
            folders = [*left, *Path(gettempdir(), f"anabranch-{os.getuid()}").glob("job-*")]
            assert victim != "all" or any(folder.glob("librocksdb*") for folder in folders)
        job = start()
        goes_on_deciding(settings)
    stop_when_all_is_read(job, start, settings, feed)
    assert not list(scratch.glob("job-*"))
    is_what_an_undisturbed_computation_gives(settings, feed)


def goes_on_deciding(settings: Settings) -> None:
    """More decisions come."""
    decided = len(rows(settings, DECISIONS))
    wait_until(lambda: len(rows(settings, DECISIONS)) > decided + 2, 120, 0.2)


def is_what_an_undisturbed_computation_gives(settings: Settings, feed: Feed) -> None:
    """Every row of the lake is the one that an undisturbed computation gives, and there is no other."""
    check_nothing_lost_and_nothing_twice(settings, feed)
    found = {table.name: rows(settings, table) for table in (DECISIONS, HOLDS, EVENTS, DEAD_LETTERS, SEGMENT_LOAD)}
    integrity = check_integrity(
        rows(settings, BATCHES),
        found["decisions"],
        found["holds"],
        [],
        found["events"],
        found["dead_letters"],
        end_offsets(settings.kafka_connection()),
    )
    assert integrity["ok"], integrity
    assert max(row["seq"] for row in found["decisions"]) > 1
    for name, expected in recomputed(settings).items():
        assert in_order(found[name]) == expected, name


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
