"""Backtest of a history's parts on the workers of Spark, by the same function as in one process.

Stage: beside `running`, for callers with a session. The workers need the history's folder under the same path, as on
one machine or a shared file system.
"""

import pickle
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from anabranch.simulation.backtest.reading import History
from anabranch.simulation.backtest.running import Part, backtest_part
from engine.autoscale.topics import ConfiguredPolicy


def parts_by_spark(session: Any, history: History, policies: Mapping[str, ConfiguredPolicy]) -> Iterator[Part]:
    """Yield the `parts` for `backtest` in no order, each held in memory. Raises what Spark raises."""
    numbers = session.createDataFrame([(number,) for number in range(len(history.parts))], "number INT")
    dealt = numbers.repartitionByRange(len(history.parts), "number")
    for row in dealt.mapInArrow(_worker(history, dict(policies)), "body BINARY").toLocalIterator(
        prefetchPartitions=True
    ):
        # Written by our own workers a moment ago.
        yield pickle.loads(row["body"])


def _worker(
    history: History, policies: dict[str, ConfiguredPolicy]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch["number"].to_pylist():
                done = pickle.dumps(backtest_part(history, number, policies))
                yield pa.RecordBatch.from_arrays([pa.array([done], pa.binary())], ["body"])

    return work
