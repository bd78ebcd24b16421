"""Explanations in a separate process: a replay of months in this one would slow the page down.

The process is started by the first question, answers one at a time, and keeps a checkpoint of each topic.
"""

import copyreg
import threading
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from deltalake.exceptions import DeltaError

from anabranch.history.explain.changes import answer_words, change_words, changes
from anabranch.history.explain.checkpoints import TopicCheckpoints
from anabranch.history.explain.record import Explanation, check_segment, explain
from anabranch.simulation.workers import Worker, WorkerHangs, WorkerLost
from engine.autoscale.topics import ConfiguredPolicy

WAIT_SECONDS = 30
"""Longest wait for a turn."""
ANSWER_SECONDS = 120
"""Longest explanation: of a year, it takes about a minute."""
_OUTAGE = timedelta(minutes=3)
Explained = tuple[Explanation, list[tuple[str, str]]]
"""Explanation, and what would change the answer: conditions, each with the answer under it."""


def _proxy(values: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(values)


# Layouts contain these, and Python cannot pickle them by itself.
copyreg.pickle(MappingProxyType, lambda proxy: (_proxy, (dict(proxy),)))


class ReplayBusy(Exception):
    """There is no answer now; the message says why."""


class Explainer:
    """Answers questions, in the separate process."""

    def __init__(self) -> None:
        self._checkpoints: TopicCheckpoints = {}

    def explain(
        self, lake: str, topic: str, instant: datetime | None, segment: int | None, configured: ConfiguredPolicy
    ) -> Explained:
        """Explain, and find what would change it. Raises as `explain`, and `OSError` for Delta's."""
        try:
            explanation = explain(lake, topic, instant, configured, _OUTAGE, self._checkpoints)
        except DeltaError as error:
            # A DeltaError cannot be pickled.
            raise OSError(str(error)) from None
        snapshot = explanation.snapshot
        if segment is not None:
            check_segment(snapshot.layout, segment)
        smallest = changes(snapshot, segment)
        return explanation, [(change_words(change, snapshot), answer_words(change.answer)) for change in smallest]


class Replays:
    """Asks the process, on behalf of the page. Thread-safe."""

    def __init__(self) -> None:
        self._worker: Worker | None = None
        self._stops = 0
        self.lock = threading.Lock()

    def explain(
        self, lake: str, topic: str, instant: datetime | None, segment: int | None, configured: ConfiguredPolicy
    ) -> Explained:
        """Ask the process. Raises `ReplayBusy`, and as `Explainer.explain`."""
        stops = self._stops
        if not self.lock.acquire(timeout=WAIT_SECONDS):
            raise ReplayBusy("too many are asking at this moment: load the page again")
        try:
            worker = self._worker = self._worker or Worker(Explainer)
            if self._stops != stops:
                # Otherwise the page would wait at its end for a replay that begins only now.
                self.stop()
                raise ReplayBusy("the page is being stopped")
            worker.ask("explain", lake, topic, instant, segment, configured)
            answer: Explained = worker.answer(ANSWER_SECONDS)
        except WorkerLost as error:
            self._worker = None
            raise ReplayBusy(f"load the page again: {error}") from error
        except WorkerHangs as error:
            self._worker = None
            worker.end()
            raise ReplayBusy(
                f"no answer after {ANSWER_SECONDS:g} s, so its process was ended: is the lake slow or not reachable? "
                f"`anabranch explain` has no such limit"
            ) from error
        finally:
            self.lock.release()
        return answer

    def stop(self) -> None:
        """End the process, and with it a question that the page would wait for."""
        self._stops += 1
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.end()


REPLAYS = Replays()
