"""Owners of segments, on Kafka partition leaders (PIP-468 "Broker Roles and Request Routing").

Callers wait for Kafka only briefly: known owners are returned at once, and one thread refreshes them.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet

from anabranch.controller.errors import ControllerError
from anabranch.controller.segments.base import SegmentStore

log = logging.getLogger(__name__)

FRESH_SECONDS = 30.0
"""Maximum age of an answer when segments have moved and nobody has asked meanwhile."""
MAX_WAIT_SECONDS = 0.5
"""Longest wait of the first caller to ask for a segment."""
PAUSE_SECONDS = 10.0
"""Pause before Kafka is asked again after it did not answer."""
MAX_TOPICS = 10_000
"""Maximum number of topics with cached owners."""


class SegmentOwners:
    """Owners of segments by topic; thread-safe."""

    def __init__(self, segments: SegmentStore) -> None:
        self.on_change: list[Callable[[str], None]] = []
        """Called, from the refreshing thread, with a topic whose segments have changed owners."""
        self._segments = segments
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, dict[str, str]]] = {}
        self._looks: dict[str, Future[None]] = {}
        self._not_before = 0.0
        self._thread = ThreadPoolExecutor(1, "segment-owners")

    def of(self, topic: str, life: int | None, segments: Sequence[str]) -> dict[str, str]:
        """Return `host:port` by segment name, for the known ones."""
        now = time.monotonic()
        with self._lock:
            read_at, owners = self._known.get(topic, (now - FRESH_SECONDS, {}))
            is_new = not owners.keys() >= set(segments)
            look = self._looks.get(topic)
            if look is None and now >= self._not_before and (is_new or now >= read_at + FRESH_SECONDS):
                with contextlib.suppress(RuntimeError):  # the process ends
                    look = self._looks[topic] = self._thread.submit(self._look, topic, life, list(segments))
            must_wait = look is not None and is_new and now >= self._not_before
        if must_wait and look is not None:
            with contextlib.suppress(NotYet):
                look.result(MAX_WAIT_SECONDS)
            owners = self._known.get(topic, (read_at, owners))[1]
        return {name: owners[name] for name in segments if name in owners}

    def _look(self, topic: str, life: int | None, segments: list[str]) -> None:
        owners: dict[str, str] | None = None
        try:
            if time.monotonic() >= self._not_before:
                owners = self._segments.of_incarnation(life).owners(segments)
        except ControllerError as error:
            self._not_before = time.monotonic() + PAUSE_SECONDS
            log.info("the owners of the segments of %s are not known now: %s", topic, error)
        except Exception:
            self._not_before = time.monotonic() + PAUSE_SECONDS
            log.exception("the owners of the segments of %s cannot be found", topic)
        finally:
            with self._lock:
                self._looks.pop(topic, None)
                before = self._known.pop(topic, (0.0, {}))
                if len(self._known) >= MAX_TOPICS:
                    self._known.pop(next(iter(self._known)))
                self._known[topic] = before if owners is None else (time.monotonic(), owners)
        if owners is not None and owners != before[1]:
            for tell in self.on_change:
                tell(topic)

    def close(self) -> None:
        """Stop refreshing."""
        self._thread.shutdown(wait=False, cancel_futures=True)
