"""A Prometheus collector for a metric with one series per topic, 150 bytes each.

Stage: under `streaming.job.meter`. Series of the client library take five times as much, and an object each.
"""

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from streaming.job.metrics import JobMetric


class TopicSeries(Collector):
    """Values of a metric by topic. One thread writes, any may collect."""

    def __init__(self, metric: JobMetric) -> None:
        """Create a counter or gauge labelled by topic."""
        self._metric = metric
        self.values: dict[str, float] = {}
        """By topic; to be read by the thread that writes."""

    def set_all(self, values: Iterable[tuple[str, float]]) -> None:
        """Set values of some topics."""
        self.values.update(values)

    def add(self, topic: str) -> None:
        """Increment the value of a topic."""
        self.values[topic] = self.values.get(topic, 0) + 1

    def remove(self, topic: str) -> None:
        """Remove the series of a topic, if any."""
        self.values.pop(topic, None)

    def describe(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Yield the metric without series."""
        yield self._family()

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Yield the metric with its current series."""
        family = self._family()
        for topic, value in self.values.copy().items():
            family.add_metric([topic], value)
        yield family

    def _family(self) -> CounterMetricFamily | GaugeMetricFamily:
        kind = CounterMetricFamily if self._metric.kind == "counter" else GaugeMetricFamily
        return kind(self._metric.name, self._metric.sentence, labels=self._metric.labels)
