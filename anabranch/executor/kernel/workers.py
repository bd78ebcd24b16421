"""Threads that make calls for `loop`: tasks in, results out, nothing shared.

Daemon threads: a hanging call must not keep a stopped process alive. The counters belong to the loop's thread.
"""

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

AHEAD = 8
"""Queued tasks per thread, which go on while the loop commits their results."""

Work = TypeVar("Work")
Result = TypeVar("Result")


class Workers(Generic[Work, Result]):
    """Pool of `number` threads; retries use at most half of them."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._tasks: queue.SimpleQueue[tuple[Work, bool, Callable[[], Result]] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[Work, bool, Result | Exception] | None] = queue.SimpleQueue()
        self._busy = 0
        self._retrying = 0

    @property
    def busy(self) -> bool:
        """True while a result is still to come."""
        return self._busy > 0

    @property
    def has_room(self) -> bool:
        """True if a task may be given: a thread is idle, or the queue is short."""
        return self._busy - self._retrying < self._number * AHEAD

    @property
    def has_room_for_retry(self) -> bool:
        """True if a retry may be given: retries are not queued, and leave threads to other topics."""
        return self._busy < self._number and self._retrying < max(1, self._number // 2)

    def start(self) -> None:
        """Start all threads."""
        for number in range(self._number):
            threading.Thread(target=self._run, name=f"worker-{number}", daemon=True).start()

    def give(self, work: Work, retry: bool, task: Callable[[], Result]) -> None:
        """Queue a task."""
        self._busy += 1
        self._retrying += retry
        self._tasks.put((work, retry, task))

    def forget_waiting(self) -> None:
        """Drop the tasks that no thread has begun."""
        with suppress(queue.Empty):
            while (task_entry := self._tasks.get_nowait()) is not None:
                _, retry, _ = task_entry
                self._busy -= 1
                self._retrying -= retry

    def results(self, wait_seconds: float) -> Iterator[tuple[Work, Result | Exception]]:
        """Yield finished work; wait at most `wait_seconds` for the first result or a `wake`."""
        try:
            result_entry = self._done.get(timeout=max(0.0, wait_seconds))
            while True:
                if result_entry is not None:
                    work, retry, result = result_entry
                    self._busy -= 1
                    self._retrying -= retry
                    yield work, result
                result_entry = self._done.get_nowait()
        except queue.Empty:
            return

    def wake(self) -> None:
        """End a wait for results. From any thread, and from signal handlers."""
        self._done.put(None)

    def stop(self) -> None:
        """Let each thread end once it has nothing left to do; no task may be given after this."""
        for _ in range(self._number):
            self._tasks.put(None)

    def _run(self) -> None:
        while (task_entry := self._tasks.get()) is not None:
            work, retry, task = task_entry
            try:
                result: Result | Exception = task()
            except Exception as error:
                log.exception("an error in the executor itself")
                result = error
            self._done.put((work, retry, result))
