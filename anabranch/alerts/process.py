"""`anabranch serve alerts` as a process: assembly of its parts, metrics, and stop by signals.

Stage: under `anabranch.cli.commands.alerts`, over `evaluator` and `notifiers`.
"""

import ssl
import threading
import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from anabranch.alerts.evaluator import Evaluator, utc_now
from anabranch.alerts.notifiers import Notifier
from anabranch.alerts.posting import sender_of
from anabranch.alerts.rules import Rules, read_rules
from runtime.telemetry.health import Heartbeat, ProcessHealth, call_on_signals
from runtime.telemetry.serving import serve_metrics
from schemas.settings.root import Settings

STALLED_SECONDS = 300.0
"""Time without a round after which the process counts as stalled; ten intervals are added."""
CLOSE_SECONDS = 5.0
"""Longest wait at a stop for notices that are on their way; the others are sent at the next start."""
ONCE_SECONDS = 60.0
"""Longest wait with `--once`, which has nothing else to do."""


def evaluate_alerts(settings: Settings, ready: Callable[[str], None], *, once: bool = False) -> Evaluator:
    """Evaluate until SIGTERM or SIGINT, or once; `ready` gets one line at the beginning.

    Raises `RulesError`, `runtime.telemetry.serving.MetricsError`, `lake.lease.LeaseLost` when another process has taken
    over, and `DeltaError` or `OSError` when the lake cannot be used.
    """
    rules = read_rules(settings.path(settings.alerts.rules))
    notifiers = notifiers_of(rules, settings.alerts_context())
    evaluator = Evaluator(settings.lake_path, rules, notifiers)
    heartbeat = Heartbeat("the rules", STALLED_SECONDS + 10 * evaluator.interval_seconds)
    if settings.alerts.metrics_port:
        registry = CollectorRegistry()
        registry.register(AlertMetrics(evaluator, notifiers))

        def not_ready() -> str | None:
            is_recent = time.time() - evaluator.evaluated_at < 60 + 5 * evaluator.interval_seconds
            return None if is_recent else "the rules cannot be evaluated, or were not yet"

        health = ProcessHealth(heartbeat.fault, not_ready)
        serve_metrics(registry, settings.alerts.metrics_port, "alerts.metrics_port", settings.metrics, "alerts", health)
    stop = threading.Event()
    call_on_signals(stop.set)
    for notifier in notifiers.values():
        notifier.start()
    destinations = ", ".join(notifiers) or "nobody"
    ready(
        f"alerts ready: {len(rules.rules)} rules every {evaluator.interval_seconds:g} s, {len(evaluator.alerts)} "
        f"alerts on record, told to {destinations}"
    )

    def each(_: Evaluator) -> None:
        heartbeat.beat()
        if once:
            stop.set()

    try:
        evaluator.run(stop, each)
    finally:
        for notifier in notifiers.values():
            notifier.stop()
        until = time.monotonic() + (ONCE_SECONDS if once else CLOSE_SECONDS)
        for notifier in notifiers.values():
            notifier.join(max(0.0, until - time.monotonic()))
        evaluator.settle()
    return evaluator


def notifiers_of(rules: Rules, tls: ssl.SSLContext | None = None) -> dict[str, Notifier]:
    """Return a notifier per destination, not started. Raises `RulesError`."""
    return {
        name: Notifier(name, sender_of(name, chosen, rules, tls=tls), utc_now)
        for name, chosen in rules.destinations.items()
    }


class AlertMetrics(Collector):
    """Metrics of the evaluator, read at each scrape."""

    def __init__(self, evaluator: Evaluator, notifiers: dict[str, Notifier]) -> None:
        self._evaluator, self._notifiers = evaluator, notifiers

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they are now."""
        evaluator = self._evaluator
        yield CounterMetricFamily("anabranch_alerts_rounds", "Evaluations of all rules.", evaluator.rounds)
        yield GaugeMetricFamily(
            "anabranch_alerts_round_seconds", "Duration of the last evaluation of all rules.", evaluator.seconds
        )
        yield GaugeMetricFamily(
            "anabranch_alerts_evaluated_at_seconds",
            "End of the last evaluation of all rules, seconds since 1970.",
            evaluator.evaluated_at,
        )
        yield GaugeMetricFamily(
            "anabranch_alerts_rule_faults", "Rules that failed in the last evaluation.", len(evaluator.faults)
        )
        alerts = GaugeMetricFamily("anabranch_alerts", "Alerts by status.", labels=["status"])
        for status in ("pending", "firing"):
            alerts.add_metric([status], sum(alert.status == status for alert in evaluator.alerts))
        yield alerts
        waiting = GaugeMetricFamily(
            "anabranch_alerts_notices_waiting", "Notices not yet delivered, by destination.", labels=["destination"]
        )
        for name, notifier in self._notifiers.items():
            waiting.add_metric([name], notifier.waiting)
        yield waiting
