"""A real controller behind a gate, a real lake, and an executor in a thread whose events are collected."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, time, timezone
from functools import cache
from pathlib import Path
from time import monotonic
from typing import Any
from unittest.mock import patch

import pytest
from deltalake import DeltaTable

from anabranch.admin.answers import Answered
from anabranch.admin.topics import ScalableTopics
from anabranch.admin.transport import Transport
from anabranch.executor.autoscale.decision import SegmentDecision
from anabranch.executor.kernel import loop
from anabranch.executor.kernel.announcer import Announcer, follow_outcomes
from anabranch.executor.kernel.decision import follow_decisions
from anabranch.executor.kernel.family import Actors
from anabranch.executor.kernel.loop import Executor, utc_now
from anabranch.executor.kernel.outcomes import OutcomeLedger, Shard
from anabranch.executor.process import ELSEWHERE, actors_of
from anabranch.safeguards.record import WaitTable
from anabranch.safeguards.waiting import Brakes
from decisions.topic.layout import SegmentLayout
from lake.brakes import BrakeLog
from lake.tables import create_lake, open_table
from schemas.kafka.messages import OutcomeEvent
from schemas.settings.processes import ExecutorSettings
from schemas.settings.root import load_settings
from schemas.tables.rows import OUTCOMES
from tests.controller.conftest import RunningController, run_controller
from tests.executor import orders
from tests.executor.gate import Gate, open_gate
from tests.waiting import wait_until

TERMINAL = ("applied", "superseded", "rejected", "failed", "observed")


def settings(**changed: Any) -> ExecutorSettings:
    """The shipped settings with short times, in which no decision expires: they are of a fixed instant."""
    quick: dict[str, Any] = {"decision_max_age_seconds": 1e9, "waiting_max_age_seconds": 1e9}
    quick |= {"mode": "act", "poll_ms": 20, "request_timeout_seconds": 5}
    return shipped_settings().model_copy(update=quick | changed)


@cache
def shipped_settings() -> ExecutorSettings:
    """The shipped settings, read once."""
    return load_settings(environment={}).executor


@contextmanager
def retrying(delay_seconds: float, max_delay_seconds: float) -> Iterator[None]:
    """Executors made in this block retry after these delays."""
    delays = {"RETRY_DELAY_SECONDS": delay_seconds, "RETRY_MAX_DELAY_SECONDS": max_delay_seconds}
    with patch.multiple(loop, **delays):
        yield


def transport_at(url: str, timeout_seconds: float) -> Transport:
    """The way to an admin interface as the executor has it."""
    return Transport(url, None, user_agent="test", timeout_seconds=timeout_seconds)


def topics_at(url: str, timeout_seconds: float) -> ScalableTopics:
    """The admin client over it."""
    return ScalableTopics(transport_at(url, timeout_seconds))


@dataclass
class Collected:
    """A publisher that keeps what it is given."""

    events: list[OutcomeEvent] = field(default_factory=list)

    def publish(self, event: OutcomeEvent) -> None:
        self.events.append(event)

    def poll(self) -> None:
        return

    def close(self) -> None:
        return


@dataclass
class House:
    """A lake, a controller behind a gate, and a way to give orders and to see how they end."""

    lake: str
    controller: RunningController
    gate: Gate
    namespace: str
    published: Collected = field(default_factory=Collected)
    _table: DeltaTable | None = None
    """The outcomes, which are read anew only once their version has changed."""
    _read_version: int | None = None
    _rows: list[dict[str, Any]] = field(default_factory=list)

    def create(self, name: str, segments: int = 1) -> str:
        """A new topic; its full name."""
        answer = self.controller.client.put(f"{self._path(name)}?numInitialSegments={segments}")
        assert answer.status_code == 204
        return f"topic://{self.namespace}/{name}"

    def post(self, topic: str, call: str) -> None:
        """A call by another client: `split/0`, `merge/0/1`."""
        assert self.controller.client.post(f"{self._path(topic.rpartition('/')[2])}/{call}").status_code == 204

    def delete(self, topic: str) -> None:
        """Another client deletes a topic."""
        assert self.controller.client.delete(self._path(topic.rpartition("/")[2])).status_code == 204

    def layout(self, topic: str) -> SegmentLayout:
        """The layout as it is now."""
        found = topics_at(self.controller.url, 10).layout(topic)
        assert isinstance(found, Answered)
        return found.value

    def decide(self, topic: str, *segments: int) -> SegmentDecision:
        """A decision on the layout as it is now; not committed."""
        return orders.decision(self.layout(topic), *segments, topic=topic)

    def commit(self, *decided: SegmentDecision, **changed: Any) -> None:
        """One commit of the job with these decisions."""
        orders.commit(self.lake, [orders.row(one, **changed) for one in decided])

    def outcomes(self, decided: SegmentDecision | None = None) -> list[dict[str, Any]]:
        """All rows of `outcomes` in order, of one decision or all."""
        table = self._table = self._table or open_table(self.lake, OUTCOMES)
        assert table is not None
        table.update_incremental()
        if self._read_version != table.version():
            self._rows = sorted(table.to_pyarrow_table().to_pylist(), key=lambda row: row["at"])
            self._read_version = table.version()
        return [row for row in self._rows if decided is None or row["decision_id"] == decided.decision_id]

    def ends(self, decided: SegmentDecision | None = None) -> list[dict[str, Any]]:
        """The terminal rows."""
        return [row for row in self.outcomes(decided) if row["status"] in TERMINAL]

    def end(self, decided: SegmentDecision, deadline_s: float = 30) -> dict[str, Any]:
        """The one terminal row of a decision, when it is there."""
        found = wait_until(lambda: self.ends(decided), deadline_s)
        assert len(found) == 1
        return found[0]

    def open_ledger(self, mode: str = "act", shard: Shard | None = None) -> OutcomeLedger:
        """The ledger of another executor: takes the lease."""
        return OutcomeLedger(self.lake, mode, shard, elsewhere=ELSEWHERE)

    @contextmanager
    def running(
        self,
        clock: Any = None,
        url: str | None = None,
        actors: Actors | None = None,
        steady: Any = None,
        shard: Shard | None = None,
        retry_seconds: tuple[float, float] = (0.02, 0.1),
        **changed: Any,
    ) -> Iterator[Executor]:
        """An executor at work until the end of the block, then stopped cleanly; `actors` of families beside ours."""
        chosen = settings(**changed)
        transport = transport_at(url or self.gate.url, chosen.request_timeout_seconds)
        ledger, wall = self.open_ledger(chosen.mode, shard), clock or utc_now
        record, waits = BrakeLog(self.lake), WaitTable(self.lake, ledger.executor)
        with retrying(*retry_seconds):
            executor = Executor(
                chosen,
                follow_decisions(self.lake),
                ledger,
                {**actors_of(transport, observes=chosen.mode == "observe"), **(actors or {})},
                Announcer(self.published, follow_outcomes(self.lake)),
                Brakes(chosen, record, waits, ledger.executor, wall, steady or monotonic),
                wall,
                elsewhere=ELSEWHERE,
            )
        failed: list[BaseException] = []

        def work() -> None:
            try:
                executor.run(ready.set)
            except BaseException as error:
                failed.append(error)
            finally:
                ready.set()

        ready = threading.Event()
        thread = threading.Thread(target=work)
        thread.start()
        assert ready.wait(60)
        try:
            yield executor
        finally:
            executor.stop()
            self.gate.released.set()
            thread.join(60)
            transport.close()
            assert not thread.is_alive()
            if failed:
                raise failed[0]

    def _path(self, name: str) -> str:
        return f"/admin/v2/scalable/{self.namespace}/{name}"


class Clock:
    """A wall clock that the test moves; it begins at noon of today, for decisions are taken now."""

    def __init__(self) -> None:
        self.now = datetime.combine(datetime.now(timezone.utc), time(12), timezone.utc)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture(scope="session")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningController]:
    """One controller for all tests of the executor; each test takes a namespace of its own."""
    with run_controller(tmp_path_factory.mktemp("controller") / "layouts.db") as running:
        yield running


@pytest.fixture(scope="session")
def empty_lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with all tables and no rows, to be copied: that takes 3 ms, and to create it 50."""
    lake = tmp_path_factory.mktemp("empty") / "lake"
    create_lake(lake)
    return lake


@pytest.fixture
def house(controller: RunningController, empty_lake: Path, tmp_path: Path) -> Iterator[House]:
    """A fresh lake, namespace and gate."""
    lake = str(shutil.copytree(empty_lake, tmp_path / "lake"))
    with open_gate(controller.url) as gate:
        yield House(lake, controller, gate, controller.new_namespace())
