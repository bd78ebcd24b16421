"""The stateful operator as Spark sees it: a thin adapter around `streaming.engine`, keyed by bucket.

Stage: `transformWithStateInPandas` (DESIGN section 7): packed rows of a bucket in, rows of `OUTPUT_DDL` out. Of topics
and of loads, a value holds the base and a list the log; a small value says which state this is, so that a worker that
holds the decoded state does not fetch it again. The module must be importable on the workers.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import pandas as pd
import pydantic_core
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from streaming.engine import BucketEngine, EngineSettings
from streaming.packed import Packed
from streaming.preparse import unpack_bucket
from streaming.records import COUNTS, DUE, LOAD, RARE, Output


class BucketProcessor(StatefulProcessor):
    """One instance per task; the engine's cache lives as long as the Python worker."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declares the state variables."""
        self._fence = handle.getValueState("fence", "packed BINARY")
        self._topics = handle.getValueState("topics", "packed BINARY")
        self._loads = handle.getValueState("loads", "packed BINARY")
        self._topics_log = handle.getListState("topics_log", "packed BINARY")
        self._loads_log = handle.getListState("loads_log", "packed BINARY")
        self._engine = _engine(self._settings)

    def handleInitialState(self, key: Any, initialState: pd.DataFrame, timerValues: Any) -> None:
        """Takes over a bucket of a rebuilt checkpoint, a row of `streaming.rebuild.STATE_DDL`."""
        for row in initialState.itertuples(index=False):
            self._topics.update((bytes(row.topics),))
            self._loads.update((bytes(row.loads),))
            self._fence.update((bytes(row.fence),))

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        """One batch of one bucket."""
        frames = pd.concat(list(rows))
        if frames.empty:
            return
        now = int(frames["now"].iloc[0])
        records, samples = unpack_bucket(frames["kind"].tolist(), frames["body"].tolist())
        bucket, fence = int(key[0]), _bytes(self._fence.get())
        before = Packed(fence) if self._engine.holds(bucket, fence) else self._stored(fence)
        with _cycles_uncollected():
            written, output = self._engine.run(bucket, before, records, now, samples)
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
        yield _frame(output, now)

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


def _frame(output: Output, now: int) -> pd.DataFrame:
    """The output as one data frame of `OUTPUT_DDL`: a row per kind that has something to say."""
    bodies: dict[str, bytes] = {COUNTS: pydantic_core.to_json([asdict(output.counts)])}
    for kind in RARE:
        if rows := getattr(output, kind):
            bodies[kind] = pydantic_core.to_json(rows, bytes_mode="base64")
    if output.due:
        bodies[DUE] = pydantic_core.to_json(output.due)
    if output.loads is not None:
        bodies[LOAD] = output.loads.serialize().to_pybytes()
    return pd.DataFrame({"kind": list(bodies), "body": list(bodies.values()), "now": now})
