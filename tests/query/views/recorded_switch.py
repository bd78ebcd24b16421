"""A small lake that a switch between BookKeeper clusters has left, as its orchestrator records it.

Six ledgers of schemas and four of subscriptions. One is taken on the target; it goes through at the second attempt. One
compare-and-set is lost to others once, one subscription rolls over. After sixteen days the old copies are deleted.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from anabranch.bookkeeper.record import StepOutcome, SwitchRecord
from decisions.bookkeeper.decide import decide, plan_steps
from decisions.bookkeeper.reduced import Reducer
from lake.tables import create_lake
from schemas.bookie_answers import Step
from schemas.bookies import Request
from tests.decisions.bookkeeper.world import (
    BEYOND,
    asked,
    before_switch,
    carried_out,
    changed,
    cursor,
    in_switch,
    ledger,
    schema,
    written,
)

START = datetime(2026, 11, 22, 12, 0, tzinfo=timezone.utc)
TAKEN, ROLLS = 4, 10
SCHEMAS, CURSORS = "/schemas/acme/shop", "/managed-ledgers/acme/shop/persistent/orders"


class SwitchStory:
    """What happens, pass after pass."""

    def __init__(self, lake: str) -> None:
        self.lake, self.now = lake, START
        ids = range(1, 11)
        world = before_switch(
            schemas=[schema(1, 2, 3, path=f"{SCHEMAS}/orders"), schema(4, 5, 6, path=f"{SCHEMAS}/carts")],
            cursors=[cursor(number, path=f"{CURSORS}/s{number}") for number in (7, 8, 9, 10)],
            ledgers={"old": [ledger(one) for one in ids], "new": []},
        )
        self.world = in_switch(world)
        self.world = changed(self.world, ledgers={**self.world.ledgers, "new": [ledger(TAKEN, length=1)]})
        self.lost = {f"{SCHEMAS}/orders"}

    def run(self, first_attempt_only: bool = False) -> SwitchStory:
        """All of it, or up to the ledger that failed."""
        create_lake(self.lake)
        self._to_rest()
        if first_attempt_only:
            return self
        # Nobody needs what is there under the id: an operator deletes it, and asks again.
        kept = [one for one in self.world.ledgers["new"] if one.id != TAKEN]
        self.world = changed(self.world, ledgers={**self.world.ledgers, "new": kept})
        self.world = changed(written(self.world, asked(self.world, "switch", target="new")), operation="next")
        self.now += timedelta(minutes=20)
        self._to_rest()
        self.now += timedelta(days=16)
        self.world = changed(
            self.world,
            now=round(self.now.timestamp() * 1000),
            operation="cleanup",
            request=Request(dry_run=False, force=True),
        )
        self._carry_out([one for one in decide(self.world).steps if one.action == "delete"])
        return self

    def _to_rest(self) -> None:
        while steps := plan_steps(self.world).steps:
            if any(one.action == "cas_attribution" for one in steps):
                self._roll_over()
                steps = plan_steps(self.world).steps
            self._carry_out(steps)

    def _roll_over(self) -> None:
        there = [one.id for one in self.world.ledgers["new"]]
        if BEYOND in there:
            return
        rolled = cursor(BEYOND, path=f"{CURSORS}/s{ROLLS}", stamp=f"new:{BEYOND}", version=1)
        cursors = [rolled if one.ledger == ROLLS else one for one in self.world.cursors]
        ledgers = {**self.world.ledgers, "new": [*self.world.ledgers["new"], ledger(BEYOND)]}
        self.world = changed(self.world, cursors=cursors, ledgers=ledgers)

    def _carry_out(self, steps: list[Step]) -> None:
        directive = self.world.directive
        assert directive is not None
        record = SwitchRecord(self.lake, "standalone", directive, "host:1")
        reducer = Reducer(self.world)
        self.now += timedelta(seconds=1)
        taken = record.begin([(one, reducer.reduced(one)) for one in steps], self.now)
        ends = []
        for one in taken:
            if one.step.object in self.lost and one.step.action == "cas_attribution":
                self.lost.discard(one.step.object)
                ends.append((one, StepOutcome("superseded", error="the record is of version 1 now")))
                continue
            self.world = carried_out(self.world, one.step)
            ends.append((one, _ended(one.step)))
        self.now += timedelta(seconds=1)
        record.end(ends, self.now)


def _ended(step: Step) -> StepOutcome:
    if step.action == "fail":
        return StepOutcome("failed", error=step.reason)
    seen: dict[str, Any] = {}
    if step.action == "copy":
        seen = {"how": "copied", **{name: step.expectation[name] for name in ("last", "length")}}
    return StepOutcome("applied", seen)


def switched(folder: Path) -> str:
    """The lake of it."""
    lake = str(folder / "switch")
    SwitchStory(lake).run()
    return lake
