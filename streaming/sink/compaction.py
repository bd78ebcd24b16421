"""OPTIMIZE on Spark's executors, for tables too large for one process (rules: `lake.maintenance`).

Stage: beside the job, occasionally.
"""

from __future__ import annotations

from datetime import date

from pyspark.sql import SparkSession

from lake.compaction import alone
from lake.files import table_path
from lake.maintenance import Compacted, cluster_column
from schemas.tables.rows import Table


def compact_by_delta_spark(spark: SparkSession, lake: str, table: Table, cluster_before: date | None) -> Compacted:
    """Compact as `lake.maintenance.compact_by_delta_rs`; raises what Spark raises, or `Compacting`."""
    statement = f"OPTIMIZE delta.`{table_path(lake, table)}`"
    if cluster_before is not None:
        statement += f" WHERE day < '{cluster_before.isoformat()}' ZORDER BY ({cluster_column(table)})"
    with alone(lake, table):
        row = spark.sql(statement).first()
    return Compacted(row["metrics"]["numFilesRemoved"], row["metrics"]["numFilesAdded"])
