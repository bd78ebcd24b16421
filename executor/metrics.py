"""The executor's Prometheus metrics: read off the running executor at each scrape, so that nothing has to be kept.

Stage: beside `executor.process`, which serves them at `[executor] metrics_port`. Told to people in docs/operations.md,
"Brakes".
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from executor.brakes.waiting import Brakes
from executor.kernel.loop import Executor, Work


class ExecutorMetrics(Collector):
    """All metrics of one executor; scraped from another thread than its own."""

    def __init__(self, executor: Executor, brakes: Brakes[Work]) -> None:
        self._executor, self._brakes = executor, brakes

    def collect(self) -> Iterator[Metric]:
        """The metrics as they are now."""
        standing = self._brakes.standing()
        yield GaugeMetricFamily(
            "anabranch_executor_open_decisions", "Decisions without an end.", self._executor.open_decisions
        )
        waiting = GaugeMetricFamily(
            "anabranch_executor_waiting_decisions",
            "Decisions that a brake holds: stop, pause, window, approval or rate.",
            labels=["brake"],
        )
        for brake, number in standing.waiting.items():
            waiting.add_metric([brake], number)
        yield waiting
        yield GaugeMetricFamily(
            "anabranch_executor_stopped",
            "1 while too many failures have stopped it, until somebody resumes it.",
            int(standing.is_stopped),
        )
        yield GaugeMetricFamily(
            "anabranch_executor_pauses", "Pauses of topics, namespaces or all that hold now.", standing.pauses
        )
        yield GaugeMetricFamily(
            "anabranch_executor_window_open", "1 while maintenance windows allow acting.", int(standing.is_window_open)
        )
        yield GaugeMetricFamily(
            "anabranch_executor_recent_failures",
            "Failures that count towards a stop, within [executor.brakes] failures_seconds.",
            standing.failures,
        )
        yield CounterMetricFamily(
            "anabranch_executor_calls", "Calls since the start, repeated ones too.", standing.calls
        )


def registry_of(executor: Executor, brakes: Brakes[Work]) -> CollectorRegistry:
    """A registry of its own with these metrics."""
    registry = CollectorRegistry()
    registry.register(ExecutorMetrics(executor, brakes))
    return registry
