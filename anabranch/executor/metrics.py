"""Prometheus metrics of the executor, read from the running executors at each scrape.

Stage: beside `anabranch.executor.process`, which serves them at `[executor] metrics_port`. Documented in
docs/operations.md, "Brakes".
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from anabranch.executor.kernel.loop import Executor
from anabranch.safeguards.rules import BRAKES


class ExecutorMetrics(Collector):
    """Metrics of all executors of a process, one per shard; scraped from another thread than theirs."""

    def __init__(
        self, executors: Callable[[], Sequence[Executor]], files: Callable[[], Mapping[str, int]] = dict
    ) -> None:
        self._executors, self._files = executors, files

    def collect(self) -> Iterator[Metric]:
        """Return the current metrics."""
        executors = self._executors()
        standings = [executor.brakes.standing() for executor in executors]
        yield GaugeMetricFamily(
            "anabranch_executor_shards", "Shards that it acts on; 0 while it stands by.", len(executors)
        )
        yield GaugeMetricFamily(
            "anabranch_executor_open_decisions",
            "Decisions without an end.",
            sum(executor.open_decisions for executor in executors),
        )
        waiting = GaugeMetricFamily(
            "anabranch_executor_waiting_decisions",
            "Decisions that a brake holds: stop, pause, window, approval or rate.",
            labels=["brake"],
        )
        for brake in BRAKES:
            waiting.add_metric([brake], sum(state.waiting[brake] for state in standings))
        yield waiting
        yield GaugeMetricFamily(
            "anabranch_executor_stopped",
            "1 while too many failures have stopped it, until somebody resumes it.",
            int(any(state.is_stopped for state in standings)),
        )
        yield GaugeMetricFamily(
            "anabranch_executor_pauses",
            "Pauses of topics, namespaces or all that hold now.",
            max((state.pauses for state in standings), default=0),
        )
        yield GaugeMetricFamily(
            "anabranch_executor_window_open",
            "1 while maintenance windows allow acting.",
            int(all(state.is_window_open for state in standings)),
        )
        yield GaugeMetricFamily(
            "anabranch_executor_recent_failures",
            "Failures that count towards a stop, within [executor.brakes] failures_seconds.",
            sum(state.failures for state in standings),
        )
        yield CounterMetricFamily(
            "anabranch_executor_calls",
            "Calls since the start, repeated ones too; without those on shards that it has given back.",
            sum(state.calls for state in standings),
        )
        files = GaugeMetricFamily(
            "anabranch_lake_files",
            "Files of a table, as of the last look at it (lake.compact_minutes).",
            labels=["table"],
        )
        for table, number in self._files().items():
            files.add_metric([table], number)
        yield files


def registry_of(
    executors: Callable[[], Sequence[Executor]], files: Callable[[], Mapping[str, int]] = dict
) -> CollectorRegistry:
    """Return a separate registry with these metrics; `files` returns the number of files per table."""
    registry = CollectorRegistry()
    registry.register(ExecutorMetrics(executors, files))
    return registry
