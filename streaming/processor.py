"""The stateful operator as Spark sees it, keyed by bucket: its state variables, and the way to `streaming.bucket_task`.

Stage: `transformWithState` (design "Facts that shape the job", in its form of rows): packed rows of a bucket in, rows
of `OUTPUT_DDL` out. Of each stored part of the families, a value holds the base and a list the log; a small value says
which state this is, so that a worker that holds the decoded state does not fetch it again.

The module must be importable on the workers, and at once: before the first batch of a query Spark starts a Python of
its own, only to ask which state variables there are, and plans nothing until it knows. So the engine is imported by
the first rows (the workers of the state stage have it since they were forked, `streaming.workers`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
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


_STILL_OPEN: list[Any] = []
"""What the last task of this process asks Spark for its state by."""


_FIRST_BATCHES: dict[tuple[str | None, int], int] = {}
"""By query and partition: in which batch this process has declared all state variables."""


def _are_in_the_store() -> bool:
    """Whether all state variables were declared in a batch of the task's partition that is committed.

    Who reads the state, and a later release, find them by that. A batch that comes after another has seen it committed.
    """
    context = TaskContext.get()
    if context is None:
        # The driver asks which there are.
        return False
    of_task = context.getLocalProperty("sql.streaming.queryId"), context.partitionId()
    batch = int(context.getLocalProperty("streaming.sql.batchId") or 0)
    return batch > _FIRST_BATCHES.setdefault(of_task, batch)


class _Variables(Mapping[str, Any]):
    """The state variables of a kind by part, each declared when it is first asked for.

    For each that is declared Spark runs its analyzer three times, in every task. Most batches need a log or two.
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
    """Keeps from Spark (4.2) that the task has all its variables, and that it is over.

    Once Spark has heard the first it lets no more variables be declared; nothing else depends on it where there are no
    timers.

    The connection to the state is kept open at both ends until Spark ends it. Once it hears by that connection that the
    task is over, or that nobody speaks any more, Spark leaves its end as it is, and over a Unix socket that is for
    ever: after ten thousand batches an executor had no file left to open. If it hears neither, it interrupts whoever
    listens at the end of the task, and that closes it.
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
        # Without this it would keep itself alive, with its buffers: nothing looks for such cycles here.
        del client.set_handle_state
        for before in _STILL_OPEN:
            before.sockfile.close()
            before._client_socket.close()
        _STILL_OPEN[:] = [client]

    client.set_handle_state = set_handle_state  # type: ignore[method-assign]


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
        _say_less_to_spark(handle)
        self._fingerprint = handle.getValueState(FINGERPRINT, _PACKED)
        self._bases = _Variables(self._parts, lambda name: handle.getValueState(name, _PACKED))
        self._logs = _Variables(self._parts, lambda name: handle.getListState(f"{name}_log", _PACKED))
        if not _are_in_the_store():
            for variables in (self._bases, self._logs):
                list(variables.values())
        self._task: BucketTask | None = None

    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:
        """Takes over a bucket of a rebuilt checkpoint, a row of `streaming.first_start.state_ddl`."""
        for name, base in self._bases.items():
            # Of a family without subjects here, or that was not there when the checkpoint was rebuilt, it is null.
            if initialState[name] is not None:
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
