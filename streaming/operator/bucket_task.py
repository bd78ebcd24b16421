"""One task of the state stage: fetch a bucket's state, run the engine, store and emit.

Stage: called by `processor` for each bucket; `engine.kernel.bucket` is the engine.
"""

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
from engine.kernel.settings import EngineSettings, UnfinishedBatch
from streaming.operator.arrivals import in_parts
from streaming.operator.outbox import INLINE_BYTES, OperatorOutbox


@dataclass(frozen=True)
class StoredBucket:
    """State variables of the bucket that Spark currently processes."""

    fingerprint: Any
    bases: Mapping[str, Any]
    """Values by stored part."""
    logs: Mapping[str, Any]
    """Lists by stored part."""

    def known_fingerprint(self) -> bytes | None:
        """Return the fingerprint of the stored state; None if nothing is stored."""
        return _bytes(self.fingerprint.get())

    def fetch(self) -> dict[str, StoredPart]:
        """Return everything stored, by part."""
        return {
            name: StoredPart(_bytes(base.get()) or b"", [bytes(entry[0]) for entry in self.logs[name].get()])
            for name, base in self.bases.items()
        }

    def store(self, written: Written, before: bytes | None) -> None:
        """Store the result of a batch; `before` is the fingerprint that it started from."""
        for name, part in written.parts.items():
            if part.base is not None:
                self.bases[name].update((part.base,))
                self.logs[name].clear()
            elif part.entry is not None:
                self.logs[name].appendValue((part.entry,))
        if written.fingerprint != before:
            self.fingerprint.update((written.fingerprint,))


class BucketTask:
    """One task: the buckets of a partition, one after another, in one batch."""

    def __init__(
        self,
        settings: EngineSettings,
        repeated: UnfinishedBatch | None,
        stored: StoredBucket,
        lake: str,
        inline_bytes: int | None,
    ) -> None:
        """Create a task; arguments as in `streaming.operator.processor.BucketProcessor`."""
        self._repeated, self._settings, self._stored = repeated, settings, stored
        self._outbox = OperatorOutbox(lake, batch_of_task, INLINE_BYTES if inline_bytes is None else inline_bytes)

    def run(self, bucket: int, rows: Iterator[Row]) -> Iterator[Row]:
        """Run one batch of one bucket: packed rows in, output out."""
        if (first := next(rows, None)) is None:
            return
        now, fingerprint, engine = first.now, self._stored.known_fingerprint(), self._engine_at(first.now)
        before = Packed(fingerprint, {} if engine.has_decoded(bucket, fingerprint) else self._stored.fetch())
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
        """Close the task's files."""
        self._outbox.close()

    def _engine_at(self, now: int) -> BucketEngine:
        if self._repeated is not None:
            if self._repeated.now == now:
                return _engine(self._repeated.settings)
            _ENGINES.pop(self._repeated.settings, None)
        return _engine(self._settings)


def batch_of_task() -> int:
    """Return the number of the running task's micro-batch."""
    context = TaskContext.get()
    number = None if context is None else context.getLocalProperty("streaming.sql.batchId")
    if number is None:
        raise RuntimeError("the operator runs outside a micro-batch of Spark's Structured Streaming")
    return int(number)


_ENGINES: dict[EngineSettings, BucketEngine] = {}


def _engine(settings: EngineSettings) -> BucketEngine:
    """Return the engine of this worker process and configuration; decoded state outlives a task in it."""
    return _ENGINES.setdefault(settings, bucket_engine(settings))


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value[0])


@contextmanager
def _cycles_uncollected() -> Iterator[None]:
    """Keep Python's cycle collector off the state, now and later.

    It would walk the whole state repeatedly, which takes most of the time at a million segments, although nothing in
    the state is cyclic. Other garbage is collected first, so that it is not frozen with the state.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()
