"""A family that the executor has never heard of: it needs only an actor, from its row to its outcome."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from anabranch.executor.kernel.family import (
    Answer,
    Applied,
    CallAccepted,
    CallRefused,
    Decision,
    MalformedDecision,
    NoAnswer,
    Observation,
    StillNeeded,
    Superseded,
    Verdict,
)
from anabranch.executor.kernel.outcomes import INTENT, OutcomeLedger
from schemas.kafka.messages import OutcomeEvent, key_of, parse_message
from schemas.tables.rows import DecisionRow
from tests.executor import orders
from tests.executor.conftest import House
from tests.waiting import wait_until

BUNDLE = "acme/shop/0x00000000_0x40000000"


@dataclass(frozen=True)
class Move(Decision):
    """One bundle goes from one broker to another."""

    origin: str
    target: str


@dataclass
class Brokers:
    """Who owns which bundle; the toy's actor and its cluster in one."""

    owners: dict[str, str]
    calls: list[str] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    def read(self, row: Mapping[str, Any]) -> Move:
        arguments = json.loads(row["arguments"])
        if set(arguments) != {"from", "to"}:
            raise MalformedDecision("a move has from and to")
        return Move(row["decision_id"], row["family"], row["subject"], arguments["from"], arguments["to"])

    def namespace(self, subject: str) -> str | None:
        return subject.rpartition("/")[0]

    def look(self, decision: Move) -> str | NoAnswer:
        return self.owners.get(decision.subject) or NoAnswer("no broker has it")

    def judge(self, decision: Move, live: str, may_have_called: bool) -> Verdict:
        if live == decision.origin:
            return StillNeeded()
        if live == decision.target and may_have_called:
            return Applied()
        return Superseded(f"{live} has it")

    def describe(self, decision: Move, live: str) -> Observation:
        return Observation({"owner": live})

    def call(self, decision: Move, live: str, may_send: Callable[[], bool]) -> Answer:
        self.calls.append(decision.decision_id)
        answer = self.answers.pop(0) if self.answers else CallAccepted()
        if isinstance(answer, CallAccepted):
            self.owners[decision.subject] = decision.target
        return answer


@dataclass
class Stumbling(Brokers):
    """An actor with a fault of its own: its first look after a call fails."""

    has_failed: bool = False

    def look(self, decision: Move) -> str | NoAnswer:
        if self.calls and not self.has_failed:
            self.has_failed = True
            raise RuntimeError("a fault of the actor")
        return super().look(decision)


def move(house: House, identity: str = "move-1", **changed: Any) -> DecisionRow:
    """A row of `decisions` that moves the bundle from broker a to broker b."""
    columns = {
        "decision_id": identity,
        "family": "bundles",
        "subject": BUNDLE,
        "action": "move",
        "arguments": '{"from":"a","to":"b"}',
        "inputs": '{"brokers":["a","b"]}',
        "layout_epoch": None,
    }
    return orders.row(house.decide(house.create(f"unused-{identity}"), 0), **columns | changed)


def steps(house: House) -> list[tuple[str, str, int, str]]:
    return [(row["family"], row["status"], row["attempt"], row["seen"]) for row in house.outcomes()]


def test_family_row_runs_intent_to_event(house: House):
    brokers = Brokers({BUNDLE: "a"})
    with house.running(actors={"bundles": brokers}):
        orders.commit(house.lake, [move(house)])
        [event] = wait_until(lambda: house.published.events)
    assert steps(house) == [("bundles", "intent", 0, "{}"), ("bundles", "applied", 1, '{"owner":"b"}')]
    assert {(row["subject"], row["layout_epoch"]) for row in house.outcomes()} == {(BUNDLE, None)}
    assert (event.family, event.topic, event.decision_id, event.status) == ("bundles", BUNDLE, "move-1", "applied")
    assert (brokers.calls, house.gate.requests) == (["move-1"], [])


@pytest.mark.parametrize(("point", "calls"), [("after-intent", ["move-1"]), ("before-end", ["move-1"])])
def test_crashed_action_judged_by_family_after_restart(house: House, monkeypatch, point: str, calls: list[str]):
    brokers, real = Brokers({BUNDLE: "a"}), OutcomeLedger.append

    class Crash(BaseException):
        pass

    def crashing(ledger, rows):
        if point == "before-end" and rows[0].status != INTENT:
            raise Crash
        real(ledger, rows)
        if point == "after-intent":
            raise Crash

    orders.commit(house.lake, [move(house)])
    with monkeypatch.context() as patched:
        patched.setattr(OutcomeLedger, "append", crashing)
        with pytest.raises(Crash), house.running(actors={"bundles": brokers}) as executor:
            wait_until(executor._stopping.is_set)
    assert [status for _, status, _, _ in steps(house)] == ["intent"]
    assert brokers.calls == ([] if point == "after-intent" else calls)

    with house.running(actors={"bundles": brokers}):
        wait_until(lambda: house.published.events)
    assert [status for _, status, _, _ in steps(house)] == ["intent", "applied"]
    assert brokers.calls == calls


def test_move_during_downtime_superseded_uncalled(house: House):
    brokers = Brokers({BUNDLE: "c"})
    orders.commit(house.lake, [move(house)])
    ledger, at = house.open_ledger(), orders.DECIDED_AT
    ledger.append([ledger.row(decision_id="move-1", family="bundles", subject=BUNDLE, status=INTENT, attempt=0, at=at)])
    with house.running(actors={"bundles": brokers}):
        [event] = wait_until(lambda: house.published.events)
    assert (event.status, event.error, brokers.calls) == ("superseded", "c has it", [])


def test_fault_of_an_actor_hides_no_call(house: House):
    brokers = Stumbling({BUNDLE: "a"})
    with house.running(actors={"bundles": brokers}):
        orders.commit(house.lake, [move(house)])
        [event] = wait_until(lambda: house.published.events)
    assert (event.status, brokers.calls) == ("applied", ["move-1"])
    assert [row["error"] for row in house.outcomes()] == [
        None,
        "an error in the executor itself: RuntimeError('a fault of the actor')",
        None,
    ]


def test_answers_mean_the_same_for_families(house: House):
    brokers = Brokers({BUNDLE: "a"}, answers=[NoAnswer("no leader"), CallRefused("broker b is full")])
    with house.running(actors={"bundles": brokers}):
        orders.commit(house.lake, [move(house)])
        wait_until(lambda: house.published.events)
    # A refusal after a call of which nothing is known is believed only when it is repeated; the third call is accepted.
    assert [(row["status"], row["attempt"], row["error"]) for row in house.outcomes()] == [
        ("intent", 0, None),
        ("intent", 1, "no leader"),
        ("intent", 2, "refused: broker b is full"),
        ("applied", 3, None),
    ]


def test_two_families_share_a_subject(house: House):
    brokers = Brokers({})
    split = house.decide(house.create("orders"), 0)
    brokers.owners[split.subject] = "a"
    with house.running(actors={"bundles": brokers}):
        orders.commit(house.lake, [move(house, subject=split.subject), orders.row(split)])
        assert house.end(split)["status"] == "applied"
        wait_until(lambda: len(house.published.events) == 2)
    assert {(event.family, event.status) for event in house.published.events} == {
        ("bundles", "applied"),
        ("autoscale", "applied"),
    }


def test_malformed_family_row_rejected(house: House):
    with house.running(actors={"bundles": Brokers({})}):
        orders.commit(house.lake, [move(house, arguments='{"to":"b"}')])
        [event] = wait_until(lambda: house.published.events)
    assert (event.status, event.error) == ("rejected", "the decisions row is malformed: a move has from and to")


def test_without_its_actor_the_row_is_rejected(house: House):
    with house.running():
        orders.commit(house.lake, [move(house, family="brooks")])
        [event] = wait_until(lambda: house.published.events)
    assert event.status == "rejected"
    assert event.error.endswith("this executor does not know the family 'brooks'; it knows ('autoscale', 'bundles')")


def test_newest_outcome_announced_after_restart(house: House):
    brokers = Brokers({BUNDLE: "a"})
    with house.running(actors={"bundles": brokers}):
        orders.commit(house.lake, [move(house)])
        wait_until(lambda: house.published.events)
    with house.running():
        first, again = house.published.events
    assert first == again


def test_event_travels_under_subject_and_family():
    event = OutcomeEvent(v=1, type="outcome", decision_id="d", family="bundles", topic=BUNDLE, status="applied", at=1)
    assert key_of(event) == BUNDLE
    assert parse_message("control-events", BUNDLE.encode(), event.to_json().encode()) == event
    assert json.loads(event.to_json())["family"] == "bundles"
