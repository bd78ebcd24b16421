"""What the tests of the job share: one Spark session, and jobs in processes of their own on a broker of their own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lab.archive import ensure_archive
from lab.broker import EmbeddedBroker, create_topics
from schemas.settings import load_settings
from streaming.session import start_session
from tests.streaming.jobs import Job


@pytest.fixture(scope="session")
def spark(jars, tmp_path_factory) -> Iterator[SparkSession]:
    """The session with the job's settings and a warehouse of its own; started when first asked for."""
    warehouse = str(tmp_path_factory.mktemp("warehouse"))
    settings = load_settings(environment={})
    ensure_archive(settings, print)
    session = start_session(settings, {"spark.sql.warehouse.dir": warehouse})
    yield session
    session.stop()


@pytest.fixture
def own_broker(tmp_path, jars):
    """A broker of the test's own: the topics' names are fixed."""
    broker = EmbeddedBroker(tmp_path / "kafka", jars.kafka)
    broker.start()
    try:
        create_topics(broker.bootstrap)
        yield broker
    finally:
        broker.stop()


@pytest.fixture
def job_settings(tmp_path, own_broker) -> Path:
    """A settings file for a job on that broker, with a lake and a checkpoint of its own."""
    file = tmp_path / "job.toml"
    file.write_text(
        f'[kafka]\nbootstrap = "{own_broker.bootstrap}"\n[lake]\npath = "{tmp_path}/lake"\n'
        f'[local]\nfolder = "{tmp_path}/var"\n'
        f'[stream]\ncheckpoint = "{tmp_path}/checkpoint"\nbuckets = 4\ntick_seconds = 3600\n'
    )
    return file


@pytest.fixture
def run(tmp_path) -> Iterator[Callable[[list[str]], Job]]:
    """Runs commands as jobs; whatever is left is killed."""
    jobs: list[Job] = []

    def running(command: list[str]) -> Job:
        jobs.append(Job(command, tmp_path / "job.log"))
        return jobs[-1]

    yield running
    for job in jobs:
        if job.process.poll() is None:
            job.kill()


@pytest.fixture
def start(run, job_settings) -> Callable[..., Job]:
    """Starts `anabranch stream` on `job_settings`, or a job that crashes as it is told to."""

    def started(*crash: str) -> Job:
        if crash:
            arguments = ["tests.streaming.crashing_job", str(job_settings), *crash]
        else:
            arguments = ["anabranch.cli", "--config", str(job_settings), "stream"]
        return run([sys.executable, "-m", *arguments])

    return started
