"""Figures from the metrics of other processes: the job's lag behind Kafka, the collector's view.

Stage: under the top of every page. Each process is asked in a thread of its own; what it does not say is unknown.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

log = logging.getLogger(__name__)

ASK_SECONDS: Final = 5.0
"""Between two questions, unless the answers take long."""
SHARE: Final = 50
"""The pause is at least so many times as long as the answer took: a large fleet's metrics are megabytes."""
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


class MetricsProbe:
    """Asks for metrics in a thread of its own.

    `scrape`: the text of `/metrics`, None without an answer. `names`: the metrics that are kept.
    """

    def __init__(self, scrape: Callable[[], str | None], names: tuple[str, ...]) -> None:
        self._scrape, self._names = scrape, names
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics-probe", daemon=True)
        self.reading: FigureReading | None = None
        """None: it has never answered."""
        self.silent_since: float | None = time.time()
        """From when it has not answered, seconds since 1970; None: it has."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread, which may still wait for an answer."""
        self._stop.set()

    def ask(self) -> None:
        """Ask once."""
        try:
            text = self._scrape()
        except Exception:
            log.exception("metrics could not be read")
            text = None
        if text is None:
            self.silent_since = self.silent_since or time.time()
            return
        self.reading, self.silent_since = FigureReading(time.time(), read_figures(text, self._names)), None

    def _run(self) -> None:
        while not self._stop.is_set():
            begun = time.monotonic()
            self.ask()
            self._stop.wait(max(ASK_SECONDS, SHARE * (time.monotonic() - begun)))


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
