"""The stateful operator as Spark sees it: a thin adapter around `streaming.engine`, keyed by bucket.

Stage: `transformWithStateInPandas` (DESIGN section 7): raw rows of a bucket in, rows of `OUTPUT_DDL` out. Two binary
state values hold the packed bucket; a third, small one says which, so that a worker that holds the decoded state does
not fetch it again. The module must be importable on the workers.
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

from streaming.engine import BucketEngine, EngineSettings, Packed
from streaming.records import COUNTS, DEAD_LETTER, DUE, LOAD, OUTPUT_COLUMNS, Output, RawRecord


class BucketProcessor(StatefulProcessor):
    """One instance per task; the engine's cache lives as long as the Python worker."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declares the three state values."""
        self._fence = handle.getValueState("fence", "packed BINARY")
        self._topics = handle.getValueState("topics", "packed BINARY")
        self._loads = handle.getValueState("loads", "packed BINARY")
        self._engine = _engine(self._settings)

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        """One batch of one bucket."""
        frames = list(rows)
        records = [record for frame in frames for record in _records(frame)]
        now = int(frames[0]["now"].iloc[0])
        bucket, fence = int(key[0]), _bytes(self._fence.get())
        if self._engine.holds(bucket, fence):
            before = Packed(fence)
        else:
            before = Packed(fence, _bytes(self._topics.get()), _bytes(self._loads.get()))
        with _cycles_uncollected():
            written, output = self._engine.run(bucket, before, records, now)
        for variable, packed in ((self._topics, written.topics), (self._loads, written.loads)):
            if packed is not None:
                variable.update((packed,))
        if written.fence != fence:
            self._fence.update((written.fence,))
        yield _frame(output, now)

    def close(self) -> None:
        """Nothing is held open."""


_ENGINES: dict[EngineSettings, BucketEngine] = {}


def _engine(settings: EngineSettings) -> BucketEngine:
    """One engine per worker process and configuration, so that decoded state outlives a task."""
    return _ENGINES.setdefault(settings, BucketEngine(settings))


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value[0])


@contextmanager
def _cycles_uncollected() -> Iterator[None]:
    """Holds Python's cycle collector off: it would walk the whole state again and again, and takes three quarters of
    the time at 15,000 segments a bucket. Nothing in the state is cyclic."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _records(frame: pd.DataFrame) -> Iterator[RawRecord]:
    columns = [
        frame[name].tolist() for name in ("source", "key", "value", "size", "partition", "offset", "timestamp", "home")
    ]
    for source, key, value, size, partition, offset, timestamp, home in zip(*columns, strict=True):
        yield RawRecord(
            source, None if key is None else bytes(key), None if value is None else bytes(value),
            int(size), int(partition), int(offset), int(timestamp), bool(home),
        )  # fmt: skip


def _frame(output: Output, now: int) -> pd.DataFrame:
    """The output as one data frame of `OUTPUT_DDL`."""
    loads = vars(output.loads)
    bulk = len(output.loads.topic)
    rare: list[tuple[str, bytes, bytes | None, bytes | None]] = []
    for kind in ("decisions", "holds", "events"):
        rare += [(kind, pydantic_core.to_json(row), None, None) for row in getattr(output, kind)]
    for row in output.dead_letters:
        key, raw = row.pop("key"), row.pop("raw")
        rare.append((DEAD_LETTER, pydantic_core.to_json(row), key, raw))
    rare += [(DUE, pydantic_core.to_json(due), None, None) for due in output.due]
    rare.append((COUNTS, pydantic_core.to_json(asdict(output.counts)), None, None))
    none = [None] * len(rare)
    columns: dict[str, Any] = {
        "kind": [LOAD] * bulk + [row[0] for row in rare],
        "body": [None] * bulk + [row[1].decode() for row in rare],
        "key": [None] * bulk + [row[2] for row in rare],
        "raw": [None] * bulk + [row[3] for row in rare],
        **{name: [*values, *none] for name, values in loads.items()},
        "now": [now] * (bulk + len(rare)),
    }
    frame = pd.DataFrame(columns, columns=list(OUTPUT_COLUMNS))
    integers = ["segment_id", "sampled_at", "kafka_partition", "kafka_offset"]
    return frame.astype(dict.fromkeys(integers, "Int64"))
