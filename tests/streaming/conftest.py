"""What the tests of the job share: one Spark session, jobs on it or in processes of their own, and their brokers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

import streaming.job.session
from anabranch.cli.main import cli
from anabranch.local.archive import ensure_archive
from anabranch.local.broker import EmbeddedBroker, create_topics, is_serving
from schemas.kafka.topics import KAFKA_TOPICS
from schemas.settings.root import SECRET_VARIABLES, load_settings
from streaming.job.session import start_session
from streaming.sink.sink import LakeSink
from tests.secured_broker import password_of
from tests.streaming.jobs import HOME, Job, SessionJob
from tests.waiting import wait_until


@pytest.fixture(scope="session")
def spark(jars, tmp_path_factory) -> Iterator[SparkSession]:
    """The session with the job's settings and a warehouse of its own; started when first asked for."""
    warehouse = str(tmp_path_factory.mktemp("warehouse"))
    settings = load_settings(environment={})
    ensure_archive(settings, "spark", print)
    with pytest.MonkeyPatch.context() as environment:
        # What the JVM has in its environment is settled when it starts.
        for name in SECRET_VARIABLES:
            environment.setenv(name, password_of("job"))
        session = start_session(settings, {"spark.sql.warehouse.dir": warehouse})
        assert os.environ.keys() >= SECRET_VARIABLES
    yield session
    session.stop()


@pytest.fixture(scope="session")
def jobs_broker(tmp_path_factory, jars) -> Iterator[EmbeddedBroker]:
    """The broker of all jobs."""
    broker = EmbeddedBroker(tmp_path_factory.mktemp("kafka"), jars.kafka)
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def own_broker(jobs_broker) -> EmbeddedBroker:
    """The broker, with nothing but the three topics, created again: the topics' names are fixed."""
    if not is_serving(jobs_broker.connection):
        jobs_broker.start()
    admin = AdminClient({"bootstrap.servers": jobs_broker.bootstrap})
    old = [topic.name for topic in KAFKA_TOPICS if topic.name in admin.list_topics(timeout=10).topics]
    for deleted in admin.delete_topics(old, operation_timeout=20).values() if old else ():
        deleted.result(30)
    create_topics(jobs_broker.connection)
    wait_until(lambda: holds_the_topics(jobs_broker.bootstrap), 20)
    return jobs_broker


def holds_the_topics(bootstrap: str) -> bool:
    """Whether every partition has a leader and no record."""
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "empty", "log_level": 0})
    try:
        return all(
            reader.get_watermark_offsets(TopicPartition(topic.name, partition), timeout=10) == (0, 0)
            for topic in KAFKA_TOPICS
            for partition in range(topic.partitions)
        )
    except KafkaException:
        return False
    finally:
        reader.close()


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
    """Runs commands as jobs; what is left is killed. A failed test shows the end of what they said."""
    jobs: list[Job] = []

    def running(command: list[str]) -> Job:
        jobs.append(Job(command, tmp_path / "job.log"))
        return jobs[-1]

    yield running
    for job in jobs:
        ended = job.process.poll()
        if ended is None:
            job.kill()
        print("a part", "still ran" if ended is None else f"ended with {ended}", "; its log:")
    if jobs:
        print(jobs[0].log.read_text(errors="replace")[-4000:])


@pytest.fixture
def start_process(run, job_settings) -> Callable[..., Job]:
    """Starts `anabranch serve stream` on `job_settings` as a process, or a job that is killed at a given point."""

    def started(*kill: str) -> Job:
        if kill:
            arguments = ["tests.streaming.crashing_job", str(job_settings), *kill]
        else:
            arguments = ["anabranch", "--config", str(job_settings), "stream"]
        return run([sys.executable, "-m", *arguments])

    return started


@pytest.fixture
def start(spark, job_settings) -> Iterator[Callable[..., SessionJob]]:
    """Starts the job of `job_settings` on the shared session; jobs that are left are stopped."""
    jobs: list[SessionJob] = []

    def started(sink_type: type[LakeSink] = LakeSink) -> SessionJob:
        jobs.append(SessionJob(spark, load_settings([job_settings]), sink_type))
        return jobs[-1]

    yield started
    for job in jobs:
        if job.is_running:
            job.stop()


@pytest.fixture
def state(spark, job_settings, monkeypatch) -> Callable[..., str]:
    """What `anabranch lake state` prints on the shared session, for the job of `job_settings`."""

    def ran(*arguments: str) -> str:
        with monkeypatch.context() as patched:
            patched.setattr(streaming.job.session, "start_session", lambda *_: spark)
            patched.setattr(spark, "stop", lambda: None)
            done = CliRunner().invoke(cli, ["--home", str(HOME), "--config", str(job_settings), "state", *arguments])
        assert done.exit_code == 0, done.output
        return done.stdout

    return ran
