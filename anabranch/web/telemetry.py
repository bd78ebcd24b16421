"""Figures from the metrics of other processes: the job's lag behind Kafka, the collector's view.

Stage: under the top of every page. Each process is asked in a thread of its own, for a few metrics only, as those of a
large fleet are megabytes; what it does not say is unknown.
"""

import logging
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

log = logging.getLogger(__name__)

ASK_SECONDS: Final = 2.0
"""Pause between two questions."""
LAG: Final = "anabranch_stream_lag_records"
"""Of the job: records of a Kafka topic that it had not read when its last batch ended."""
KAFKA: Final = "anabranch_stream_kafka_answers"
"""Of the job: 1 while Kafka answers it, else 0."""
STREAM: Final = (LAG, KAFKA)
EXECUTOR: Final = ("anabranch_build_info",)
COLLECTOR: Final = (
    "anabranch_collect_broker_up",
    "anabranch_collect_load_age_seconds",
    "anabranch_collect_segments_known",
    "anabranch_collect_segments_seen",
    "anabranch_collect_troubles",
)
_SAMPLE: Final = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{.*\})? +(\S+)$")


@dataclass(frozen=True)
class FigureReading:
    """The newest answer of a process."""

    at: float
    """When it was read, seconds since 1970."""
    figures: dict[str, list[float]]
    """The values of each metric that was asked for, over all its labels."""


class RepeatedProbe(ABC):
    """Asks a process again and again, in a thread of its own."""

    def __init__(self, name: str) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread, which may still wait for an answer."""
        self._stop.set()

    @abstractmethod
    def ask(self) -> None:
        """Ask once, and raise nothing."""

    def _run(self) -> None:
        while not self._stop.is_set():
            self.ask()
            self._stop.wait(ASK_SECONDS)


class MetricsProbe(RepeatedProbe):
    """Asks `scrape` for the text of `/metrics`, None without an answer, and keeps the metrics `names`."""

    def __init__(self, scrape: Callable[[], str | None], names: tuple[str, ...]) -> None:
        super().__init__("metrics-probe")
        self._scrape, self._names = scrape, names
        self.reading: FigureReading | None = None
        """None: it has never answered."""
        self.silent_since: float | None = time.time()
        """From when it has not answered, seconds since 1970; None: it has."""

    def ask(self) -> None:
        try:
            text = self._scrape()
        except Exception:
            log.exception("metrics could not be read")
            text = None
        if text is None:
            self.silent_since = self.silent_since or time.time()
            return
        self.reading, self.silent_since = FigureReading(time.time(), read_figures(text, self._names)), None

    def lost_since(self) -> float | None:
        """Return when a process that has answered before stopped to answer; None: it answers, or never did."""
        return self.silent_since if self.reading is not None else None


def read_figures(text: str, names: tuple[str, ...]) -> dict[str, list[float]]:
    """Return the values of some metrics in Prometheus' text format; what cannot be read is left out."""
    figures: dict[str, list[float]] = {}
    for line in text.splitlines():
        if line.startswith(names) and (match := _SAMPLE.fullmatch(line)) and match[1] in names:
            try:
                figures.setdefault(match[1], []).append(float(match[2]))
            except ValueError:
                continue
    return figures
