"""Orchestrator of a switch: reads a snapshot, plans, records and runs steps, until nothing is left.

It works on a limited number of steps at a time, and records how they ended before it reads again.

The only state is what is on record and what the clusters show: a successor continues where the previous orchestrator
stopped. Source: PIP-477 phases 4 to 6; its hole 10 is closed by `term`.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from anabranch.bookkeeper.guard import Unsafe
from anabranch.bookkeeper.metadata import MetadataUnreachable
from anabranch.bookkeeper.record import RecordedStep, StepOutcome, SwitchRecord
from anabranch.bookkeeper.registry import Registry
from anabranch.bookkeeper.snapshot_reader import BookieSnapshotReader
from anabranch.bookkeeper.steps import Steps, TermLost
from decisions.bookkeeper.decide import plan_steps
from decisions.bookkeeper.reduced import Reducer
from schemas.bookie_answers import BookieAnswer, Step
from schemas.bookies import BookieSnapshot, Directive, Request
from schemas.ids import canonical_json

log = logging.getLogger(__name__)

WAVE = 256
"""Steps that are put on record together."""


@dataclass(frozen=True)
class Progressed:
    """Progress of a pass, for whoever watches."""

    phase: str
    action: str
    done: int
    of: int
    failed: int


class SwitchOrchestrator:
    """Carries out the switches of one Pulsar cluster, under one term."""

    def __init__(
        self,
        reader: BookieSnapshotReader,
        steps: Callable[[Registry], Steps],
        lake: str,
        name: str,
        concurrency: int,
        watch: Callable[[Progressed], None] = lambda _: None,
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        """Prepare an orchestrator; nothing is read before the first call.

        `steps` makes the runner of steps for a registry's clusters; `name` identifies this process to people.
        """
        self._reader, self._steps, self._lake, self._name = reader, steps, lake, name
        self._concurrency, self._watch, self._now = concurrency, watch, now
        self._stopping = False
        self._known: SwitchRecord | None = None
        self.seen: BookieSnapshot | None = None
        """The last snapshot; its data ledgers are those of the first."""

    def stop(self) -> None:
        """End after the steps that are being carried out; for signal handlers."""
        self._stopping = True

    def run(self, first: BookieSnapshot) -> BookieAnswer:
        """Work until nothing can be done now; return the last answer. `first` is a whole snapshot.

        Raises `TermLost`, `LeaseLost`, `BadRegistry`, `MetadataUnreachable`, `Unsafe`, and what Delta raises: run
        again, it goes on.
        """
        self.seen = first
        registry, in_vain = self._reader.store.read(), 0
        while True:
            record, snapshot = self._read_state(registry)
            answer = plan_steps(snapshot)
            if record is None or answer.action != "steps" or self._stopping:
                return answer
            if in_vain >= snapshot.settings.max_tries:
                log.warning("stopped: others changed everything that was to be done, %d times in a row", in_vain)
                return answer
            ends = self._carry_out(record, snapshot, registry, answer)
            in_vain = in_vain + 1 if all(end.status == "superseded" for end in ends) else 0
            registry = self._reader.store.read()

    def cleanup(self, request: Request, decide: Callable[[BookieSnapshot], BookieAnswer]) -> tuple[BookieAnswer, int]:
        """Make the deletions of `request`; return the answer, and how many steps failed or came too late."""
        registry = self._reader.store.read()
        if (record := self._record(registry.directive)) is None:
            return decide(self._reader.read_snapshot("cleanup", "whole", request, registry=registry)), 0
        self._finish_open_steps(record, registry)
        snapshot = self._reader.read_snapshot("cleanup", "whole", request, record.progress(), registry)
        answer = decide(snapshot)
        if answer.action != "cleanup":
            return answer, 0
        deletions = [step for step in answer.steps if step.action == "delete"]
        ends = self._carry_out(record, snapshot, registry, answer.model_copy(update={"steps": deletions}))
        return answer, sum(done.status != "applied" for done in ends)

    def _read_state(self, registry: Registry) -> tuple[SwitchRecord | None, BookieSnapshot]:
        if (record := self._record(registry.directive)) is not None:
            self._finish_open_steps(record, registry)
        progress = None if record is None else record.progress()
        self.seen = self._reader.read_snapshot("next", "ledgers", progress=progress, registry=registry, like=self.seen)
        return record, self.seen

    def _record(self, directive: Directive | None) -> SwitchRecord | None:
        if directive is None:
            return None
        if self._known is None or self._known.directive != directive:
            self._known = SwitchRecord(self._lake, self._reader.cluster, directive, self._name)
        return self._known

    def _finish_open_steps(self, record: SwitchRecord, registry: Registry) -> None:
        """End the open steps of a predecessor: repeating a step has the same result."""
        left = record.open()
        for begin in range(0, len(left), WAVE):
            wave = left[begin : begin + WAVE]
            record.intend(wave, self._now())
            self._work(record, registry, wave)

    def _carry_out(
        self, record: SwitchRecord, snapshot: BookieSnapshot, registry: Registry, answer: BookieAnswer
    ) -> list[StepOutcome]:
        reducer, ends = Reducer(snapshot), list[StepOutcome]()
        gates = _gates(answer)
        for wave in _waves(answer.steps):
            if self._stopping:
                break
            begun = record.begin([(step, reducer.reduced(step)) for step in wave], self._now(), gates)
            ends += self._work(record, registry, begun)
            failed = sum(end.status == "failed" for end in ends)
            self._watch(Progressed(wave[0].phase, wave[0].action, len(ends), len(answer.steps), failed))
        return ends

    def _work(self, record: SwitchRecord, registry: Registry, begun: Sequence[RecordedStep]) -> list[StepOutcome]:
        """Carry out steps and record their outcomes, also of those before a fault."""
        steps, ends, fault = self._steps(registry), list[tuple[RecordedStep, StepOutcome]](), None
        with ThreadPoolExecutor(self._concurrency) as pool:
            for step, future in [(step, pool.submit(steps.carry_out, step.step, registry)) for step in begun]:
                try:
                    ends.append((step, future.result()))
                except (TermLost, MetadataUnreachable, Unsafe) as error:
                    fault = error
        record.end(ends, self._now())
        if fault is not None:
            raise fault
        return [done for _, done in ends]


def _waves(steps: Sequence[Step]) -> Iterator[Sequence[Step]]:
    """Yield runs of one action, each at most `WAVE` long."""
    begin = 0
    for index in range(1, len(steps) + 1):
        if index == len(steps) or steps[index].action != steps[begin].action or index - begin == WAVE:
            yield steps[begin:index]
            begin = index


def _gates(answer: BookieAnswer) -> str:
    """Return the gates of the whole answer as JSON; those of single objects are in the inputs."""
    shown: list[Any] = [
        reading.model_dump(mode="json", by_alias=True, exclude_none=True)
        for reading in answer.readings
        if reading.object is None
    ]
    return canonical_json(shown)
