"""Backpressure: limits the sample messages of the next batch so that it meets its time goal.

Stage: beside the query, in the driver. An event that arrives during a batch waits for its end, so a backlog of
samples must not make batches long. A message holds between one and ten thousand samples, which is known only after
reading: the first batches after a start are small, and each later one is limited by the duration of its predecessor.
"""

from dataclasses import dataclass
from typing import Any

from pyspark import SparkContext
from pyspark.sql.streaming import StreamingQuery

from schemas.kafka.topics import SEGMENT_STATS
from streaming.job.meter import lag_of
from streaming.sink.sink import WrittenBatch

MAX_SAMPLES = 1_000_000
"""Limit on the samples of a batch, estimated from the previous one."""
FIRST, FEWEST = 500, 100
"""Messages of the first batch, and of the smallest."""
GROWTH = 10


@dataclass
class BatchPace:
    """Number of messages that the next batch may hold."""

    most: int
    """Upper limit on messages: `[stream] max_stats_per_batch`."""
    goal_seconds: float
    """Intended duration of a batch: `[stream] batch_seconds`."""

    def __post_init__(self) -> None:
        self.messages = min(FIRST, self.most)

    def observe(self, messages: int, samples: int, seconds: float) -> None:
        """Record a batch: its sample messages, their samples, and its duration."""
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
            # There was nothing more to read.
            return
        self.messages = min(self.most, max(FEWEST, int(allowed)))


class PacedSource:
    """Sample source of a running query, limited to the messages per batch of a pace."""

    def __init__(self, pace: BatchPace) -> None:
        self._pace = pace
        self._query: StreamingQuery | None = None

    def follow(self, query: StreamingQuery) -> None:
        """Apply the pace to this query from now on."""
        self._query = query

    def observe_batch(self, batch: WrittenBatch) -> None:
        """Record a batch of the query, on the thread that plans the next one."""
        row, before = batch.row, self._pace.messages
        if self._query is None or not (row["samples"] or row["dead_letters"]):
            # Without samples there is nothing to learn, and a call to the JVM takes milliseconds.
            return
        execution: Any = self._query._jsq.streamingQuery()
        source = _source_of_samples(execution)
        messages = _messages(execution, source)
        if row["events"] > messages:
            # The layouts of a first start take seconds, unrelated to samples.
            return
        self._pace.observe(messages, row["samples"], (row["committed_at"] - row["batch_at"]) / 1000)
        if self._pace.messages != before:
            _set_limit(execution, source, self._pace.messages)


def _source_of_samples(execution: Any) -> Any:
    """Return the JVM object of the sample source, recognized by its subscribed Kafka topics."""
    sources = execution.uniqueSources().keysIterator()
    while SEGMENT_STATS.name not in (source := sources.next()).toString():
        pass
    return source


def _messages(execution: Any, source: Any) -> int:
    """Return the number of the source's messages in the running batch."""
    start, end = execution.getStartOffsetsOfLatestBatch().get(source), execution.availableOffsets().get(source)
    return sum(lag_of(*[offset.get().json() if offset.isDefined() else None for offset in (start, end)]).values())


def _set_limit(execution: Any, source: Any, messages: int) -> None:
    """Set the source's limit per batch, in a table of Spark's that can only be changed in place."""
    allowed = SparkContext._jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit.maxRows(messages)
    getattr(execution, "uniqueSources_$eq")(execution.uniqueSources().updated(source, allowed))
