"""The stateful operator as Spark sees it: a thin adapter around `engine.kernel.bucket`, keyed by bucket.

Stage: `transformWithState` (design "Facts that shape the job", in its form of rows): packed rows of a bucket in, rows
of `OUTPUT_DDL` out. Of each stored part of the families, a value holds the base and a list the log; a small value says
which state this is, so that a worker that holds the decoded state does not fetch it again. The module must be
importable on the workers.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, StructField, StructType

from engine.families import PARTS, bucket_engine, unpack_rows
from engine.kernel.bucket import BucketEngine
from engine.kernel.packed import Packed, StoredPart
from engine.kernel.settings import EngineSettings, Repeated
from streaming.arrivals import in_parts
from streaming.outbox import INLINE_BYTES, Outbox

FINGERPRINT = "fence"
"""The state variable of the fingerprint, as the first release called it."""

_PACKED = StructType([StructField("packed", BinaryType())])
"""Of every state variable. As a type, not as text: text is parsed by the JVM, twice for each variable and task."""


class BucketProcessor(StatefulProcessor):
    """One instance per task; the engine's cache lives as long as the Python worker."""

    def __init__(
        self, settings: EngineSettings, lake: str, repeated: Repeated | None = None, inline_bytes: int = INLINE_BYTES
    ) -> None:
        """`lake`: where output goes that is much (`streaming.outbox`). `repeated`: a batch with settings of its own."""
        self._settings, self._lake, self._repeated, self._inline_bytes = settings, lake, repeated, inline_bytes

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declares the state variables: the fingerprint, and of each stored part its base and its log."""
        self._fingerprint = handle.getValueState(FINGERPRINT, _PACKED)
        self._bases = {name: handle.getValueState(name, _PACKED) for name in PARTS}
        self._logs = {name: handle.getListState(f"{name}_log", _PACKED) for name in PARTS}
        self._engine, self._outbox = _engine(self._settings), Outbox(self._lake, batch_of_task, self._inline_bytes)

    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:
        """Takes over a bucket of a rebuilt checkpoint, a row of `streaming.rebuild.STATE_DDL`."""
        for name, base in self._bases.items():
            base.update((initialState[name],))
        self._fingerprint.update((initialState[FINGERPRINT],))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """One batch of one bucket."""
        first = next(rows, None)
        if first is None:
            return
        now, bucket, fingerprint = first.now, int(key[0]), _bytes(self._fingerprint.get())
        engine = self._engine
        if self._repeated is not None:
            if self._repeated.now == now:
                engine = _engine(self._repeated.settings)
            else:
                _ENGINES.pop(self._repeated.settings, None)
        is_decoded = engine.has_decoded(bucket, fingerprint)
        before = Packed(fingerprint, {} if is_decoded else self._stored())
        with _cycles_uncollected():
            batch, spent = engine.begin(bucket, before, now, partial(self._outbox.give, now=now)), 0.0
            for kinds, bodies in in_parts(chain([first], rows)):
                part, started = unpack_rows(kinds, bodies), time.perf_counter()
                batch.take(*part)
                spent += time.perf_counter() - started
            started = time.perf_counter()
            written = batch.end()
        batch.output.counts.operator_ms = (spent + time.perf_counter() - started) * 1000
        for name, part in written.parts.items():
            if part.base is not None:
                self._bases[name].update((part.base,))
                self._logs[name].clear()
            elif part.entry is not None:
                self._logs[name].appendValue((part.entry,))
        if written.fingerprint != fingerprint:
            self._fingerprint.update((written.fingerprint,))
        self._outbox.give(batch.output.bodies(), now)
        yield from (Row(kind=kind, body=body, now=now) for kind, body in self._outbox.fetch())

    def close(self) -> None:
        """Ends the task's files. Spark takes a task for done only after this: its rows reach the driver then."""
        self._outbox.close()

    def _stored(self) -> dict[str, StoredPart]:
        return {
            name: StoredPart(_bytes(base.get()) or b"", [bytes(entry[0]) for entry in self._logs[name].get()])
            for name, base in self._bases.items()
        }


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
