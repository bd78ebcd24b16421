"""The Spark session of the job: `conf/spark.conf`, the jars, the interpreter of the workers.

Stage: start-up. Under spark-submit its own `--conf` and `--properties-file` win over the file.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from schemas.settings import Settings, SettingsError
from streaming.early_worker import write_launcher

log = logging.getLogger(__name__)

JSON_LINES = "conf/log4j2-json.properties"
"""Laid over the logging of the JVM, so that its lines have the fields of ours."""

MAX_ARROW_BYTES = 8 * 1024 * 1024
"""What goes to a Python worker at once; one row may be larger. Without it 10,000 rows go, 1 MiB each or not."""


def read_spark_conf(file: Path) -> dict[str, str]:
    """The settings of a file in spark-defaults format: `key value` a line, `#` begins a comment line."""
    try:
        lines = file.read_text().splitlines()
    except OSError as error:
        raise SettingsError(f"cannot read Spark settings {file}: {error.strerror}") from error
    found = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        key, _, value = text.partition(" ")
        if not key.startswith("spark.") or not value.strip():
            raise SettingsError(f"{file}:{number}: expected `spark.key value`, found {text!r}")
        found[key] = value.strip()
    return found


def absolute_options(options: str, settings: Settings) -> str:
    """Options of the JVM with the files of `conf/` by their absolute paths."""
    return re.sub(r"=(conf/[^\s\"',]+)", lambda found: f"={settings.path(found[1])}", options)


def start_session(
    settings: Settings, extra: dict[str, str] | None = None, scratch: Path | None = None, sockets: Path | None = None
) -> SparkSession:
    """The session of the job. `extra` is laid over the file; what spark-submit was given is laid over both.

    `scratch`: where Spark and its JVM put their temporary files, unless the settings name a place; `sockets`: the same
    for the sockets of this machine (`streaming.scratch.socket_folder`).
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    conf = {**read_spark_conf(settings.path(settings.stream.spark_conf)), **(extra or {})}
    jars = settings.path(settings.local.jars) / "spark"
    brings_own = "spark.driver.extraClassPath" in conf or "PYSPARK_GATEWAY_PORT" in os.environ
    if not brings_own and not any(jars.glob("*.jar")):
        raise SettingsError(f"there are no jars in {jars}, [local] jars: run anabranch setup, which fetches them")
    class_path = f"{jars}/*"
    conf.setdefault("spark.driver.extraClassPath", class_path)
    conf.setdefault("spark.executor.extraClassPath", class_path)
    options = conf.get("spark.driver.extraJavaOptions", "")
    if settings.log.format == "json":
        options = options.replace("=conf/log4j2.properties", f"=conf/log4j2.properties,{settings.path(JSON_LINES)}")
    conf["spark.driver.extraJavaOptions"] = absolute_options(options, settings) + with_archive(settings, options)
    conf.setdefault("spark.sql.execution.arrow.maxBytesPerBatch", str(MAX_ARROW_BYTES))
    if scratch is not None:
        conf.setdefault("spark.local.dir", str(scratch))
        if "java.io.tmpdir" not in options:
            # Where Spark's sockets are if no setting says so; `spark.python.unix.domain.socket.dir` would hold for the
            # executors of other machines too.
            conf["spark.driver.extraJavaOptions"] += f' "-Djava.io.tmpdir={sockets or scratch}"'
    conf.setdefault("spark.sql.warehouse.dir", str(settings.path(settings.local.folder) / "spark-warehouse"))
    builder = SparkSession.builder
    for key, value in authenticated({**conf, **_submitted()}).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    if scratch is not None and spark.sparkContext.master.startswith("local"):
        # Elsewhere the executors start the same command, and do not have this file.
        spark.sparkContext.pythonExec = write_launcher(str(scratch), spark.sparkContext.pythonExec)
    _pass_signals_on(spark)
    return spark


def authenticated(conf: Mapping[str, str]) -> dict[str, str]:
    """Close Spark's own ports, which run what they are sent, to everybody but this job's processes.

    With local cores Spark makes the secret itself. A cluster needs one that its daemons have too (docs/cluster.md).
    """
    if conf.get("spark.master", "local").startswith("local"):
        return {"spark.authenticate": "true", **conf}
    if conf.get("spark.authenticate", "").lower() != "true":
        log.warning(
            "whoever reaches the ports of Spark's driver and executors can run code there: set spark.authenticate, "
            "spark.authenticate.secret and spark.network.crypto.enabled, for the cluster's daemons too"
        )
    return dict(conf)


def class_archive(settings: Settings) -> Path:
    """Where the set-up puts the archive of the JVM's classes (`lab.archive`)."""
    return settings.path(settings.local.jars) / "spark.jsa"


def with_archive(settings: Settings, options: str) -> str:
    """What to add to the JVM's options so that it takes its classes from the archive; nothing where there is none."""
    archive = class_archive(settings)
    if not archive.is_file() or "Archive" in options:
        return ""
    # The JVM ignores an archive of another JVM or class path; operators need no message about it.
    return f" -XX:SharedArchiveFile={archive} -Xlog:cds=off -Xlog:cds+dynamic=off"


def _submitted() -> dict[str, str]:
    """What spark-submit was given; nothing when Python started first."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    # Without a JVM a SparkConf is empty: only the JVM knows the command line.
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


class _PassOn:
    """A `sun.misc.SignalHandler` that gives a signal to this Python process."""

    class Java:
        implements = ("sun.misc.SignalHandler",)

    def handle(self, received: Any) -> None:
        os.kill(os.getpid(), received.getNumber())


def _pass_signals_on(spark: SparkSession) -> None:
    """Lets Python alone decide what SIGTERM and SIGINT mean.

    A JVM ends at once on either, in the middle of a batch. Under spark-submit it is the process that supervisors know,
    and systemd or a terminal may tell both.
    """
    gateway = spark.sparkContext._gateway
    ensure_callback_server_started(gateway)
    for name in ("TERM", "INT"):
        gateway.jvm.sun.misc.Signal.handle(gateway.jvm.sun.misc.Signal(name), _PassOn())
