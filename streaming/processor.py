"""The stateful operator as Spark sees it: a thin adapter around `engine.bucket`, keyed by bucket.

Stage: `transformWithState` (DESIGN section 7, in its form of rows): packed rows of a bucket in, rows of `OUTPUT_DDL`
out. Of topics and of loads, a value holds the base and a list the log; a small value says which state this is, so that
a worker that holds the decoded state does not fetch it again. The module must be importable on the workers.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, StructField, StructType

from engine.bucket import BucketEngine, EngineSettings
from engine.packed import Packed
from engine.packing import unpack_bucket

_PACKED = StructType([StructField("packed", BinaryType())])
"""Of every state variable. As a type, not as text: text is parsed by the JVM, twice for each variable and task."""


class BucketProcessor(StatefulProcessor):
    """One instance per task; the engine's cache lives as long as the Python worker."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declares the state variables."""
        self._fence = handle.getValueState("fence", _PACKED)
        self._topics = handle.getValueState("topics", _PACKED)
        self._loads = handle.getValueState("loads", _PACKED)
        self._topics_log = handle.getListState("topics_log", _PACKED)
        self._loads_log = handle.getListState("loads_log", _PACKED)
        self._engine = _engine(self._settings)

    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:
        """Takes over a bucket of a rebuilt checkpoint, a row of `streaming.rebuild.STATE_DDL`."""
        self._topics.update((initialState.topics,))
        self._loads.update((initialState.loads,))
        self._fence.update((initialState.fence,))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """One batch of one bucket."""
        received = list(rows)
        if not received:
            return
        now = received[0].now
        records, samples = unpack_bucket([row.kind for row in received], [row.body for row in received])
        bucket, fence = int(key[0]), _bytes(self._fence.get())
        before = Packed(fence) if self._engine.holds(bucket, fence) else self._stored(fence)
        started = time.perf_counter()
        with _cycles_uncollected():
            written, output = self._engine.run(bucket, before, records, now, samples)
        output.counts.operator_ms = (time.perf_counter() - started) * 1000
        for value, log, base, entry in (
            (self._topics, self._topics_log, written.topics, written.topics_entry),
            (self._loads, self._loads_log, written.loads, written.loads_entry),
        ):
            if base is not None:
                value.update((base,))
                log.clear()
            elif entry is not None:
                log.appendValue((entry,))
        if written.fence != fence:
            self._fence.update((written.fence,))
        yield from (Row(kind=kind, body=body, now=now) for kind, body in output.bodies().items())

    def close(self) -> None:
        """Nothing is held open."""

    def _stored(self, fence: bytes | None) -> Packed:
        return Packed(
            fence,
            _bytes(self._topics.get()) or b"",
            _bytes(self._loads.get()) or b"",
            [bytes(entry[0]) for entry in self._topics_log.get()],
            [bytes(entry[0]) for entry in self._loads_log.get()],
        )


_ENGINES: dict[EngineSettings, BucketEngine] = {}


def _engine(settings: EngineSettings) -> BucketEngine:
    """One engine per worker process and configuration, so that decoded state outlives a task."""
    return _ENGINES.setdefault(settings, BucketEngine(settings))


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
