"""Spark's own ports are closed to others: they run what they are sent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from schemas.kafka.connection import PASSWORD_VARIABLE
from schemas.settings.root import SECRET_VARIABLES, SettingsError, load_settings
from streaming.job.session import authenticate_ports, read_spark_conf, start_session

HOME = Path(__file__).parents[2]


@pytest.mark.parametrize("master", [{}, {"spark.master": "local[2]"}, {"spark.master": "local"}])
def test_local_cores_are_authenticated(master, caplog):
    assert authenticate_ports(master) == {"spark.authenticate": "true", **master}
    assert authenticate_ports({**master, "spark.authenticate": "false"})["spark.authenticate"] == "false"
    assert caplog.messages == []


def test_cluster_without_a_secret_is_warned_of(caplog):
    plain = {"spark.master": "spark://host:7077"}
    assert authenticate_ports(plain) == plain
    [line] = caplog.messages
    assert "spark.authenticate.secret" in line
    caplog.clear()
    secured = {**plain, "spark.authenticate": "true", "spark.authenticate.secret": "x"}
    assert authenticate_ports(secured) == secured
    assert caplog.messages == []


def test_session_of_local_cores_has_a_secret(spark):
    assert spark.sparkContext.getConf().get("spark.authenticate") == "true"
    assert spark.range(100).repartition(2).count() == 100


def test_jvm_and_workers_have_no_secret_but_the_brokers(spark):
    in_jvm = {name for name in SECRET_VARIABLES if spark._jvm.System.getenv(name) is not None}
    in_worker = spark.sparkContext.parallelize([0], 1).map(lambda _: set(os.environ)).first() & SECRET_VARIABLES
    assert in_jvm == in_worker == {PASSWORD_VARIABLE}


def test_missing_jars_end_the_start_in_one_line(tmp_path, monkeypatch):
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    settings = load_settings([], tmp_path, {"ANABRANCH_LOCAL__JARS": str(tmp_path / "jars")})
    with pytest.raises(
        SettingsError, match=r"there are no jars in .*/jars/spark, \[local\] jars: run anabranch local setup"
    ):
        start_session(settings)


def test_former_worker_module_is_read_as_the_new_one(tmp_path):
    file = tmp_path / "spark.conf"
    file.write_text("spark.python.daemon.module streaming.workers\nspark.app.name streaming.workers.mine\n")
    assert read_spark_conf(file) == {
        "spark.python.daemon.module": "streaming.job.workers",
        "spark.app.name": "streaming.workers.mine",
    }


@pytest.mark.process
def test_connection_that_spark_closed_ends_a_worker_without_traceback():
    # In a process of its own: the module prepares the one that imports it for Spark's tasks.
    lines = (
        "from streaming.job import workers",
        "def closed(*_): raise BrokenPipeError",
        "workers.worker = closed",
        "print(workers.run_worker(None, True))",
    )
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], cwd=HOME, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("1\n", "")
