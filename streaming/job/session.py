"""The job's Spark session: `conf/spark.conf`, the jars, the interpreter of the workers.

Stage: start-up. Under spark-submit its own `--conf` and `--properties-file` win over the file.
"""

import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from runtime.java_home import archive_options
from schemas.kafka.connection import PASSWORD_VARIABLE
from schemas.settings.root import SECRET_VARIABLES, Settings, SettingsError
from streaming.job.early_worker import write_launcher

log = logging.getLogger(__name__)

JSON_LINES = "conf/log4j2-json.properties"
"""Laid over the logging of the JVM, so that its lines have the fields of ours."""

MAX_ARROW_BYTES = 8 * 1024 * 1024
"""Limit on bytes sent to a Python worker at once; one row may be larger."""


_LOOPBACK = "127.0.0.1"
_FORMER_MODULES = {"streaming.workers": "streaming.job.workers"}
"""Modules by their former names, in an operator's own `spark.conf`."""


def read_spark_conf(file: Path) -> dict[str, str]:
    """Read a file in spark-defaults format: `key value` per line, `#` begins a comment line."""
    try:
        lines = file.read_text().splitlines()
    except OSError as error:
        raise SettingsError(f"cannot read Spark settings {file}: {error.strerror}") from error
    settings = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        key, _, value = text.partition(" ")
        if not key.startswith("spark.") or not value.strip():
            raise SettingsError(f"{file}:{number}: expected `spark.key value`, found {text!r}")
        settings[key] = _FORMER_MODULES.get(value.strip(), value.strip())
    return settings


def absolute_options(options: str, settings: Settings) -> str:
    """Return JVM options with absolute paths for files of `conf/`."""
    return re.sub(r"=(conf/[^\s\"',]+)", lambda match: f"={settings.path(match[1])}", options)


def start_session(
    settings: Settings, extra: dict[str, str] | None = None, scratch: Path | None = None, sockets: Path | None = None
) -> SparkSession:
    """Start the session. `extra` overrides the file; spark-submit's options override both.

    `scratch`: folder for temporary files of Spark and its JVM, unless the settings name one; `sockets`: the same for
    this machine's sockets (`streaming.job.scratch.socket_folder`).
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    conf = {**read_spark_conf(settings.path(settings.stream.spark_conf)), **(extra or {})}
    jars = settings.path(settings.local.jars) / "spark"
    brings_own = "spark.driver.extraClassPath" in conf or "PYSPARK_GATEWAY_PORT" in os.environ
    if not brings_own and not any(jars.glob("*.jar")):
        raise SettingsError(f"there are no jars in {jars}, [local] jars: run anabranch local setup, which fetches them")
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
            # Spark's sockets are here by default; `spark.python.unix.domain.socket.dir` would also apply to
            # executors on other machines.
            conf["spark.driver.extraJavaOptions"] += f' "-Djava.io.tmpdir={sockets or scratch}"'
    conf.setdefault("spark.sql.warehouse.dir", str(settings.path(settings.local.folder) / "spark-warehouse"))
    builder = SparkSession.builder
    for key, value in authenticate_ports({**conf, **_submitted_options()}).items():
        builder = builder.config(key, value)
    if conf.get("spark.driver.host") == _LOOPBACK:
        # Spark looks its machine's name up first, which may be unknown, as in a container without a network.
        os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
    with _unneeded_secrets_hidden():
        spark = builder.getOrCreate()
    if scratch is not None and spark.sparkContext.master.startswith("local"):
        # Elsewhere the executors run the same command but do not have this file.
        spark.sparkContext.pythonExec = write_launcher(str(scratch), spark.sparkContext.pythonExec)
    _pass_signals_on(spark)
    return spark


@contextmanager
def _unneeded_secrets_hidden() -> Iterator[None]:
    """Start the JVM and its Python workers without secrets but Kafka's, which Kafka's client reads there."""
    hidden = {name: os.environ.pop(name) for name in SECRET_VARIABLES - {PASSWORD_VARIABLE} if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)


def authenticate_ports(conf: Mapping[str, str]) -> dict[str, str]:
    """Restrict Spark's own ports, which execute what they receive, to this job's processes.

    With local cores Spark creates the secret itself. A cluster needs one that its daemons share (docs/deploy.md).
    """
    if conf.get("spark.master", "local").startswith("local"):
        return {"spark.authenticate": "true", **conf}
    if conf.get("spark.authenticate", "").lower() != "true":
        log.warning(
            "whoever reaches the ports of Spark's driver and executors can run code there: set spark.authenticate, "
            "spark.authenticate.secret and spark.network.crypto.enabled, for the cluster's daemons too"
        )
    return dict(conf)


def with_archive(settings: Settings, options: str) -> str:
    """Return the JVM options that use the archive of Spark's classes; empty without one."""
    if "Archive" in options:
        return ""
    return "".join(f" {option}" for option in archive_options(settings.path(settings.local.jars) / "spark"))


def _submitted_options() -> dict[str, str]:
    """Return the options given to spark-submit; none when Python was started directly."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    # Without a JVM a SparkConf is empty: only the JVM knows the command line.
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


class _PassOn:
    """A `sun.misc.SignalHandler` that forwards a signal to this Python process."""

    class Java:
        implements = ("sun.misc.SignalHandler",)

    def handle(self, received: Any) -> None:
        os.kill(os.getpid(), received.getNumber())


def _pass_signals_on(spark: SparkSession) -> None:
    """Let Python alone handle SIGTERM and SIGINT.

    A JVM ends at once on either, in the middle of a batch. Under spark-submit it is the process that supervisors
    know, and systemd or a terminal may signal both.
    """
    gateway = spark.sparkContext._gateway
    ensure_callback_server_started(gateway)
    for name in ("TERM", "INT"):
        gateway.jvm.sun.misc.Signal.handle(gateway.jvm.sun.misc.Signal(name), _PassOn())
