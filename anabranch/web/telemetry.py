"""Figures from the metrics of other processes: the job's lag behind Kafka, the collector's view.

Stage: under the top of every page. Each process is asked in a thread of its own; what it does not say is unknown.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

log = logging.getLogger(__name__)

ASK_SECONDS: Final = 5.0
"""Pause between two questions, unless answers take long."""
SHARE: Final = 50
"""Least pause, in multiples of the time that an answer took: a large fleet's metrics are megabytes."""
LAG: Final = "anabranch_stream_lag_records"
"""Of the job: records of a Kafka topic that it had not read when its last batch ended."""
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
            begun = time.monotonic()
            self.ask()
            self._stop.wait(self._pause_after(time.monotonic() - begun))

    def _pause_after(self, seconds: float) -> float:
        """Return the seconds until the next question, after one that took so long."""
        return ASK_SECONDS


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

    def _pause_after(self, seconds: float) -> float:
        """A silent process is asked as often as others, so that its return is seen. Long answers are rare."""
        return max(ASK_SECONDS, SHARE * seconds) if self.silent_since is None else ASK_SECONDS


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
