"""The policy that ran, backtested, against the record: what agrees, and why the rest does not."""

from __future__ import annotations

from anabranch.simulation.backtest.comparison import Agreement, agreement
from anabranch.simulation.backtest.incarnations import RecordedAction

MINUTE = 60_000


def split(at, start=0, end=0xFFFF, decision="d"):
    return RecordedAction(at, "split", start, end, decision)


def compare(on_record, backtested, decided=(), held=None, guess=None):
    found = agreement(on_record, backtested, decided, lambda _: held, lambda _: guess, MINUTE)
    return found.matched, dict(found.missed), dict(found.extra)


def test_the_same_hashes_within_a_tick_agree_once():
    both = [split(0), split(MINUTE, 0, 0x7FFF)]
    assert compare(both, [split(MINUTE), split(2 * MINUTE, 0, 0x7FFF)]) == (2, {}, {})
    assert compare([split(0)], [split(MINUTE + 1)])[:2] == (0, {"came more than a tick later": 1})
    assert compare([split(0)], [split(0), split(1)], held="in-flight")[::2] == (1, {"the job held by in-flight": 1})


def test_each_difference_has_its_reason():
    assert compare([split(0, decision=None)], [])[1] == {"not decided by the job": 1}
    decided = [(0, "split", 0, 0xFFFF, None)]
    assert compare([split(1, decision=None)], [], decided)[1] == {"unexplained": 1}
    assert compare([split(0)], [], guess="gap")[1] == {"demand was guessed: gap": 1}
    assert compare([], [split(5)], [(0, "split", 0, 0xFFFF, "rejected")])[2] == {"was decided, and then rejected": 1}
    assert compare([], [split(5)], held="load-stale")[2] == {"the job held by load-stale": 1}
    assert compare([], [split(5), split(9, 0, 5)])[2] == {"unexplained": 1, "after another difference": 1}


def test_reason_of_a_late_action_is_that_of_its_decision():
    later = 5 * MINUTE
    rejected = [(0, "split", 0, 0xFFFF, "rejected")]

    def reasons(decided, held_at, assumption_at):
        return dict(agreement([], [split(later)], decided, held_at, assumption_at, MINUTE, later).extra)

    assert reasons(rejected, lambda _: "in-flight", lambda _: None) == {"was decided, and then rejected": 1}
    assert reasons([], lambda at: "paused" if at == 0 else "in-flight", lambda _: None) == {"the job held by paused": 1}
    assert reasons([], lambda _: "in-flight", lambda at: "gap" if at == 0 else None) == {"demand was guessed: gap": 1}


def test_an_action_agrees_within_a_tick_of_the_job():
    found = [agreement([split(0)], [split(10_001)], [], str, lambda _: None, tick) for tick in (10_000, 10_001)]
    assert [one.matched for one in found] == [0, 1]


def test_shares_of_topics_add_up():
    whole = Agreement()
    assert whole.share is None
    for one in (
        agreement([split(0)], [split(1)], [], str, lambda _: None, MINUTE),
        agreement([split(0)], [], [], str, lambda _: None, MINUTE),
    ):
        whole.add(one)
    assert (whole.share, whole.to_json()["missed"]) == (0.5, {"unexplained": 1})
