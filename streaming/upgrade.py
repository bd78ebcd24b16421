"""A checkpoint of an older release, or from another place, made one that Spark starts today's operator on.

Stage: start-up, once the checkpoint is known to fit the lake. Spark describes the operator in the checkpoint, and two
things in there stop it although the state itself is fine. Its name: releases before state was handled in rows ran the
same processor through another call of Spark, which leaves the same variables, keys and bytes under another name. And
the path of the file of the state's schema: it is absolute, so a checkpoint that was moved would be read without it.
What the state's values hold is the engine's to read (`engine.autoscale.topics_codec`, `engine.autoscale.loads_codec`).
"""

from __future__ import annotations

import json
import logging

from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_FORMER = "transformWithStateInPandasExec"
_PRESENT = "transformWithStateInPySparkExec"
_VERSION = "v2"
"""First line of a file of Spark's that describes an operator; the second line is JSON."""
_SCHEMAS = "/state/0/_stateSchema/"


def adopt_operator(spark: SparkSession, checkpoint: str) -> bool:
    """Has the checkpoint describe its stateful operator as this release's, and as being where it is.

    Answers whether anything had to be changed. The checkpoint may be on any storage; each file is replaced as a
    whole or not at all. Safe to repeat.
    """
    jvm, hadoop = spark.sparkContext._gateway.jvm, spark._jsc.hadoopConfiguration()
    root = jvm.org.apache.hadoop.fs.Path(checkpoint)
    place = root.getFileSystem(hadoop).makeQualified(root)
    folder = jvm.org.apache.hadoop.fs.Path(place, f"state/0/_metadata/{_VERSION}")
    manager = jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
    files = manager.create(folder, hadoop)
    adopted = False
    for status in files.list(folder) if files.exists(folder) else ():
        stream = files.open(status.getPath())
        try:
            text = jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        finally:
            stream.close()
        if (fitting := described_here(text, place.toString())) == text:
            continue
        out = files.createAtomic(status.getPath(), True)
        out.write(fitting.encode())
        out.close()
        adopted = True
    if adopted:
        log.info(
            "the checkpoint %s is of an older release or was moved, and now belongs to this release and this place",
            checkpoint,
        )
    return adopted


def described_here(text: str, place: str) -> str:
    """The description of an operator, as Spark stores it, for this release and a checkpoint at `place` (a URL).

    Other operators, and descriptions in a form that is not known, are answered as they are.
    """
    version, _, body = text.partition("\n")
    if version != _VERSION:
        return text
    described = json.loads(body)
    operator, before = described["operatorInfo"], json.dumps(described)
    if operator["operatorName"] == _FORMER:
        operator["operatorName"] = _PRESENT
    for store in described["stateStoreInfo"]:
        store["stateSchemaFilePaths"] = [
            place + _SCHEMAS + path.rpartition(_SCHEMAS)[2] if _SCHEMAS in path else path
            for path in store["stateSchemaFilePaths"]
        ]
    if json.dumps(described) == before:
        return text
    return f"{version}\n{json.dumps(described, separators=(',', ':'))}"
