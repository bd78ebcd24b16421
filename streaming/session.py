"""The Spark session of the job: `conf/spark.conf`, the jars, the interpreter of the workers.

Stage: start-up. Under spark-submit its own `--conf` and `--properties-file` win over the file.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark import SparkConf
from pyspark.sql import SparkSession

from schemas.settings import Settings, SettingsError


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


def start_session(settings: Settings, extra: dict[str, str] | None = None) -> SparkSession:
    """The session of the job. `extra` is laid over the file; what spark-submit was given is laid over both."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    conf = {**read_spark_conf(settings.path(settings.stream.spark_conf)), **(extra or {})}
    jars = settings.path(settings.local.jars) / "spark"
    class_path = f"{jars}/*"
    conf.setdefault("spark.driver.extraClassPath", class_path)
    conf.setdefault("spark.executor.extraClassPath", class_path)
    options = conf.get("spark.driver.extraJavaOptions", "")
    conf["spark.driver.extraJavaOptions"] = options.replace("=conf/", f"={settings.home}/conf/")
    conf.setdefault("spark.sql.warehouse.dir", str(settings.path(settings.local.folder) / "spark-warehouse"))
    submitted = dict(SparkConf().getAll()) if "PYSPARK_GATEWAY_PORT" in os.environ else {}
    builder = SparkSession.builder
    for key, value in {**conf, **submitted}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
