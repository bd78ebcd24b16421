"""The lake in Spark SQL: a database `anabranch` with every table, in a persistent metastore.

Stage: beside the job, in a session of its own; it changes no table. Unless `conf/spark.conf` names a Hive metastore
(`spark.hadoop.hive.metastore.uris`), it uses one in the folder of the local run, which one process at a time can
open. The job itself never uses the metastore: it knows its tables by path.
"""

from collections.abc import Mapping
from pathlib import Path

import pyspark
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from lake.files import table_path
from lake.register import EXECUTORS
from lake.tables import create_lake
from schemas.settings.root import Settings
from schemas.tables.rows import TABLES
from streaming.job.session import absolute_options, read_spark_conf, with_archive

DATABASE = "anabranch"
_SERVICE = "spark.hadoop.hive.metastore.uris"
_OPTIONS = "spark.driver.extraJavaOptions"
_NEEDED_BY_SQL = (
    "spark.sql.extensions",
    "spark.sql.catalog.spark_catalog",
    "spark.sql.session.timeZone",
    _SERVICE,
    # By default Delta reads each table's log in fifty tasks, and the local file system forks a process per file.
    "spark.databricks.delta.snapshotPartitions",
    "spark.ui.enabled",
    "spark.hadoop.fs.file.impl",
    "spark.hadoop.fs.AbstractFileSystem.file.impl",
)


def catalog_settings(settings: Settings) -> dict[str, str]:
    """Return settings, besides `conf/spark.conf`, to see the database. Raises `SettingsError`."""
    conf = read_spark_conf(settings.path(settings.stream.spark_conf))
    spark_settings = {"spark.sql.catalogImplementation": "hive"}
    if _SERVICE not in conf:
        folder = settings.path(settings.local.folder)
        spark_settings["spark.hadoop.javax.jdo.option.ConnectionURL"] = (
            f"jdbc:derby:;databaseName={folder}/metastore;create=true"
        )
        spark_settings["spark.sql.warehouse.dir"] = str(folder / "spark-warehouse")
        spark_settings[_OPTIONS] = f"{conf.get(_OPTIONS, '')} -Dderby.stream.error.file={folder}/metastore.log".strip()
    return spark_settings


def spark_sql_command(settings: Settings) -> list[str]:
    """Return the command line of this environment's `spark-sql` that opens the database."""
    conf = read_spark_conf(settings.path(settings.stream.spark_conf))
    wanted = {key: conf[key] for key in _NEEDED_BY_SQL if key in conf} | catalog_settings(settings)
    if _OPTIONS in wanted:
        wanted[_OPTIONS] = absolute_options(wanted[_OPTIONS], settings) + with_archive(settings, wanted[_OPTIONS])
    # From the package, not the environment's bin: that one finds Spark only in an activated shell.
    program = str(Path(pyspark.__file__).with_name("bin") / "spark-sql")
    jars = settings.path(settings.local.jars) / "spark"
    options = [f"--conf={key}={value}" for key, value in wanted.items()]
    return [program, f"--driver-class-path={jars}/*", *options, "--database", DATABASE]


def register_lake(spark: SparkSession, lake: str) -> dict[str, str]:
    """Register every table of the lake as an external table of `DATABASE`; return name to location.

    Creates missing tables; the register of executors exists once one was started. A name that pointed elsewhere is
    redirected; no files change. Safe to repeat.
    """
    create_lake(lake)
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
    locations = {name: location_of(table_path(lake, table)) for name, table in TABLES.items()}
    if DeltaTable.is_deltatable(register := f"{lake.rstrip('/')}/{EXECUTORS}"):
        locations[EXECUTORS] = location_of(register)
    for name, location in locations.items():
        table = f"{DATABASE}.{name}"
        if spark.catalog.tableExists(table):
            described = spark.sql(f"DESCRIBE DETAIL {table}").first()
            if described is not None and described["location"] and location_of(described["location"]) == location:
                continue
            spark.sql(f"DROP TABLE {table}")
        spark.sql(f"CREATE TABLE {table} USING delta LOCATION '{location}'")
    return locations


def register_views(spark: SparkSession, statements: Mapping[str, str]) -> None:
    """Create views and functions, each by its CREATE OR REPLACE statement, in order."""
    for statement in statements.values():
        spark.sql(statement)


def location_of(path: str) -> str:
    """Return a path or URL as a URL for Spark; local paths begin with `file:///`."""
    return path if "://" in path else Path(path.removeprefix("file:")).as_uri()
