"""Adapt the operator description of a checkpoint from an older release or another location.

Stage: start-up, once the checkpoint is known to match the lake. Spark describes the operator in the checkpoint, and
refuses valid state if that description differs in one of two ways:

- the operator's name. Older releases ran the same processor through another call of Spark: the same variables, keys and
  bytes under another name.
- the path of the state schema's file. It is absolute, so Spark would not find it after the checkpoint was moved.

The contents of state values are read by the engine (`engine.autoscale.topics_codec`, `engine.autoscale.loads_codec`).
"""

import json
import logging

from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_OLD_NAME = "transformWithStateInPandasExec"
_NAME = "transformWithStateInPySparkExec"
_VERSION = "v2"
"""First line of Spark's operator description files; the second line is JSON."""
_SCHEMAS = "/state/0/_stateSchema/"


def adopt_operator(spark: SparkSession, checkpoint: str) -> bool:
    """Rewrite the checkpoint's operator description for this release and location.

    Returns whether it changed. The checkpoint may be on any storage. Files are replaced atomically; safe to repeat.
    """
    jvm, hadoop = spark.sparkContext._gateway.jvm, spark._jsc.hadoopConfiguration()
    root = jvm.org.apache.hadoop.fs.Path(checkpoint)
    qualified = root.getFileSystem(hadoop).makeQualified(root)
    folder = jvm.org.apache.hadoop.fs.Path(qualified, f"state/0/_metadata/{_VERSION}")
    manager = jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
    files = manager.create(folder, hadoop)
    adopted = False
    for status in files.list(folder) if files.exists(folder) else ():
        stream = files.open(status.getPath())
        try:
            text = jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        finally:
            stream.close()
        if (description := described_here(text, qualified.toString())) == text:
            continue
        out = files.createAtomic(status.getPath(), True)
        out.write(description.encode())
        out.close()
        adopted = True
    if adopted:
        log.info(
            "the checkpoint %s is of an older release or was moved, and now belongs to this release and this place",
            checkpoint,
        )
    return adopted


def described_here(text: str, url: str) -> str:
    """Return an operator description, in Spark's form, for this release and a checkpoint at `url`.

    Other operators, and descriptions of unknown form, are returned unchanged.
    """
    version, _, body = text.partition("\n")
    if version != _VERSION:
        return text
    described = json.loads(body)
    operator, before = described["operatorInfo"], json.dumps(described)
    if operator["operatorName"] == _OLD_NAME:
        operator["operatorName"] = _NAME
    for store in described["stateStoreInfo"]:
        store["stateSchemaFilePaths"] = [
            url + _SCHEMAS + path.rpartition(_SCHEMAS)[2] if _SCHEMAS in path else path
            for path in store["stateSchemaFilePaths"]
        ]
    if json.dumps(described) == before:
        return text
    return f"{version}\n{json.dumps(described, separators=(',', ':'))}"
