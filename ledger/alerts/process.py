"""`anabranch alerts` as a process: its parts assembled, its metrics, and the signals that stop it."""

from __future__ import annotations

import signal
import ssl
import threading
import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ledger.alerts.couriers import Courier
from ledger.alerts.evaluator import Evaluator, utc_now
from ledger.alerts.posting import sender_of
from ledger.alerts.rules import Rules, read_rules
from schemas.settings import Settings
from telemetry.serving import serve_metrics

CLOSE_SECONDS = 5.0
"""Longest wait at a stop for notices that are on their way; the others are sent at the next start."""
ONCE_SECONDS = 60.0
"""The same of `--once`, which has nothing else to do."""


def evaluate_alerts(settings: Settings, ready: Callable[[str], None], *, once: bool = False) -> Evaluator:
    """Evaluates until SIGTERM or SIGINT, or, with `once`, one time; `ready` gets one line at the beginning.

    Raises `RulesError`, `telemetry.serving.MetricsError`, `lake.lease.LeaseLost` when another one has taken over, and
    `DeltaError` or `OSError` when the lake cannot be used.
    """
    rules = read_rules(settings.path(settings.alerts.rules))
    couriers = couriers_of(rules, settings.alerts_context())
    evaluator = Evaluator(settings.lake_path, rules, couriers)
    if settings.alerts.metrics_port:
        registry = CollectorRegistry()
        registry.register(AlertMetrics(evaluator, couriers))
        serve_metrics(registry, settings.alerts.metrics_port, "alerts.metrics_port")
    stop = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: stop.set())
    for courier in couriers.values():
        courier.start()
    told = ", ".join(couriers) or "nobody"
    ready(
        f"alerts ready: {len(rules.rules)} rules every {rules.interval_seconds:g} s, {len(evaluator.alerts)} alerts on "
        f"record, told to {told}"
    )
    try:
        evaluator.run(stop, (lambda _: stop.set()) if once else (lambda _: None))
    finally:
        for courier in couriers.values():
            courier.stop()
        until = time.monotonic() + (ONCE_SECONDS if once else CLOSE_SECONDS)
        for courier in couriers.values():
            courier.join(max(0.0, until - time.monotonic()))
        evaluator.settle()
    return evaluator


def couriers_of(rules: Rules, tls: ssl.SSLContext | None = None) -> dict[str, Courier]:
    """One courier a destination, not started; raises `RulesError`."""
    return {
        name: Courier(name, sender_of(name, chosen, rules, tls=tls), utc_now)
        for name, chosen in rules.destinations.items()
    }


class AlertMetrics(Collector):
    """The evaluator's metrics, read off it at each scrape."""

    def __init__(self, evaluator: Evaluator, couriers: dict[str, Courier]) -> None:
        self._evaluator, self._couriers = evaluator, couriers

    def collect(self) -> Iterator[Metric]:
        """The metrics as they are now."""
        evaluator = self._evaluator
        yield CounterMetricFamily("anabranch_alerts_rounds", "Evaluations of all rules.", evaluator.rounds)
        yield GaugeMetricFamily("anabranch_alerts_round_seconds", "How long the last one took.", evaluator.seconds)
        yield GaugeMetricFamily(
            "anabranch_alerts_evaluated_at_seconds", "When it ended, seconds since 1970.", evaluator.evaluated_at
        )
        yield GaugeMetricFamily(
            "anabranch_alerts_rule_faults", "Rules that could not be evaluated then.", len(evaluator.faults)
        )
        alerts = GaugeMetricFamily("anabranch_alerts", "Alerts by status.", labels=["status"])
        for status in ("pending", "firing"):
            alerts.add_metric([status], sum(alert.status == status for alert in evaluator.alerts))
        yield alerts
        waiting = GaugeMetricFamily("anabranch_alerts_notices_waiting", "Notices not told yet.", labels=["destination"])
        for name, courier in self._couriers.items():
            waiting.add_metric([name], courier.waiting)
        yield waiting
