"""Threads that make calls: they have work while the loop commits, and retries leave some of them to the others."""

from __future__ import annotations

import threading

import pytest

from anabranch.executor.kernel.workers import AHEAD, Workers

pytestmark = pytest.mark.unit


def test_queued_tasks_share_the_next_commit():
    """A commit has all that was done during the one before."""
    workers, go = Workers(2), threading.Event()
    workers.start()
    given = 0
    while workers.has_room:
        workers.give(given, False, lambda: go.wait(10))
        given += 1
    assert given == 2 * AHEAD
    go.set()
    done = set()
    while len(done) < given:
        done |= {number for number, _ in workers.results(10)}
    assert not workers.busy


def test_stop_drops_queued_and_awaits_running():
    workers, go, began = Workers(2), threading.Event(), threading.Semaphore(0)

    def task():
        began.release()
        return go.wait(10)

    workers.start()
    for number in range(10):
        workers.give(number, False, task)
    assert began.acquire(timeout=10)
    assert began.acquire(timeout=10)
    workers.forget_waiting()
    go.set()
    done = set()
    while len(done) < 2:
        done |= {number for number, _ in workers.results(10)}
    assert done == {0, 1}
    assert not workers.busy


def test_retries_use_half_the_threads_without_queue():
    workers, go = Workers(4), threading.Event()
    workers.start()
    given = 0
    while workers.has_room_for_retry:
        workers.give(given, True, lambda: go.wait(10))
        given += 1
    assert given == 2
    assert workers.has_room
    workers.give("another", False, lambda: "done")
    assert list(workers.results(10)) == [("another", "done")]
    go.set()
