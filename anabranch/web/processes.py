"""Health of the processes behind the page, by the lake and the controller's answers.

The job is known by its batches, the arrival of load by the samples in them, executors by their register, the controller
by whether it answers; the distance to Kafka's end and the collector by their own metrics. A job or executor that no
longer answers is named before its silence in the lake is long enough to mean something.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from anabranch.history.picture import BrakesView, late_seconds
from anabranch.history.words import age, span
from anabranch.web.rows import PageFreshness
from anabranch.web.telemetry import COLLECTOR, KAFKA, LAG, MetricsProbe, RepeatedProbe
from lake.tail import StoredRow

log = logging.getLogger(__name__)

START_SECONDS = 10.0
"""A controller that is started with the page is not called silent for so long."""


@dataclass(frozen=True)
class Process:
    """One line at the top of a page."""

    name: str
    state: str
    """`good`, `warn`, `bad` or `quiet` (not known), as the style sheet has them."""
    words: str


class Probe(RepeatedProbe):
    """Asks whether a process answers.

    `status`: the status of its answer, None without one. Below 500 any will do: a Pulsar does not know the path.
    """

    def __init__(self, status: Callable[[], int | None]) -> None:
        super().__init__("probe")
        self._status = status
        self.words = ""
        """`answers`, or what is wrong; empty: not asked yet."""
        self.changed_at = time.time()
        self.patient_until: float | None = self.changed_at + START_SECONDS
        """Until when it may still be starting; None: it has answered."""

    def ask(self) -> None:
        try:
            status = self._status()
        except Exception:
            log.exception("the controller could not be asked")
            status = None
        words = "no answer" if status is None else "answers" if status < 500 else f"answers {status}"
        if status is not None:
            self.patient_until = None
        if words != self.words:
            self.words, self.changed_at = words, time.time()


@dataclass(frozen=True)
class Probes:
    """What is asked of other processes; None: their address is not known here."""

    controller: Probe | None = None
    stream: MetricsProbe | None = None
    collector: MetricsProbe | None = None
    executor: MetricsProbe | None = None

    def start(self) -> None:
        """Begin to ask."""
        for probe in self._all:
            probe.start()

    def stop(self) -> None:
        """Ask no more."""
        for probe in self._all:
            probe.stop()

    @property
    def _all(self) -> list[RepeatedProbe]:
        return [probe for probe in (self.controller, self.stream, self.collector, self.executor) if probe]


NO_PROBES = Probes()


def processes(
    freshness: PageFreshness, batches: Sequence[StoredRow], brakes: BrakesView, probes: Probes, now: datetime
) -> list[Process]:
    """Return the state of each process at `now`; `batches`: the newest of the job, oldest first."""
    if freshness.batch_at is None:
        job = Process("job", "quiet", "nothing on record")
    elif freshness.silent_seconds is not None:
        job = Process("job", "bad", f"silent for {span(freshness.silent_seconds)}")
    elif (lost := _lost_since(probes.stream)) is not None and lost > freshness.batch_at.timestamp():
        job = Process("job", "bad", f"no answer for {span(now.timestamp() - lost)}")
    else:
        job = Process("job", "good", f"last batch {age(freshness.batch_at, now)} ago")
    states = [job, _kafka(probes.stream, now), _load(batches, freshness), _executor(brakes, probes.executor, now)]
    if (probe := probes.controller) is not None and probe.words:
        states.append(_controller(probe, now))
    return [*states, _collector(probes.collector, now)]


def _controller(probe: Probe, now: datetime) -> Process:
    if probe.words == "answers":
        return Process("controller", "good", probe.words)
    if probe.patient_until is not None and now.timestamp() < probe.patient_until:
        return Process("controller", "quiet", "no answer yet")
    return Process("controller", "bad", f"{probe.words} for {span(now.timestamp() - probe.changed_at)}")


def _lost_since(probe: MetricsProbe | None) -> float | None:
    return probe.lost_since() if probe is not None else None


def _kafka(probe: MetricsProbe | None, now: datetime) -> Process:
    """Distance of the job to the end of Kafka, by the job's own metrics."""
    if probe is None:
        return Process("Kafka lag", "quiet", "unknown: the job's metrics_port is 0")
    reading = probe.reading
    if reading is None or LAG not in reading.figures:
        return Process("Kafka lag", "quiet", "unknown: the job's metrics do not say it")
    words = f"{sum(reading.figures[LAG]):,.0f} records"
    if probe.silent_since is not None:
        silence = span(now.timestamp() - probe.silent_since)
        return Process("Kafka lag", "bad", f"unknown for {silence}, {words} before")
    if 0 in reading.figures.get(KAFKA, ()):
        return Process("Kafka lag", "bad", f"Kafka does not answer the job, {words} before")
    return Process("Kafka lag", "good", f"{words}, {_ago(reading.at, now)}")


def _load(batches: Sequence[StoredRow], freshness: PageFreshness) -> Process:
    """Arrival of load samples, whoever reports them, by the pace at which they came."""
    if not (sampled := [row["committed_at"] for row in batches if row["samples"]]):
        return Process("load", "quiet", "no samples on record lately" if batches else "unknown")
    now = freshness.now
    is_late = (now - sampled[-1]).total_seconds() > late_seconds(sampled) + freshness.unseen_seconds
    words = f"no samples for {age(sampled[-1], now)}" if is_late else f"samples {age(sampled[-1], now)} ago"
    return Process("load", "bad" if is_late else "good", words)


def _collector(probe: MetricsProbe | None, now: datetime) -> Process:
    """State of the collector, by its own metrics; a cluster whose brokers report by themselves has none."""
    if probe is None:
        return Process("collector", "quiet", "not watched: [collect] metrics_port is 0")
    reading = probe.reading
    up, _, known, seen, troubles = (reading.figures.get(name, []) if reading else [] for name in COLLECTOR)
    if reading is None or not known:
        return Process("collector", "quiet", "unknown: its metrics are not there")
    words = f"{sum(up):.0f} of {len(up)} brokers answer, {sum(seen):,.0f} of {sum(known):,.0f} segments seen"
    if probe.silent_since is not None:
        return Process("collector", "bad", f"no answer for {span(now.timestamp() - probe.silent_since)}")
    is_whole = all(up) and not any(troubles)
    return Process("collector", "good" if is_whole else "warn", f"{words}, {_ago(reading.at, now)}")


def _ago(at: float, now: datetime) -> str:
    return f"{max(0.0, now.timestamp() - at):.0f} s ago"


def _executor(brakes: BrakesView, probe: MetricsProbe | None, now: datetime) -> Process:
    """State of the executors, by their register; the one of this machine also by whether it answers."""
    acting = [executor for executor in brakes.executors if executor.shards and not executor.is_silent]
    silent = [executor for executor in brakes.executors if executor.is_silent]
    if brakes.stop is not None:
        return Process("executor", "bad", "has stopped itself")
    if not acting:
        return Process("executor", "bad", f"{len(silent)} silent" if silent else "none is at work")
    words = f"{len(acting)} at work" + (f", {len(silent)} silent" if silent else "")
    words += ", something is paused" if brakes.pauses else ""
    lost, beat_at = _lost_since(probe), acting[0].beat_at if len(acting) == 1 else None
    if lost is not None and not (beat_at and beat_at.timestamp() > lost):
        words += f", no answer for {span(now.timestamp() - lost)}"
        return Process("executor", "bad" if len(brakes.executors) == 1 else "warn", words)
    return Process("executor", "warn" if silent or brakes.pauses else "good", words)
