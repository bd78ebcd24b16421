"""How many messages of samples the next batch may hold, so that a batch takes about as long as it may.

Stage: beside the query, in the driver. An event that comes in the middle of a batch waits for its end, so that samples
that have piled up must not make it long. How much there is in a message of samples, one or ten thousand, is known when
it has been read: the first batches after a start are small, and each later one is cut by what the one before it took.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark import SparkContext
from pyspark.sql.streaming import StreamingQuery

from schemas.kafka import SEGMENT_STATS
from streaming.meter import lag_of
from streaming.sink import WrittenBatch

MAX_SAMPLES = 1_000_000
"""Of a batch, as far as the one before it tells."""
FIRST, FEWEST = 500, 100
"""Messages of the first batch, and of the smallest."""
GROWTH = 10


@dataclass
class Pace:
    """The number of messages that the next batch may hold."""

    most: int
    """Never more messages than these."""
    goal_seconds: float
    """How long a batch may take."""

    def __post_init__(self) -> None:
        self.messages = min(FIRST, self.most)

    def observe(self, messages: int, samples: int, seconds: float) -> None:
        """Takes in a batch: its messages of samples, the samples in them, and how long it took."""
        if not messages:
            return
        fitting = messages * self.goal_seconds / max(seconds, 1e-3)
        if samples:
            fitting = min(fitting, messages * MAX_SAMPLES / samples)
        if messages > fitting:
            allowed = fitting
        elif 2 * messages > self.messages:
            allowed = min(fitting, self.messages * GROWTH)
        else:
            # There was not more to read.
            return
        self.messages = min(self.most, max(FEWEST, int(allowed)))


class PacedSource:
    """The source of samples of a running query, which reads as many messages a batch as a pace says."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._query: StreamingQuery | None = None

    def follow(self, query: StreamingQuery) -> None:
        """From now on the pace holds for this query."""
        self._query = query

    def observe_batch(self, batch: WrittenBatch) -> None:
        """Takes in a batch of the query, on the thread that plans the next one."""
        row, before = batch.row, self._pace.messages
        if self._query is None or not (row["samples"] or row["dead_letters"]):
            # Without samples there is nothing to learn, and asking the JVM takes milliseconds.
            return
        execution: Any = self._query._jsq.streamingQuery()
        source = _source_of_samples(execution)
        messages = _messages(execution, source)
        if row["events"] > messages:
            # The layouts of a first start take seconds, which say nothing about samples.
            return
        self._pace.observe(messages, row["samples"], (row["committed_at"] - row["batch_at"]) / 1000)
        if self._pace.messages != before:
            _limit(execution, source, self._pace.messages)


def _source_of_samples(execution: Any) -> Any:
    """The JVM's object for it, by the Kafka topics that it says it is subscribed to."""
    sources = execution.uniqueSources().keysIterator()
    while SEGMENT_STATS.name not in (source := sources.next()).toString():
        pass
    return source


def _messages(execution: Any, source: Any) -> int:
    """How many messages the batch that runs has of the source."""
    start, end = execution.getStartOffsetsOfLatestBatch().get(source), execution.availableOffsets().get(source)
    said = [offset.get().json() if offset.isDefined() else None for offset in (start, end)]
    return sum(lag_of(*said).values())


def _limit(execution: Any, source: Any, messages: int) -> None:
    """Before each batch Spark tells its sources how much they may say, by a table that it makes when the query starts
    and keeps for good. There is no way to change it but in place."""
    allowed = SparkContext._jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit.maxRows(messages)
    getattr(execution, "uniqueSources_$eq")(execution.uniqueSources().updated(source, allowed))
