"""The executor as a process: its parts, assembled from the settings, and the two signals that stop it.

Stage: called by `anabranch executor`. Faults of the lake are reported before any work begins.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from admin.credentials import credentials_of
from admin.topics import ScalableTopics
from admin.transport import Transport
from executor.autoscale.actor import AutoscaleActor
from executor.brakes.record import WaitTable
from executor.brakes.waiting import Brakes
from executor.kernel.announcer import Announcer, follow_outcomes
from executor.kernel.decision import follow_decisions
from executor.kernel.family import Actors
from executor.kernel.loop import LAKE_ERRORS, Executor, Work, utc_now
from executor.kernel.outcomes import OutcomeLedger
from executor.kernel.publisher import KafkaPublisher
from executor.metrics import registry_of
from lake.brakes import BrakeLog
from schemas.settings import Settings
from telemetry.serving import MetricsError, serve_metrics


class StartError(Exception):
    """The executor cannot start; the message says what is wrong and what to do."""


def run_executor(settings: Settings, ready: Callable[[str], None]) -> None:
    """Apply decisions until SIGTERM or SIGINT; `ready` gets one line when the record has been read.

    Raises `StartError`, or `lake.lease.LeaseLost` when another executor has taken over.
    """
    chosen = settings.executor
    try:
        ledger = OutcomeLedger(settings.lake_path, chosen.mode)
        tail = follow_decisions(settings.lake_path)
        record, waits = BrakeLog(settings.lake_path), WaitTable(settings.lake_path, ledger.executor)
    except LAKE_ERRORS as error:
        raise _no_lake(settings, error) from error
    topics = ScalableTopics(
        Transport(
            settings.controller.url,
            credentials_of(settings),
            user_agent="anabranch-executor",
            timeout_seconds=chosen.request_timeout_seconds,
            tls=settings.url_context(),
            nodes=settings.controller.nodes,
        )
    )
    announcer = Announcer(KafkaPublisher(settings.kafka_connection()), follow_outcomes(settings.lake_path))
    brakes: Brakes[Work] = Brakes(chosen, record, waits, ledger.executor, utc_now, time.monotonic)
    executor = Executor(chosen, tail, ledger, actors_of(topics), announcer, brakes)
    if chosen.metrics_port:
        try:
            serve_metrics(registry_of(executor, brakes), chosen.metrics_port, "executor.metrics_port")
        except MetricsError as error:
            raise StartError(str(error)) from error
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: executor.stop())
    try:
        executor.run(
            lambda: ready(
                f"executor ready: mode {chosen.mode}, lease token {ledger.token}, {executor.open_decisions} open "
                f"decisions, applying at {settings.controller.url}"
            )
        )
    except LAKE_ERRORS as error:
        raise _no_lake(settings, error) from error
    finally:
        topics.close()


def actors_of(topics: ScalableTopics) -> Actors:
    """Who acts, by the name of the family: each built-in family has its line here."""
    return {"autoscale": AutoscaleActor(topics)}


def _no_lake(settings: Settings, error: Exception) -> StartError:
    return StartError(f"cannot read the lake at {settings.lake_path}: {error}; see [lake] path")
