"""The real executor with a real lake, driven step by step along a scenario of the model.

Real: the executor's kernel with its threads and its announcer, the families' reading and judgement, the brakes, and all
Delta tables. Scripted: the server of the layouts or bundles, which is the world that the scenario is about, Kafka and
what the job records, the lease's look at the clock, and death. Every step that the executor wants to take waits at a
gate until the scenario says so; if it wants another step than the model says, the scenario fails. Long, as a whole
process and the world around it are in it.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from itertools import count
from pathlib import Path
from typing import Any, Literal

from anabranch.executor.autoscale.actor import AutoscaleActor
from anabranch.executor.bundles.actor import BundlesActor
from anabranch.executor.bundles.judge import LiveBundle
from anabranch.executor.kernel.announcer import MAX_LOOK_SECONDS, Announcer, follow_outcomes
from anabranch.executor.kernel.decision import follow_decisions
from anabranch.executor.kernel.family import Actor, Answer, CallAccepted, CallRefused, Decision, NoAnswer
from anabranch.executor.kernel.loop import DecisionWork, Executor
from anabranch.executor.kernel.outcomes import INTENT, OutcomeLedger, Shard
from anabranch.safeguards.record import WaitTable
from anabranch.safeguards.waiting import Brakes
from decisions.topic.layout import SegmentLayout
from lake.brakes import BrakeLog, SafeguardAct
from lake.lease import LeaseLost
from lake.tables import create_lake, open_table
from lake.tail import StoredRow, Tail
from schemas.kafka.messages import OutcomeEvent
from schemas.settings.processes import ExecutorSettings
from schemas.tables.rows import OUTCOMES, DecisionRow, EventRow, OutcomeRow
from tests.executor import bundle_orders, orders
from tests.executor.conftest import Collected, retrying, settings
from tests.executor.model.rules import Rules
from tests.executor.model.scenarios import UNSEEN, Scenario
from tests.executor.model.state import NAMES, State, Step
from tests.local.lake import write
from tests.waiting import wait_until

DEADLINE = 20.0
AT = datetime(2026, 11, 20, 12, 0, tzinfo=timezone.utc)
RECORDED = {"record the intent", "record the retry", "record the end"}


class Killed(BaseException):
    """kill -9, in the thread that it meets."""


class Gate:
    """Where the threads of one executor wait for the scenario: its loop, and the worker that tries a decision."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._wants: set[str] = set()
        self.is_dead = False
        self._answers: dict[str, Any] = {}

    def pass_through(self, wants: str) -> Any:
        """What the scenario answers to the step that is wanted. Raises `Killed`."""
        with self._changed:
            self._wants.add(wants)
            self._changed.wait_for(lambda: wants in self._answers or self.is_dead)
            if self.is_dead:
                raise Killed
            return self._answers.pop(wants)

    def wanted(self) -> set[str]:
        """The steps that wait; a copy, as threads that come add theirs."""
        with self._changed:
            return set(self._wants)

    def let(self, wants: str, answer: Any) -> None:
        """Lets the step that waits be taken."""
        with self._changed:
            self._answers[wants] = answer
            self._wants.discard(wants)
            self._changed.notify_all()

    def kill(self) -> None:
        """Nothing more gets through."""
        with self._changed:
            self.is_dead = True
            self._changed.notify_all()


Numbers = Callable[[str], int]
"""The number of a decision in the scenario, by its id."""


class GatedLedger(OutcomeLedger):
    """Records when the scenario says so; never notices by itself that it was overtaken: its commit has to fail."""

    gate: Gate
    number: Numbers
    made = 0
    """Commits."""

    def check_lease(self) -> None:
        return

    def append(self, rows: Sequence[OutcomeRow]) -> None:
        if all(row.status == INTENT and not row.error for row in rows):
            wants = "record the intent"
        else:
            [row] = rows
            wants = f"record the {'retry' if row.status == INTENT else 'end'} {self.number(row.decision_id)}"
            wants += f": {row.status}" if row.status != INTENT else ""
        self.gate.pass_through(wants)
        super().append(rows)
        self.made += 1


class GatedPublisher(Collected):
    """Announces when the scenario says so; what a start announces goes through."""

    def __init__(self, gate: Gate, number: Numbers) -> None:
        super().__init__()
        self._gate, self._number, self.is_open = gate, number, True

    def publish(self, event: OutcomeEvent) -> None:
        if not self.is_open:
            self._gate.pass_through(f"announce {self._number(event.decision_id)}")
        super().publish(event)


class MortalTail(Tail):
    """The tail of the decisions, where a loop that waits for nothing else learns that it is dead."""

    gate: Gate

    def read(self, known: Container[Any] = ()) -> list[StoredRow]:
        if self.gate.is_dead:
            raise Killed
        return super().read(known)


class GatedActor:
    """Looks and calls when the scenario says so, and sees and hears what it says; reads and judges as a real one."""

    def __init__(self, gate: Gate, number: Numbers, real: Actor[Any, Any]) -> None:
        self._gate, self._number = gate, number
        self.read, self.judge, self.describe = real.read, real.judge, real.describe

    def namespace(self, subject: str) -> str | None:
        return None

    def look(self, decision: Decision) -> Any:
        return self._pass(f"look {self._number(decision.decision_id)}", NoAnswer("killed"))

    def call(self, decision: Decision, live: Any, may_send: Callable[[], bool]) -> Answer:
        return self._pass(f"call {self._number(decision.decision_id)}", NoAnswer("killed"))

    def holds_lease(self) -> bool:
        return self._pass("look at the lease", False)

    def _pass(self, wants: str, if_dead: Any) -> Any:
        # A worker that is dead answers into the void: its loop is gone.
        try:
            return self._gate.pass_through(wants)
        except Killed:
            return if_dead


class Topic:
    """The scripted server of a topic's layouts."""

    family, subject = "autoscale", "topic://acme/shop/orders"

    def __init__(self) -> None:
        self.now = self.before = SegmentLayout.create(2, 1_000)
        self._changes = count(2_000)

    def real_actor(self) -> Actor[Any, Any]:
        return AutoscaleActor(None)  # type: ignore[arg-type]

    def rows(self, siblings: int) -> list[DecisionRow]:
        """Decisions on the lowest active segments."""
        chosen = self._active()[:siblings]
        decided = [orders.decision(self.now, segment, topic=self.subject) for segment in chosen]
        return [orders.row(one, decision_id=f"split-{next(self._changes)}") for one in decided]

    def apply(self, row: DecisionRow) -> None:
        self._split(json.loads(row.arguments)["segments"][0])

    def change_by_hand(self, step: Step) -> None:
        if step.what == "somebody makes the topic anew":
            self.now = self.before = SegmentLayout.create(2, 5_000)
        else:
            self._split(self._active()[0 if step.how == "the same" else -1])

    def changed(self) -> list[int]:
        """Segments that were split."""
        return sorted(segment.segment_id for segment in self.now.segments.values() if not segment.is_active)

    def _active(self) -> list[int]:
        return sorted(segment.segment_id for segment in self.now.active)

    def _split(self, segment: int) -> None:
        self.before, self.now = self.now, self.now.split_segment(segment, next(self._changes))


class Bundles:
    """The scripted cluster of two bundles, each to be moved from the first broker to the second."""

    family, subject = "bundles", bundle_orders.CLUSTER
    RANGES = ("0x00000000_0x80000000", "0x80000000_0xffffffff")
    BROKERS = ("a:8080", "b:8080", "c:8080")

    def __init__(self) -> None:
        self.owners = self._owners_before = (0, 0)
        self._ids = count(1)

    @property
    def now(self) -> tuple[int, int]:
        return self.owners

    @property
    def before(self) -> tuple[int, int]:
        return self._owners_before

    def real_actor(self) -> Actor[Any, Any]:
        return BundlesActor(None)  # type: ignore[arg-type]

    def rows(self, siblings: int) -> list[DecisionRow]:
        return [
            bundle_orders.unload(f"move-{next(self._ids)}", f"acme/shop/{range_}", *self.BROKERS[:2])
            for range_ in self.RANGES[:siblings]
        ]

    def shown(self, row: DecisionRow, owners: tuple[int, int]) -> LiveBundle:
        """A look at the bundle of a decision."""
        return LiveBundle(self.subject, self.RANGES, self.BROKERS, self.BROKERS[owners[self._bundle(row)]])

    def apply(self, row: DecisionRow) -> None:
        self._move(self._bundle(row), 1)

    def change_by_hand(self, step: Step) -> None:
        assert step.decision is not None
        self._move(step.decision, 1 if step.how == "the same" else 2)

    def changed(self) -> list[int]:
        """Bundles at their destination."""
        return [bundle for bundle, owner in enumerate(self.owners) if owner == 1]

    def _bundle(self, row: DecisionRow) -> int:
        return self.RANGES.index(json.loads(row.arguments)["bundle"].rpartition("/")[2])

    def _move(self, bundle: int, broker: int) -> None:
        moved = list(self.owners)
        moved[bundle] = broker
        self._owners_before, self.owners = self.owners, (moved[0], moved[1])


@dataclass
class Process:
    """One executor from its start to its death."""

    gate: Gate
    ledger: GatedLedger
    publisher: GatedPublisher
    thread: threading.Thread
    failed: list[BaseException] = field(default_factory=list)
    announces: list[int] = field(default_factory=list)
    """Decisions whose end it has announced, and of which the job has not heard."""
    announcer_now: float = 0.0
    late: timedelta = timedelta()
    """How far its clock is ahead of the others'."""


class Stage:
    """Plays scenarios one after the other, each on an empty lake of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._number = folder, count(1)
        create_lake(folder / "empty")

    def play(self, scenario: Scenario, rules: Rules) -> None:
        """Has the real executor take the steps; fails when it wants others, or the record is another at the end."""
        trace, end = scenario
        lake = self._folder / str(next(self._number))
        shutil.copytree(self._folder / "empty", lake)
        world = Bundles() if rules.bundles else Topic()
        performance = Performance(str(lake), trace, rules.siblings, world)
        try:
            for number, step in enumerate(trace):
                try:
                    performance.take(step, trace[number + 1 :])
                except BaseException as error:
                    history = "\n".join(map(str, trace[: number + 1]))
                    raise AssertionError(f"the real executor does not follow the model:\n{history}\n{error}") from error
            performance.check(end)
        finally:
            performance.end()
            shutil.rmtree(lake)


class Performance:
    """One scenario, as it is played."""

    def __init__(self, lake: str, trace: Sequence[Step], siblings: int, world: Topic | Bundles) -> None:
        self._lake, self._siblings, self._world = lake, siblings, world
        self._braked = next((step.decision or 0 for step in trace if step.what == "is braked"), None)
        self._rows: list[DecisionRow] = []
        self._numbers: dict[str, int] = {}
        self._told: set[int] = set()
        self._ended: set[int] = set()
        self._heard: set[int] = set()
        self._processes: dict[str, Process] = {}
        self._newest_token = count(1)
        self._tokens: dict[str, int] = {}
        self._ledgers: dict[str, GatedLedger] = {}
        self._batches = count(1)
        self._all: list[Process] = []

    def take(self, step: Step, rest: Sequence[Step]) -> None:
        """One step; `rest` are those that come after it."""
        number = step.decision or 0
        if step.decision is None and self._rows and step.who in NAMES:
            number = self._only_open()
        if step.who in NAMES:
            self._of_executor(step, number, rest)
        elif step.what == "decide":
            self._decide()
        elif step.what == "the server applies the call":
            self._world.apply(self._rows[number if step.decision is not None else -1])
        elif step.what.startswith("somebody "):
            self._world.change_by_hand(step)
        elif step.what == "Kafka loses the outcome":
            self._told.remove(self._told_one(step))
        elif step.what == "the job hears of the end":
            self._hear(self._told_one(step))
        else:
            assert step.what == "the server refuses the call", step

    def check(self, end: State) -> None:
        """The record is what the model says, and so is the world."""
        table = open_table(self._lake, OUTCOMES)
        assert table is not None
        found = table.to_pyarrow_table(filters=[("subject", "=", self._world.subject)]).to_pylist()
        for decided, decision in zip(self._rows, end.decisions, strict=True):
            rows = [row for row in found if row["decision_id"] == decided.decision_id]
            ends = [row for row in rows if row["status"] != INTENT]
            assert [row["status"] for row in ends] == [decision.end]
            assert max(row["attempt"] for row in rows) == decision.calls
            assert (len(rows) > len(ends)) == decision.begun
        assert self._world.changed() == sorted(end.layout.splits)
        assert self._heard == set(range(len(self._rows)))

    def end(self) -> None:
        """Nothing of the scenario lives on."""
        for process in self._all:
            self._kill(process)

    def _decide(self) -> None:
        rows = self._world.rows(self._siblings)
        if self._braked is not None:
            for number, row in enumerate(rows, len(self._rows)):
                if number != self._braked:
                    self._act("approve", row)
        self._numbers |= {row.decision_id: number for number, row in enumerate(rows, len(self._rows))}
        self._rows += rows
        orders.commit(self._lake, rows)

    def _told_one(self, step: Step) -> int:
        """The decision whose outcome is on its way, as the real executor has announced it."""
        number = step.decision if step.decision is not None else len(self._rows) - 1
        assert number in self._told, f"nobody has announced the end of decision {number}"
        return number

    def _hear(self, number: int) -> None:
        """The job records an outcome."""
        self._told.remove(number)
        self._heard.add(number)
        for process in self._all:
            process.announces = [one for one in process.announces if one != number]
        decision_id = self._rows[number].decision_id
        events = (event for process in self._all for event in process.publisher.events)
        status = next(event.status for event in events if event.decision_id == decision_id)
        body = {"v": 1, "type": "outcome", "decisionId": decision_id, "status": status}
        self._batch("outcome", json.dumps(body))

    def _batch(self, kind: str, body: str) -> None:
        number = next(self._batches)
        write(
            self._lake,
            EventRow(
                subject=self._world.subject,
                type=kind,
                cause=None,
                body=body,
                at=AT,
                kafka_topic="control-events",
                kafka_partition=0,
                kafka_offset=number,
                kafka_timestamp=AT,
                accepted_at=AT,
                batch_id=number,
                day=AT.date(),
            ),
        )

    def _only_open(self) -> int:
        return next((n for n in range(len(self._rows)) if n not in self._ended), len(self._rows) - 1)

    def _of_executor(self, step: Step, number: int, rest: Sequence[Step]) -> None:
        who, what, how, _ = step
        if what == "take the lease":
            self._tokens[who] = next(self._newest_token)
        elif what == "fence off the one before":
            self._fence(who, how)
        elif what == "read the record":
            self._start(who)
        elif what == "kill -9":
            self._ledgers.pop(who, None)
            if who in self._processes:
                self._kill(self._processes.pop(who))
        elif what == "is released":
            self._act("approve", self._rows[number])
        elif what == "is told to reject":
            self._act("reject", self._rows[number])
        elif what == "the lease runs out":
            process = self._processes.get(who)
            calls = [wants for wants in process.gate.wanted() if wants.startswith("call")] if process else []
            for wants in calls:
                process.gate.let(wants, NoAnswer("timed out"))  # type: ignore[union-attr]
        elif what == "announce":
            number = step.decision if step.decision is not None else len(self._rows) - 1
            self._announce(self._processes[who], number)
        elif what == "announce again":
            self._announce_again(self._processes[who])
        elif what in RECORDED or what in ("look", "look at the lease", "call", "hear"):
            self._at_gate(step, number, rest)

    def _announce(self, process: Process, number: int) -> None:
        self._let(process, f"announce {number}", True)
        wait_until(lambda: number in self._published(process) or process.failed, DEADLINE, 0.001)
        self._told.add(number)
        process.announces = [*(one for one in process.announces if one != number), number]

    def _announce_again(self, process: Process) -> None:
        self._batch("tick", "{}")
        process.announcer_now += 10 * MAX_LOOK_SECONDS
        for number in list(process.announces):
            self._announce(process, number)

    def _published(self, process: Process) -> list[int]:
        return [self._numbers[event.decision_id] for event in process.publisher.events]

    def _at_gate(self, step: Step, number: int, rest: Sequence[Step]) -> None:
        who, what, how, _ = step
        process = self._processes[who]
        wants = {"look at the lease": what, "record the intent": what, "hear": f"call {number}"}.get(
            what, f"{what} {number}"
        )
        if how == "overtaken":
            wait_until(lambda: any(one.startswith(wants) for one in process.gate.wanted()), DEADLINE, 0.001)
            [wants] = [one for one in process.gate.wanted() if one.startswith(wants)]
        elif what == "record the end":
            wants += f": {how}"
        self._wait_for(process, wants)
        own = [later.what for later in rest if later.who == who and later.what not in UNSEEN | {"the lease runs out"}]
        if own[:1] == ["the time is up"]:
            process.late += timedelta(days=1)
        if what == "call":
            return
        if what == "hear":
            answers: dict[str, Answer] = {"accepted": CallAccepted(), "refused": CallRefused("not now")}
            process.gate.let(wants, answers.get(how, NoAnswer(how)))
        elif what == "look":
            shown = {"fresh": self._world.now, "stale": self._world.before, "no answer": NoAnswer("no answer")}[how]
            if isinstance(self._world, Bundles) and not isinstance(shown, NoAnswer):
                shown = self._world.shown(self._rows[number], shown)
            process.gate.let(wants, shown)
        elif what == "look at the lease":
            process.gate.let(wants, how == "it holds")
        else:
            made = process.ledger.made
            process.gate.let(wants, True)
            if how == "overtaken":
                process.thread.join(DEADLINE)
                assert isinstance(process.failed[0], LeaseLost) or "Concurrent" in str(process.failed[0])
                del self._processes[who]
            else:
                wait_until(lambda: process.failed or process.ledger.made > made, DEADLINE, 0.001)
                if what == "record the end":
                    self._ended.add(number)

    def _let(self, process: Process, wants: str, answer: Any) -> None:
        self._wait_for(process, wants)
        process.gate.let(wants, answer)

    def _wait_for(self, process: Process, wants: str) -> None:
        def is_there() -> bool:
            if process.failed:
                raise process.failed[0]
            kind = wants.split()[0]
            return any(one.split()[0] == kind for one in process.gate.wanted())

        with suppress(AssertionError):
            wait_until(is_there, DEADLINE, 0.001)
        found = sorted(process.gate.wanted())
        assert wants in found, f"the executor wants to {' and to '.join(found) or 'do nothing'}, not to {wants}"

    def _fence(self, who: str, how: str) -> None:
        token = self._tokens[who]
        try:
            ledger = GatedLedger(self._lake, "act", Shard(0, token, lambda _: True))
        except LeaseLost:
            assert how == "overtaken"
            return
        assert how != "overtaken"
        self._ledgers[who] = ledger

    def _start(self, who: str) -> None:
        gate, ledger = Gate(), self._ledgers.pop(who)
        ledger.gate, ledger.number = gate, self._numbers.__getitem__
        mode = "act" if self._braked is None else "approve"
        chosen = settings(mode=mode, workers=1, poll_ms=10)
        tail = follow_decisions(self._lake)
        tail.__class__ = MortalTail
        tail.gate = gate  # type: ignore[attr-defined]
        actor = GatedActor(gate, self._numbers.__getitem__, self._world.real_actor())
        publisher = GatedPublisher(gate, self._numbers.__getitem__)
        ready, failed = threading.Event(), list[BaseException]()

        def clock() -> datetime:
            return AT + process.late

        process = Process(gate, ledger, publisher, threading.Thread(target=lambda: run(), daemon=True), failed)
        announcer = Announcer(publisher, follow_outcomes(self._lake), lambda: process.announcer_now)
        with retrying(0.001, 0.002):
            executor = Executor(
                chosen,
                tail,
                ledger,
                {self._world.family: actor},
                announcer,
                self._brakes_of(chosen, ledger, clock),
                clock,
                actor.holds_lease,
            )

        def begin() -> None:
            publisher.is_open = False
            ready.set()

        def run() -> None:
            try:
                executor.run(begin)
            except Killed:
                pass
            except BaseException as error:
                failed.append(error)
            finally:
                ready.set()

        self._processes[who] = process
        self._all.append(process)
        process.thread.start()
        assert ready.wait(DEADLINE)
        assert not failed, failed
        published = self._published(process)
        assert self._ended - self._heard <= set(published), "a start announces every end that the job has not recorded"
        process.announces = [number for number in published if number not in self._heard]
        self._told |= set(process.announces)

    def _brakes_of(
        self, chosen: ExecutorSettings, ledger: OutcomeLedger, clock: Callable[[], datetime]
    ) -> Brakes[DecisionWork]:
        record, waits = BrakeLog(self._lake), WaitTable(self._lake, ledger.executor)
        return Brakes(chosen, record, waits, ledger.executor, clock, time.monotonic)

    def _kill(self, process: Process) -> None:
        process.gate.kill()
        process.thread.join(DEADLINE)
        assert not process.thread.is_alive()

    def _act(self, kind: Literal["approve", "reject"], row: DecisionRow) -> None:
        act = SafeguardAct(kind, self._world.subject, "the model", "model", AT, decision_id=row.decision_id)
        BrakeLog(self._lake).write(lambda _: [act])
