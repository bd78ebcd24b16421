"""The lake in Spark SQL: a database `anabranch` with every table by its name, in a metastore that outlives the session.

Stage: beside the job; it runs in a session of its own, reads nothing and changes no table. Unless `conf/spark.conf`
names a Hive metastore (`spark.hadoop.hive.metastore.uris`), it is one in a folder of the local run, which one process
at a time can open. The job never asks the metastore: it knows its tables by path.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from lake.files import table_path
from lake.register import registers
from lake.tables import create_lake
from schemas.settings import Settings
from schemas.tables import TABLES
from streaming.session import absolute_options, read_spark_conf, with_archive

DATABASE = "anabranch"
_SERVICE = "spark.hadoop.hive.metastore.uris"
_OPTIONS = "spark.driver.extraJavaOptions"
_NEEDED_BY_SQL = (
    "spark.sql.extensions", "spark.sql.catalog.spark_catalog", "spark.sql.session.timeZone", _SERVICE,
    # Delta reads each table's log in fifty tasks unless told; the local file system forks a process for each file.
    "spark.databricks.delta.snapshotPartitions", "spark.ui.enabled",
    "spark.hadoop.fs.file.impl", "spark.hadoop.fs.AbstractFileSystem.file.impl",
)  # fmt: skip


def catalog_settings(settings: Settings) -> dict[str, str]:
    """What a session needs, over `conf/spark.conf`, to see the database; raises `SettingsError`."""
    conf = read_spark_conf(settings.path(settings.stream.spark_conf))
    found = {"spark.sql.catalogImplementation": "hive"}
    if _SERVICE not in conf:
        folder = settings.path(settings.local.folder)
        found["spark.hadoop.javax.jdo.option.ConnectionURL"] = (
            f"jdbc:derby:;databaseName={folder}/metastore;create=true"
        )
        found["spark.sql.warehouse.dir"] = str(folder / "spark-warehouse")
        found[_OPTIONS] = f"{conf.get(_OPTIONS, '')} -Dderby.stream.error.file={folder}/metastore.log".strip()
    return found


def spark_sql_command(settings: Settings) -> list[str]:
    """The command line of the `spark-sql` of this environment that opens the database."""
    conf = read_spark_conf(settings.path(settings.stream.spark_conf))
    wanted = {key: conf[key] for key in _NEEDED_BY_SQL if key in conf} | catalog_settings(settings)
    if _OPTIONS in wanted:
        wanted[_OPTIONS] = absolute_options(wanted[_OPTIONS], settings) + with_archive(settings, wanted[_OPTIONS])
    # Of the package, not of the environment's bin: that one finds Spark only in a shell with the environment active.
    program = str(Path(pyspark.__file__).with_name("bin") / "spark-sql")
    jars = settings.path(settings.local.jars) / "spark"
    options = [f"--conf={key}={value}" for key, value in wanted.items()]
    return [program, f"--driver-class-path={jars}/*", *options, "--database", DATABASE]


def register_lake(spark: SparkSession, lake: str) -> dict[str, str]:
    """Every table of the lake as an external table of `DATABASE`: table name to location. Safe to repeat.

    Tables of the lake that are missing are made; the register of executors is there once one was started. A name that
    stood for another place is pointed here; the files of either place are left as they are.
    """
    create_lake(lake)
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
    places = {name: location_of(table_path(lake, table)) for name, table in TABLES.items()}
    places |= {name: location_of(path) for name, path in registers(lake).items()}
    for name, place in places.items():
        table = f"{DATABASE}.{name}"
        if spark.catalog.tableExists(table):
            known = spark.sql(f"DESCRIBE DETAIL {table}").first()
            if known is not None and known["location"] and location_of(known["location"]) == place:
                continue
            spark.sql(f"DROP TABLE {table}")
        spark.sql(f"CREATE TABLE {table} USING delta LOCATION '{place}'")
    return places


def register_views(spark: SparkSession, statements: Mapping[str, str]) -> None:
    """Views and functions by name, each of a statement that makes it or replaces it, in that order."""
    for statement in statements.values():
        spark.sql(statement)


def location_of(path: str) -> str:
    """A path or URL as a URL that Spark takes: local paths begin with `file:///`."""
    if "://" in path:
        return path
    return Path(path.removeprefix("file:")).as_uri()
