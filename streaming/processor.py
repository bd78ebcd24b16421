"""The stateful operator as Spark sees it, keyed by bucket: its state variables, and the way to `streaming.bucket_task`.

Stage: `transformWithState` (design "Facts that shape the job", in its form of rows): packed rows of a bucket in, rows
of `OUTPUT_DDL` out. Of each stored part of the families, a value holds the base and a list the log; a small value says
which state this is, so that a worker that holds the decoded state does not fetch it again.

The module must be importable on the workers, and at once: before the first batch of a query Spark starts a Python of
its own, only to ask which state variables there are, and plans nothing until it knows. So the engine is imported by
the first rows (the workers of the state stage have it since they were forked, `streaming.workers`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, StructField, StructType

if TYPE_CHECKING:
    from engine.kernel.settings import EngineSettings, Repeated
    from streaming.bucket_task import BucketTask

FINGERPRINT = "fence"
"""The state variable of the fingerprint, as the first release called it."""

_PACKED = StructType([StructField("packed", BinaryType())])
"""Of every state variable. As a type, not as text: text is parsed by the JVM, twice for each variable and task."""


class BucketProcessor(StatefulProcessor):
    """One instance per task; the engine's cache lives as long as the Python worker."""

    def __init__(
        self, parts: Sequence[str], settings: EngineSettings, lake: str, repeated: Repeated | None = None,
        inline_bytes: int | None = None,
    ) -> None:  # fmt: skip
        """`parts`: names of the families' stored parts. `lake`: where output goes that is much, more than
        `inline_bytes` of a table (`streaming.outbox`). `repeated`: a batch with settings of its own."""
        self._parts, self._settings, self._lake = tuple(parts), settings, lake
        self._repeated, self._inline_bytes = repeated, inline_bytes

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declares the state variables: the fingerprint, and of each stored part its base and its log."""
        self._fingerprint = handle.getValueState(FINGERPRINT, _PACKED)
        self._bases = {name: handle.getValueState(name, _PACKED) for name in self._parts}
        self._logs = {name: handle.getListState(f"{name}_log", _PACKED) for name in self._parts}
        self._task: BucketTask | None = None

    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:
        """Takes over a bucket of a rebuilt checkpoint, a row of `streaming.rebuild.STATE_DDL`."""
        for name, base in self._bases.items():
            base.update((initialState[name],))
        self._fingerprint.update((initialState[FINGERPRINT],))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """One batch of one bucket."""
        if self._task is None:
            from streaming.bucket_task import BucketTask, StoredBucket

            stored = StoredBucket(self._fingerprint, self._bases, self._logs)
            self._task = BucketTask(self._settings, self._repeated, stored, self._lake, self._inline_bytes)
        yield from self._task.run(int(key[0]), rows)

    def close(self) -> None:
        """Ends the task's files. Spark takes a task for done only after this: its rows reach the driver then."""
        if self._task is not None:
            self._task.close()
