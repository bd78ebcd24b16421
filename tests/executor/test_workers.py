"""Threads that make calls: they have work while the loop commits, and retries leave some of them to the others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from anabranch.executor.kernel.workers import AHEAD, Workers

pytestmark = pytest.mark.unit


@contextmanager
def working(number: int) -> Iterator[tuple[Workers, threading.Event]]:
    """Threads at work, and what tasks wait for; both end with the block."""
    before, workers, go = set(threading.enumerate()), Workers(number), threading.Event()
    workers.start()
    threads = [thread for thread in threading.enumerate() if thread not in before and thread.name.startswith("worker-")]
    assert len(threads) == number
    try:
        yield workers, go
    finally:
        go.set()
        workers.stop()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)


def test_queued_tasks_share_the_next_commit():
    """A commit has all that was done during the one before."""
    with working(2) as (workers, go):
        given = 0
        while workers.has_room:
            workers.give(given, False, lambda: go.wait(60))
            given += 1
        assert given == 2 * AHEAD
        go.set()
        done = set()
        while len(done) < given:
            done |= {number for number, _ in workers.results(60)}
        assert not workers.busy


def test_stop_drops_queued_and_awaits_running():
    with working(2) as (workers, go):
        began = threading.Semaphore(0)

        def task():
            began.release()
            return go.wait(60)

        for number in range(10):
            workers.give(number, False, task)
        assert began.acquire(timeout=60)
        assert began.acquire(timeout=60)
        workers.forget_waiting()
        go.set()
        done = set()
        while len(done) < 2:
            done |= {number for number, _ in workers.results(60)}
        assert done == {0, 1}
        assert not workers.busy


def test_retries_use_half_the_threads_without_queue():
    with working(4) as (workers, go):
        given = 0
        while workers.has_room_for_retry:
            workers.give(given, True, lambda: go.wait(60))
            given += 1
        assert given == 2
        assert workers.has_room
        workers.give("another", False, lambda: "done")
        assert list(workers.results(60)) == [("another", "done")]


def test_stopped_threads_finish_tasks_then_end():
    with working(1) as (workers, go):
        workers.give("running", False, lambda: go.wait(60))
        workers.give("queued", False, lambda: "done")
        workers.stop()
        go.set()
        done = set()
        while len(done) < 2:
            done |= set(workers.results(60))
        assert done == {("running", True), ("queued", "done")}
