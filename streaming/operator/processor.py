"""The stateful operator for Spark, keyed by bucket: declares state variables and runs tasks.

Stage: `transformWithState` (design "Facts that shape the job", in its form of rows): packed rows of a bucket in,
rows of `OUTPUT_DDL` out, computed by `streaming.operator.bucket_task`. For each stored part, a value holds the base and
a list the log; a small value holds the fingerprint, so that a worker with the decoded state does not fetch it again.

The module must be importable on the workers, and quickly: before the first batch of a query Spark starts a separate
Python only to list the state variables, and plans nothing until it knows them. So the engine is imported with the
first rows (workers of the state stage have it since their fork, `streaming.job.workers`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, StructField, StructType

if TYPE_CHECKING:
    from engine.kernel.settings import EngineSettings, UnfinishedBatch
    from streaming.operator.bucket_task import BucketTask

FINGERPRINT = "fence"
"""State variable of the fingerprint, named as in the first release."""

_PACKED = StructType([StructField("packed", BinaryType())])
"""Type of every state variable: as text, the JVM would parse it twice per variable and task."""


_STILL_OPEN: list[Any] = []
"""State connection of the last task of this process."""


_FIRST_BATCHES: dict[tuple[str | None, int], int] = {}
"""By query and partition: the batch in which this process declared all state variables."""


def _are_in_the_store() -> bool:
    """Return whether all state variables were declared in a committed batch of the task's partition.

    Readers of the state, and later releases, find them by that. A later batch has seen an earlier one committed.
    """
    if (context := TaskContext.get()) is None:
        # The driver lists the variables.
        return False
    of_task = context.getLocalProperty("sql.streaming.queryId"), context.partitionId()
    batch = int(context.getLocalProperty("streaming.sql.batchId") or 0)
    return batch > _FIRST_BATCHES.setdefault(of_task, batch)


class _Variables(Mapping[str, Any]):
    """State variables of a kind by part, each declared on first use.

    Each declaration makes Spark run its analyzer three times, in every task. Most batches need one or two logs.
    """

    def __init__(self, parts: Sequence[str], declare: Callable[[str], Any]) -> None:
        self._declare, self._declared = declare, dict.fromkeys(parts)

    def __getitem__(self, part: str) -> Any:
        if self._declared[part] is None:
            self._declared[part] = self._declare(part)
        return self._declared[part]

    def __iter__(self) -> Iterator[str]:
        return iter(self._declared)

    def __len__(self) -> int:
        return len(self._declared)


def _say_less_to_spark(handle: StatefulProcessorHandle) -> None:
    """Suppress two state changes that tasks report to Spark (4.2): variables complete, and task over.

    After the first, Spark declares no more variables; nothing else depends on it without timers.

    The state connection must stay open at both ends until Spark closes it. If Spark learns over it that the task is
    over, or reads its end, it leaves its own end open, a leak with Unix sockets: after ten thousand batches an
    executor had no file descriptor left. Otherwise it interrupts the listener at the end of the task, which closes
    the connection.
    """
    client = handle._statefulProcessorApiClient
    tell = client.set_handle_state

    def set_handle_state(state: Any) -> None:
        if state.name == "INITIALIZED":
            client.handle_state = state
            return
        if state.name != "CLOSED":
            tell(state)
            return
        # Otherwise the client would keep itself and its buffers alive: cycles are not collected here.
        del client.set_handle_state
        for before in _STILL_OPEN:
            before.sockfile.close()
            before._client_socket.close()
        _STILL_OPEN[:] = [client]

    client.set_handle_state = set_handle_state


class BucketProcessor(StatefulProcessor):  # type: ignore[misc]
    """One instance per task; the engine's cache lives as long as the Python worker."""

    def __init__(
        self,
        parts: Sequence[str],
        settings: EngineSettings,
        lake: str,
        repeated: UnfinishedBatch | None = None,
        inline_bytes: int | None = None,
    ) -> None:
        """Create a processor.

        `parts`: names of the families' stored parts. `lake`: target of output beyond `inline_bytes` per table
        (`streaming.operator.outbox`). `repeated`: a batch with its own settings.
        """
        self._parts, self._settings, self._lake = tuple(parts), settings, lake
        self._repeated, self._inline_bytes = repeated, inline_bytes

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state variables: the fingerprint, and base and log of each stored part."""
        _say_less_to_spark(handle)
        self._fingerprint = handle.getValueState(FINGERPRINT, _PACKED)
        self._bases = _Variables(self._parts, lambda name: handle.getValueState(name, _PACKED))
        self._logs = _Variables(self._parts, lambda name: handle.getListState(f"{name}_log", _PACKED))
        if not _are_in_the_store():
            for variables in (self._bases, self._logs):
                list(variables.values())
        self._task: BucketTask | None = None

    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:
        """Load a bucket of a rebuilt checkpoint, a row of `streaming.checkpoint.first_start.state_ddl`."""
        for name, base in self._bases.items():
            # Null for a family without subjects here, or newer than the rebuilt checkpoint.
            if initialState[name] is not None:
                base.update((initialState[name],))
        self._fingerprint.update((initialState[FINGERPRINT],))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Run one batch of one bucket."""
        if self._task is None:
            from streaming.operator.bucket_task import BucketTask, StoredBucket

            stored = StoredBucket(self._fingerprint, self._bases, self._logs)
            self._task = BucketTask(self._settings, self._repeated, stored, self._lake, self._inline_bytes)
        yield from self._task.run(int(key[0]), rows)

    def close(self) -> None:
        """Close the task's files. Spark considers the task done, and passes its rows on, only after this."""
        if self._task is not None:
            self._task.close()
