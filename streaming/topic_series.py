"""A metric with a series for each topic, as a Prometheus collector: 150 bytes a series.

Stage: under `streaming.meter`. The client library's own take five times as much, and make an object for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from streaming.metrics import Metric


class TopicSeries(Collector):
    """The values of a metric by topic. One thread writes, any may collect."""

    def __init__(self, metric: Metric) -> None:
        """A counter or a gauge whose one label is the topic."""
        self._metric = metric
        self._values: dict[str, float] = {}

    def set_all(self, values: Iterable[tuple[str, float]]) -> None:
        """New values of some topics."""
        self._values.update(values)

    def add(self, topic: str) -> None:
        """One more of a topic."""
        self._values[topic] = self._values.get(topic, 0) + 1

    def remove(self, topic: str) -> None:
        """Ends the series of a topic, if it has one."""
        self._values.pop(topic, None)

    def describe(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """The metric without its series."""
        yield self._family()

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """The metric as it is now."""
        family = self._family()
        for topic, value in self._values.copy().items():
            family.add_metric([topic], value)
        yield family

    def _family(self) -> CounterMetricFamily | GaugeMetricFamily:
        kind = CounterMetricFamily if self._metric.kind == "counter" else GaugeMetricFamily
        return kind(self._metric.name, self._metric.sentence, labels=self._metric.labels)
