"""Processes that prepare a subject once and answer requests about it; one that is killed ends the run.

A `multiprocessing.Pool` would replace a killed worker, and wait for its answer for ever.
"""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from traceback import format_exc
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class WorkerLost(RuntimeError):
    """A worker ended without an answer; the message says how."""


class WorkerHangs(RuntimeError):
    """A worker did not answer in time; it still runs."""


def in_processes(function: Callable[[Item], Result], items: Sequence[Item], processes: int) -> Iterator[Result]:
    """Yield a function's results in the order of the items; one item or process needs no worker.

    Raises what the function raises, and `WorkerLost`.
    """
    if processes == 1 or len(items) == 1:
        yield from map(function, items)
        return
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(partial, function)) for _ in range(min(processes, len(items)))]
        waiting, asked, results = iter(enumerate(items)), dict[Worker, int](), dict[int, Result]()
        idle = list(workers)
        for number in range(len(items)):
            while number not in results:
                for worker, (index, item) in zip(idle, waiting, strict=False):
                    worker.ask("__call__", item)
                    asked[worker] = index
                wait([worker.connection for worker in asked])
                idle = [worker for worker in asked if worker.connection.poll()]
                results |= {asked.pop(worker): worker.answer() for worker in idle}
            yield results.pop(number)


class Worker:
    """A process; a context manager that ends it."""

    def __init__(self, prepare: Callable[..., Any], *arguments: Any) -> None:
        """`prepare(*arguments)` makes the subject, in the worker, before its first answer."""
        # Spawned: a process that has threads, as those of Arrow are, must not be forked.
        context = get_context("spawn")
        self.connection, of_worker = context.Pipe()
        """Can be read once there is an answer, or the process has ended."""
        self._process = context.Process(target=_serve, args=(of_worker, prepare, arguments), daemon=True)
        self._process.start()
        of_worker.close()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self.connection.close()

    def end(self) -> None:
        """End the process, even a stopped one; whoever waits for an answer gets `WorkerLost`."""
        self._process.kill()
        self._process.join()

    @property
    def pid(self) -> int | None:
        """Return the number of the process."""
        return self._process.pid

    def ask(self, method: str, *arguments: Any) -> None:
        """Have a method of the subject called; `answer` waits for what it returns. Raises `WorkerLost`."""
        try:
            self.connection.send((method, arguments))
        except OSError as error:
            raise self._lost() from error

    def answer(self, seconds: float | None = None) -> Any:
        """Return the answer to the last request, or raise what the method raised, or `WorkerLost`.

        `seconds`: raise `WorkerHangs` without an answer after so long.
        """
        try:
            if not self.connection.poll(seconds):
                raise WorkerHangs(f"process {self.pid} gave no answer in {seconds} s")
            result, error, trace = self.connection.recv()
        except (EOFError, OSError) as ended:
            raise self._lost() from ended
        if error is not None:
            raise error from RuntimeError(trace)
        return result

    def _lost(self) -> WorkerLost:
        self._process.join()
        code = self._process.exitcode or 0
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return WorkerLost(f"process {self.pid} {how} before its answer; was there too little memory for it?")


def _serve(connection: Connection, prepare: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Answer requests until the other end is closed; Ctrl-C is for the main process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    subject = None
    while True:
        try:
            method, of_method = connection.recv()
        except EOFError:
            return
        try:
            subject = prepare(*arguments) if subject is None else subject
            connection.send((getattr(subject, method)(*of_method), None, ""))
        except Exception as error:
            trace = format_exc()
            try:
                connection.send((None, error, trace))
            except Exception:
                # Some errors, as those of Delta, cannot be pickled.
                connection.send((None, RuntimeError(repr(error)), trace))
