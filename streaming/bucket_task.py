"""What a task of the state stage does with a bucket: fetches its state, has the engine run, stores, gives output away.

Stage: behind `streaming.processor`, around `engine.kernel.bucket`.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from pyspark import TaskContext
from pyspark.sql import Row

from engine.families import bucket_engine, unpack_rows
from engine.kernel.bucket import BucketEngine
from engine.kernel.packed import Packed, StoredPart, Written
from engine.kernel.settings import EngineSettings, Repeated
from streaming.arrivals import in_parts
from streaming.outbox import INLINE_BYTES, Outbox


@dataclass(frozen=True)
class StoredBucket:
    """The state variables of the bucket that Spark is at."""

    fingerprint: Any
    bases: Mapping[str, Any]
    """By stored part; values."""
    logs: Mapping[str, Any]
    """By stored part; lists."""

    def known_fingerprint(self) -> bytes | None:
        """That of what is stored; None: nothing is."""
        return _bytes(self.fingerprint.get())

    def fetch(self) -> dict[str, StoredPart]:
        """All that is stored, by part."""
        return {
            name: StoredPart(_bytes(base.get()) or b"", [bytes(entry[0]) for entry in self.logs[name].get()])
            for name, base in self.bases.items()
        }

    def store(self, written: Written, before: bytes | None) -> None:
        """What a batch has written; `before`: the fingerprint that it found."""
        for name, part in written.parts.items():
            if part.base is not None:
                self.bases[name].update((part.base,))
                self.logs[name].clear()
            elif part.entry is not None:
                self.logs[name].appendValue((part.entry,))
        if written.fingerprint != before:
            self.fingerprint.update((written.fingerprint,))


class BucketTask:
    """One task: bucket after bucket of a partition, in one batch."""

    def __init__(
        self, settings: EngineSettings, repeated: Repeated | None, stored: StoredBucket, lake: str,
        inline_bytes: int | None,
    ) -> None:  # fmt: skip
        """As `streaming.processor.BucketProcessor` has them."""
        self._repeated, self._settings, self._stored = repeated, settings, stored
        self._outbox = Outbox(lake, batch_of_task, INLINE_BYTES if inline_bytes is None else inline_bytes)

    def run(self, bucket: int, rows: Iterator[Row]) -> Iterator[Row]:
        """One batch of one bucket: its packed rows in, its output out."""
        first = next(rows, None)
        if first is None:
            return
        now, fingerprint, engine = first.now, self._stored.known_fingerprint(), self._engine_at(first.now)
        is_decoded = engine.has_decoded(bucket, fingerprint)
        before = Packed(fingerprint, {} if is_decoded else self._stored.fetch())
        with _cycles_uncollected():
            batch, spent = engine.begin(bucket, before, now, partial(self._outbox.give, now=now)), 0.0
            del before
            for kinds, bodies in in_parts(chain([first], rows)):
                part, started = unpack_rows(kinds, bodies), time.perf_counter()
                batch.take(*part)
                spent += time.perf_counter() - started
            started = time.perf_counter()
            written = batch.end()
        batch.output.counts.operator_ms = (spent + time.perf_counter() - started) * 1000
        self._stored.store(written, fingerprint)
        self._outbox.give(batch.output.bodies(), now)
        yield from (Row(kind=kind, body=body, now=now) for kind, body in self._outbox.fetch())

    def close(self) -> None:
        """Ends the task's files."""
        self._outbox.close()

    def _engine_at(self, now: int) -> BucketEngine:
        if self._repeated is not None:
            if self._repeated.now == now:
                return _engine(self._repeated.settings)
            _ENGINES.pop(self._repeated.settings, None)
        return _engine(self._settings)


def batch_of_task() -> int:
    """The number of the micro-batch that the running task is of."""
    context = TaskContext.get()
    number = None if context is None else context.getLocalProperty("streaming.sql.batchId")
    if number is None:
        raise RuntimeError("the operator runs outside a micro-batch of Spark's Structured Streaming")
    return int(number)


_ENGINES: dict[EngineSettings, BucketEngine] = {}


def _engine(settings: EngineSettings) -> BucketEngine:
    """One engine per worker process and configuration, so that decoded state outlives a task."""
    return _ENGINES.setdefault(settings, bucket_engine(settings))


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value[0])


@contextmanager
def _cycles_uncollected() -> Iterator[None]:
    """Keeps Python's cycle collector off the state, now and later: it would walk all of it again and again, and takes
    most of the time at a million segments. Nothing in the state is cyclic. What else has come up is collected first, so
    that no garbage is kept with it."""
    gc.disable()
    try:
        yield
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()
