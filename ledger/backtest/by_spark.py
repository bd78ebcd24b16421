"""The parts of a history on the workers of Spark: the same function on each as in one process.

Stage: beside `running`, for whoever has a session. The workers need the history's folder by the same path, as they
have on one machine, or on a shared file system.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from engine.autoscale.topics import ConfiguredPolicy
from ledger.backtest.reading import History
from ledger.backtest.running import Part, backtest_part


def parts_by_spark(session: Any, history: History, policies: Mapping[str, ConfiguredPolicy]) -> Iterator[Part]:
    """What `backtest` takes as its `parts`, in no order; each is in memory when it comes. Raises what Spark raises."""
    numbers = session.createDataFrame([(number,) for number in range(len(history.parts))], "number INT")
    dealt = numbers.repartitionByRange(len(history.parts), "number")
    for row in dealt.mapInArrow(_worker(history, dict(policies)), "body BINARY").toLocalIterator(
        prefetchPartitions=True
    ):
        # Written by our own workers a moment ago.
        yield pickle.loads(row["body"])


def _worker(
    history: History, policies: dict[str, ConfiguredPolicy]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:  # fmt: skip
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch["number"].to_pylist():
                done = pickle.dumps(backtest_part(history, number, policies))
                yield pa.RecordBatch.from_arrays([pa.array([done], pa.binary())], ["body"])

    return work
