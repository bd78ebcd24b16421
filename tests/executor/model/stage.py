"""The real executor with a real lake, driven step by step along a scenario of the model.

Real: the executor's kernel with its threads, the judgement by lineage, the brakes, and all Delta tables. Scripted: the
server of the layouts, which is the world that the scenario is about, the lease's look at the clock, and death. Every
step that the executor wants to take waits at a gate until the scenario says so; if it wants another step than the model
says, the scenario fails.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from itertools import count
from pathlib import Path
from typing import Any

from decisions.topic.layout import SegmentLayout
from executor.autoscale.actor import LiveLayout
from executor.autoscale.decision import SegmentDecision, read_segment_decision
from executor.autoscale.judge import describe, judge
from executor.brakes.record import WaitTable
from executor.brakes.waiting import Brakes
from executor.kernel.announcer import Announcer, follow_outcomes
from executor.kernel.decision import follow_decisions
from executor.kernel.family import Accepted, Answer, CallRefused, NoAnswer, Seen, Verdict
from executor.kernel.loop import Executor, Work
from executor.kernel.outcomes import INTENT, OutcomeLedger, Shard
from lake.brakes import Act, BrakeLog
from lake.lease import LeaseLost
from lake.tables import create_lake, open_table
from lake.tail import StoredRow, Tail
from schemas.settings import ExecutorSettings
from schemas.tables import OUTCOMES, OutcomeRow
from tests.executor import orders
from tests.executor.conftest import Collected, settings
from tests.executor.model.scenarios import UNSEEN, Scenario
from tests.executor.model.state import NAMES, State, Step
from tests.waiting import wait_until

DEADLINE = 20.0
AT = datetime(2026, 11, 20, 12, 0, tzinfo=timezone.utc)
TOPIC = "topic://acme/shop/orders"
RECORDED = {"record the intent", "record the retry", "record the end"}


class Killed(BaseException):
    """kill -9, in the thread that it meets."""


class Gate:
    """Where the threads of one executor wait for the scenario."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.wants: str = ""
        self.is_dead = False
        self._answer: list[Any] = []

    def pass_through(self, wants: str) -> Any:
        """What the scenario answers to the step that is wanted. Raises `Killed`."""
        with self._changed:
            self.wants = wants
            self._changed.wait_for(lambda: self._answer or self.is_dead)
            if self.is_dead:
                raise Killed
            return self._answer.pop()

    def let(self, answer: Any) -> None:
        """Lets the step that waits be taken."""
        with self._changed:
            self._answer.append(answer)
            self.wants = ""
            self._changed.notify_all()

    def kill(self) -> None:
        """Nothing more gets through."""
        with self._changed:
            self.is_dead = True
            self._changed.notify_all()


class GatedLedger(OutcomeLedger):
    """Records when the scenario says so; never notices by itself that it was overtaken: its commit has to fail."""

    gate: Gate
    made = 0
    """Commits."""

    def check_lease(self) -> None:
        return

    def append(self, rows: Sequence[OutcomeRow]) -> None:
        [row] = rows
        what = "record the end" if row.status != INTENT else "record the retry" if row.error else "record the intent"
        self.gate.pass_through(f"{what}: {row.status}" if row.status != INTENT else what)
        super().append(rows)
        self.made += 1


class MortalTail(Tail):
    """The tail of the decisions, where a loop that waits for nothing else learns that it is dead."""

    gate: Gate

    def read(self, known: Container[Any] = ()) -> list[StoredRow]:
        if self.gate.is_dead:
            raise Killed
        return super().read(known)


class GatedActor:
    """Looks and calls when the scenario says so, and sees and hears what it says."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def read(self, row: Any) -> SegmentDecision:
        return read_segment_decision(row)

    def namespace(self, subject: str) -> str | None:
        return None

    def look(self, decision: SegmentDecision) -> LiveLayout | NoAnswer:
        return self._pass("look", NoAnswer("killed"))

    def judge(self, decision: SegmentDecision, live: SegmentLayout, may_have_called: bool) -> Verdict:
        return judge(decision, live, may_have_called)

    def describe(self, decision: SegmentDecision, live: SegmentLayout) -> Seen:
        return Seen(describe(decision, live), live.epoch)

    def call(self, decision: SegmentDecision, live: SegmentLayout, may_send: Callable[[], bool]) -> Answer:
        return self._pass("call", NoAnswer("killed"))

    def holds_lease(self) -> bool:
        return self._pass("look at the lease", False)

    def _pass(self, wants: str, if_dead: Any) -> Any:
        # A worker that is dead answers into the void: its loop is gone.
        try:
            return self._gate.pass_through(wants)
        except Killed:
            return if_dead


@dataclass
class Process:
    """One executor from its start to its death."""

    gate: Gate
    ledger: GatedLedger
    thread: threading.Thread
    failed: list[BaseException] = field(default_factory=list)
    late: timedelta = timedelta()
    """How far its clock is ahead of the others'."""


class Stage:
    """Plays scenarios one after the other, each on an empty lake of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._number = folder, count(1)
        create_lake(folder / "empty")

    def play(self, scenario: Scenario) -> None:
        """Has the real executor take the steps; fails when it wants others, or the record is another at the end."""
        trace, end = scenario
        lake = self._folder / str(next(self._number))
        shutil.copytree(self._folder / "empty", lake)
        performance = Performance(str(lake))
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

    def __init__(self, lake: str) -> None:
        self._lake = lake
        self._layout = self._before = SegmentLayout.create(2, 1_000)
        self._decided: list[SegmentDecision] = []
        self._processes: dict[str, Process] = {}
        self._newest_token = count(1)
        self._tokens: dict[str, int] = {}
        self._ledgers: dict[str, GatedLedger] = {}
        self._is_paused = False
        self._changes = count(2_000)
        self._all: list[Process] = []
        self.published = Collected()

    def take(self, step: Step, rest: Sequence[Step]) -> None:
        """One step; `rest` are those that come after it."""
        if step.who in NAMES:
            self._of_executor(step, rest)
        elif step.what == "decide":
            if any(later.what == "is braked" for later in rest):
                self._brake("pause")
            self._decided.append(orders.decision(self._layout, min(self._active()), topic=TOPIC))
            orders.commit(self._lake, [orders.row(self._decided[-1])])
        elif step.what == "the server applies the call":
            self._changed(self._layout.split_segment(self._decided[-1].segments[0], next(self._changes)))
        elif step.what == "somebody splits by hand":
            segment = min(self._active()) if step.how == "the same" else max(self._active())
            self._changed(self._layout.split_segment(segment, next(self._changes)))
        elif step.what == "somebody makes the topic anew":
            self._layout = self._before = SegmentLayout.create(2, 5_000)
        else:
            assert step.what in ("the job hears of the end", "the server refuses the call"), step

    def check(self, end: State) -> None:
        """The record is what the model says, and so is the layout."""
        table = open_table(self._lake, OUTCOMES)
        assert table is not None
        found = table.to_pyarrow_table(filters=[("subject", "=", TOPIC)]).to_pylist()
        for decided, decision in zip(self._decided, end.decisions, strict=True):
            rows = [row for row in found if row["decision_id"] == decided.decision_id]
            ends = [row for row in rows if row["status"] != INTENT]
            assert [row["status"] for row in ends] == [decision.end]
            assert max(row["attempt"] for row in rows) == decision.calls
            assert (len(rows) > len(ends)) == decision.begun
        made = [segment.segment_id for segment in self._layout.segments.values() if not segment.is_active]
        assert sorted(made) == sorted(end.layout.splits)

    def end(self) -> None:
        """Nothing of the scenario lives on."""
        for process in self._all:
            self._kill(process)

    def _of_executor(self, step: Step, rest: Sequence[Step]) -> None:
        who, what, how = step
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
            self._brake("resume")
        elif what == "is told to reject":
            self._brake("reject")
        elif what == "the lease runs out":
            process = self._processes.get(who)
            if process is not None and process.gate.wants == "call":
                process.gate.let(NoAnswer("timed out"))
        elif what in RECORDED or what in ("look", "look at the lease", "call", "hear"):
            self._at_gate(step, rest)

    def _at_gate(self, step: Step, rest: Sequence[Step]) -> None:
        who, what, how = step
        process = self._processes[who]
        if what == "record the intent" and self._is_paused:
            self._brake("resume")
        wants = {"hear": "call"}.get(
            what, f"{what}: {how}" if what == "record the end" and how != "overtaken" else what
        )
        if how == "overtaken":
            wait_until(lambda: process.gate.wants.startswith(what), DEADLINE, 0.001)
        else:
            self._wait_for(process, wants)
        own = [later.what for later in rest if later.who == who and later.what not in UNSEEN | {"the lease runs out"}]
        if own[:1] == ["the time is up"]:
            process.late += timedelta(days=1)
        if what == "call":
            return
        if what == "hear":
            answers: dict[str, Answer] = {"accepted": Accepted(), "refused": CallRefused("not now")}
            process.gate.let(answers.get(how, NoAnswer(how)))
        elif what == "look":
            shown = {"fresh": self._layout, "stale": self._before, "no answer": NoAnswer("no answer")}
            process.gate.let(shown[how])
        elif what == "look at the lease":
            process.gate.let(how == "it holds")
        else:
            made = process.ledger.made
            process.gate.let(True)
            if how == "overtaken":
                process.thread.join(DEADLINE)
                assert isinstance(process.failed[0], LeaseLost) or "Concurrent" in str(process.failed[0])
                del self._processes[who]
            else:
                wait_until(lambda: process.failed or process.ledger.made > made, DEADLINE, 0.001)

    def _wait_for(self, process: Process, wants: str) -> None:
        def is_there() -> bool:
            if process.failed:
                raise process.failed[0]
            return bool(process.gate.wants)

        wait_until(is_there, DEADLINE, 0.001)
        assert process.gate.wants == wants, f"the executor wants to {process.gate.wants}, not to {wants}"

    def _fence(self, who: str, how: str) -> None:
        token = self._tokens[who]
        try:
            ledger = GatedLedger(self._lake, "act", Shard(0, token, lambda subject: subject == TOPIC))
        except LeaseLost:
            assert how == "overtaken"
            return
        assert how != "overtaken"
        self._ledgers[who] = ledger

    def _start(self, who: str) -> None:
        gate, ledger = Gate(), self._ledgers.pop(who)
        ledger.gate = gate
        chosen = settings(workers=1, poll_ms=10, retry_delay_seconds=0.001, retry_max_delay_seconds=0.002)
        tail = follow_decisions(self._lake)
        tail.__class__ = MortalTail
        tail.gate = gate  # type: ignore[attr-defined]
        actor = GatedActor(gate)
        ready, failed = threading.Event(), list[BaseException]()

        def clock() -> datetime:
            return AT + process.late

        executor = Executor(
            chosen, tail, ledger, {"autoscale": actor}, Announcer(self.published, follow_outcomes(self._lake)),
            self._brakes_of(chosen, ledger, clock), clock, actor.holds_lease,
        )  # fmt: skip

        def run() -> None:
            try:
                executor.run(ready.set)
            except Killed:
                pass
            except BaseException as error:
                failed.append(error)
            finally:
                ready.set()

        process = Process(gate, ledger, threading.Thread(target=run, daemon=True), failed)
        self._processes[who] = process
        self._all.append(process)
        process.thread.start()
        assert ready.wait(DEADLINE)

    def _brakes_of(
        self, chosen: ExecutorSettings, ledger: OutcomeLedger, clock: Callable[[], datetime]
    ) -> Brakes[Work]:  # fmt: skip
        record, waits = BrakeLog(self._lake), WaitTable(self._lake, ledger.executor)
        return Brakes(chosen, record, waits, ledger.executor, clock, time.monotonic)

    def _kill(self, process: Process) -> None:
        process.gate.kill()
        process.thread.join(DEADLINE)
        assert not process.thread.is_alive()

    def _brake(self, kind: Any) -> None:
        name = self._decided[-1].decision_id if kind == "reject" else None
        act = Act(kind, TOPIC, "the model", "model", AT, decision_id=name)
        BrakeLog(self._lake).write(lambda _: [act])
        self._is_paused = kind == "pause"

    def _active(self) -> list[int]:
        return [segment.segment_id for segment in self._layout.active]

    def _changed(self, layout: SegmentLayout) -> None:
        self._before, self._layout = self._layout, layout
