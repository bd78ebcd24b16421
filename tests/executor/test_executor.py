"""The executor at work on a real lake and a real controller.

Longer than other files: each test is one way in which applying a decision can go, on the same fixtures.
"""

from __future__ import annotations

import json
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from anabranch.executor.kernel.decision import follow_decisions
from anabranch.executor.kernel.outcomes import OutcomeLedger
from lake import tables
from lake.lease import LeasedTable, LeaseLost
from lake.tables import table_path
from schemas.tables.rows import DECISIONS
from tests.examples import only_first
from tests.executor import orders
from tests.executor.conftest import Clock, House
from tests.executor.gate import HANGS, HANGS_AFTER, ILLEGAL_ARGUMENT, LOST_AFTER, LOST_BEFORE, Fault, answers
from tests.waiting import wait_until


def test_a_split_is_applied_recorded_and_announced(house: House):
    topic = house.create("orders")
    split = house.decide(topic, 0)
    with house.running():
        house.commit(split)
        end = house.end(split)
        wait_until(lambda: house.published.events)

    assert [row["status"] for row in house.outcomes()] == ["intent", "applied"]
    assert (end["attempt"], end["layout_epoch"], end["error"], end["mode"]) == (1, 1, None, "act")
    assert json.loads(end["seen"])["segments"]["0"]["children"] == [1, 2]
    assert [segment.segment_id for segment in house.layout(topic).active] == [1, 2]
    [event] = house.published.events
    assert (event.decision_id, event.topic, event.status) == (split.decision_id, topic, "applied")
    [call] = [request for request in house.gate.requests if request.method == "POST"]
    assert call.headers["x-anabranch-decision"] == split.decision_id


def test_merge_and_other_topics_decision_applied(house: House):
    one, two = house.create("one", 2), house.create("two", 2)
    merge, split = house.decide(one, 0, 1), house.decide(two, 1)
    with house.running():
        house.commit(merge, split)
        assert {house.end(merge)["status"], house.end(split)["status"]} == {"applied"}
    assert len(house.layout(one).active) == 1
    assert len(house.layout(two).active) == 3


def test_the_controller_tells_the_cause_of_the_change(house: House):
    topic = house.create("orders")
    split = house.decide(topic, 0)
    with house.running():
        house.commit(split)
        house.end(split)
    [event] = [message for message in house.controller.announced(topic) if getattr(message, "cause", None) == "split"]
    assert event.decision_id == split.decision_id


def test_earlier_decisions_applied_after_start(house: House):
    split = house.decide(house.create("orders"), 0)
    house.commit(split)
    with house.running():
        assert house.end(split)["status"] == "applied"


def test_duplicate_row_applied_once_across_restart(house: House):
    topic = house.create("orders")
    split, later = house.decide(topic, 0), house.decide(house.create("later"), 0)
    with house.running():
        house.commit(split, split)
        house.end(split)
        house.commit(split)
        house.commit(later)
        house.end(later)
    after = house.decide(house.create("after"), 0)
    with house.running():
        house.commit(split, after)
        house.end(after)
    assert len(house.ends(split)) == 1
    assert house.layout(topic).epoch == 1


def test_second_decision_on_segment_superseded(house: House):
    topic = house.create("orders", 2)
    first, second = house.decide(topic, 0), house.decide(topic, 0, 1)
    with house.running():
        house.commit(first, second)
        assert house.end(first)["status"] == "applied"
        assert house.end(second)["status"] == "superseded"
    assert house.layout(topic).epoch == 1


def test_eight_splits_applied_in_turn_with_one_call_each(house: House):
    topic = house.create("orders", 8)
    splits = [house.decide(topic, segment) for segment in range(8)]
    calls, out = [], threading.Lock()

    def alone(call):
        def called(*given):
            assert out.acquire(blocking=False), "two calls of one topic at once"
            try:
                calls.append(given[0].decision_id)
                return call(*given)
            finally:
                out.release()

        return called

    with house.running(workers=8) as executor:
        actor = executor._actors["autoscale"]
        actor.call = alone(actor.call)
        house.commit(*splits)
        ends = [house.end(split) for split in splits]
        wait_until(lambda: len(house.published.events) == 8)
    assert [(end["status"], end["attempt"], end["error"]) for end in ends] == [("applied", 1, None)] * 8
    assert sorted(calls) == sorted(split.decision_id for split in splits)
    assert house.gate.count("POST") == 8
    layout = house.layout(topic)
    assert (layout.epoch, len(layout.active)) == (8, 16)
    assert {event.decision_id for event in house.published.events} == {split.decision_id for split in splits}


def test_backing_off_decision_blocks_no_other(house: House):
    topic = house.create("orders", 4)
    slow, *others = [house.decide(topic, segment) for segment in range(4)]
    house.gate.always("POST", answers(503, "busy"), lambda path: path.endswith("split/0"))
    with house.running(retry_seconds=(600, 600)):
        house.commit(slow, *others)
        assert {house.end(one)["status"] for one in others} == {"applied"}
        assert not house.ends(slow)


def test_call_after_manual_change_repeated_at_once(house: House):
    topic = house.create("orders", 2)
    split = house.decide(topic, 0)
    house.gate.before_next("POST", lambda: house.post(topic, "split/1"))
    with house.running(retry_seconds=(600, 600)):
        house.commit(split)
        end = house.end(split)
    assert (end["status"], end["attempt"]) == ("applied", 2)
    assert house.layout(topic).epoch == 2


def test_foreign_change_supersedes_without_call(house: House):
    same, other, gone = (house.create(name, 2) for name in ("same", "other", "gone"))
    decided = [house.decide(topic, 0) for topic in (same, other, gone)]
    house.post(same, "split/0")
    house.post(other, "merge/0/1")
    house.delete(gone)
    with house.running():
        house.commit(*decided)
        ends = [house.end(one) for one in decided]
    assert [end["status"] for end in ends] == ["superseded"] * 3
    assert "somebody else has done the same" in ends[0]["error"]
    assert "the layout has changed since epoch 0" in ends[1]["error"]
    assert ends[2]["error"] == "the topic is gone"
    assert house.gate.count("POST") == 0


NOT_FOUND = answers(404, '{"reason":"Scalable topic not found"}')


@pytest.mark.parametrize("lags", only_first(2, [["POST", "GET"], ["GET"], ["POST"]]))
def test_one_404_of_lagging_server_ends_nothing(house: House, lags: list[str]):
    topic = house.create("orders")
    split = house.decide(topic, 0)
    for method in lags:
        house.gate.on(method, NOT_FOUND)
    with house.running():
        house.commit(split)
        assert house.end(split)["status"] == "applied"
    assert house.layout(topic).epoch == 1


def test_404s_with_a_look_between_them_end_nothing(house: House):
    topic = house.create("orders")
    split = house.decide(topic, 0)
    house.gate.on("GET", NOT_FOUND, Fault(), NOT_FOUND)
    house.gate.on("POST", LOST_BEFORE)
    with house.running():
        house.commit(split)
        assert house.end(split)["status"] == "applied"
    assert house.gate.count("POST") == 2


def test_a_topic_that_is_not_there_twice_is_gone(house: House):
    split = house.decide(house.create("orders"), 0)
    house.gate.on("GET", NOT_FOUND, NOT_FOUND)
    with house.running():
        house.commit(split)
        end = house.end(split)
    assert (end["status"], end["error"]) == ("superseded", "the topic is gone")
    assert (house.gate.count("GET"), house.gate.count("POST")) == (2, 0)


@pytest.mark.parametrize("fault", only_first(2, [LOST_AFTER, answers(503, "busy", reaches=True), HANGS_AFTER]))
def test_lost_answer_recognized_in_layout(house: House, fault):
    topic = house.create("orders")
    split = house.decide(topic, 0)
    house.gate.on("POST", fault)
    with house.running(request_timeout_seconds=2):
        house.commit(split)
        assert house.end(split)["status"] == "applied"
    assert (house.gate.count("POST"), house.layout(topic).epoch) == (1, 1)


@pytest.mark.parametrize("fault", only_first(2, [LOST_BEFORE, answers(503, "starting"), answers(500, "<html>"), HANGS]))
def test_lost_call_repeated_and_counted(house: House, fault):
    topic = house.create("orders")
    split = house.decide(topic, 0)
    house.gate.on("POST", fault, fault)
    with house.running(request_timeout_seconds=2):
        house.commit(split)
        end = house.end(split)
    assert (end["status"], end["attempt"]) == ("applied", 3)
    steps = [(row["status"], row["attempt"]) for row in house.outcomes(split)]
    assert steps == [("intent", 0), ("intent", 1), ("intent", 2), ("applied", 3)]
    assert all(row["error"] for row in house.outcomes(split)[1:3])
    assert house.layout(topic).epoch == 1


def test_refused_call_without_effect_rejected(house: House):
    """The rejection carries the server's reason."""
    topic = house.create("narrow")
    for refusal in (answers(500, ILLEGAL_ARGUMENT), answers(412, '{"reason":"not now"}')):
        house.gate.on("POST", refusal)
    with house.running():
        ends = []
        for attempt in range(2):
            split = house.decide(topic, 0)
            house.commit(split, decision_id=f"attempt-{attempt}")
            ends.append(wait_until(lambda number=attempt: house.ends()[number:])[0])
    assert [end["status"] for end in ends] == ["rejected"] * 2
    assert [end["error"] for end in ends] == ["500 Cannot split range of size 1", "412 not now"]


def test_conflicting_call_repeated_later(house: House):
    split = house.decide(house.create("orders"), 0)
    house.gate.on("POST", *[answers(409, '{"reason":"another operation is open"}')] * 3)
    with house.running():
        house.commit(split)
        assert house.end(split)["status"] == "applied"
    assert house.gate.count("POST") == 4


def test_a_refused_call_whose_effect_shows_is_applied(house: House):
    split = house.decide(house.create("orders"), 0)
    house.gate.on("POST", answers(409, '{"reason":"Cannot split non-active segment: 0"}', reaches=True))
    with house.running():
        house.commit(split)
        assert house.end(split)["status"] == "applied"


@pytest.mark.parametrize("refusal", [Fault(), answers(500, ILLEGAL_ARGUMENT)], ids=["conflict", "of Pulsar"])
def test_refusal_after_lost_answer_needs_repetition(house: House, refusal: Fault):
    topic = house.create("orders")
    stale = house.controller.client.get(f"/admin/v2/scalable/{house.namespace}/orders").text
    split = house.decide(topic, 0)
    house.gate.on("POST", LOST_AFTER, refusal)
    house.gate.on("GET", *[answers(200, stale)] * 4)
    with house.running():
        house.commit(split)
        assert house.end(split)["status"] == "applied"
    assert house.layout(topic).epoch == 1


@pytest.mark.parametrize("call", [Fault(), LOST_AFTER])
def test_stale_poll_does_not_hide_applied_call(house: House, call: Fault):
    """The layout was changed beside it."""
    house.gate.drops_layout = True
    topic = house.create("orders", 2)
    split = house.decide(topic, 0)

    def change_by_hand_and_lag() -> None:
        house.post(topic, "split/1")
        stale = house.controller.client.get(f"/admin/v2/scalable/{house.namespace}/orders").text
        house.gate.on("GET", answers(200, stale))

    house.gate.before_next("POST", change_by_hand_and_lag)
    house.gate.on("POST", call)
    with house.running():
        house.commit(split)
        assert house.end(split)["status"] == "applied"
    assert (house.gate.count("POST"), house.layout(topic).epoch) == (1, 2)


def test_controller_ignores_call_for_changed_layout(house: House):
    topic = house.create("orders", 2)
    split = house.decide(topic, 0)
    house.gate.before_next("POST", lambda: house.post(topic, "merge/0/1"))
    with house.running():
        house.commit(split)
        assert house.end(split)["status"] == "superseded"
    assert (house.gate.count("POST"), house.layout(topic).epoch) == (1, 1)


def test_accepted_call_awaited_until_visible(house: House):
    topic = house.create("orders")
    stale = house.controller.client.get(f"/admin/v2/scalable/{house.namespace}/orders").text
    split = house.decide(topic, 0)
    house.gate.on("GET", answers(200, stale), answers(200, stale))
    with house.running():
        house.commit(split)
        assert house.end(split)["status"] == "applied"
    assert (house.gate.count("POST"), house.layout(topic).epoch) == (1, 1)


def test_late_decision_fails_with_reason(house: House):
    clock = Clock()
    split = house.decide(house.create("orders"), 0)
    house.gate.always("POST", answers(503, '{"reason":"no leader"}'))
    with house.running(clock, give_up_seconds=300):
        house.commit(split)
        wait_until(lambda: len(house.outcomes(split)) >= 3)
        clock.now += timedelta(seconds=301)
        end = house.end(split)
    assert end["status"] == "failed"
    assert "given up after 301 s: the call was answered with 503 no leader" in end["error"]


def test_deadline_counts_from_first_intent(house: House):
    clock = Clock()
    split = house.decide(house.create("orders"), 0)
    house.gate.always("GET", LOST_BEFORE)
    with house.running(clock, give_up_seconds=300):
        house.commit(split)
        wait_until(lambda: len(house.outcomes(split)) >= 2)
    clock.now += timedelta(seconds=400)
    with house.running(clock, give_up_seconds=300):
        assert house.end(split)["status"] == "failed"


def test_forbidden_call_retried_slowly(house: House):
    split = house.decide(house.create("orders"), 0)
    house.gate.on("GET", answers(401, '{"reason":"who are you"}'))
    house.gate.on("POST", answers(403, '{"reason":"not you"}'))
    with house.running():
        house.commit(split)
        assert house.end(split)["status"] == "applied"
    errors = [row["error"] for row in house.outcomes(split) if row["error"]]
    assert ["401 who are you" in errors[0], "403 not you" in errors[1]] == [True, True]


def test_hanging_topics_do_not_block_others(house: House):
    slow = [house.decide(house.create(f"slow-{number}"), 0) for number in range(6)]
    quick = [house.decide(house.create(f"quick-{number}"), 0) for number in range(6)]
    house.gate.always("GET", HANGS, lambda path: "slow" in path)
    with house.running(workers=2, request_timeout_seconds=0.5, give_up_seconds=60):
        house.commit(*slow)
        wait_until(lambda: all(len(house.outcomes(one)) >= 2 for one in slow))
        house.commit(*quick)
        assert {house.end(one)["status"] for one in quick} == {"applied"}
        assert not any(house.ends(one) for one in slow)


def test_observe_mode_records_and_changes_nothing(house: House):
    topic = house.create("orders", 2)
    split, merge = house.decide(topic, 0), house.decide(house.create("other", 2), 0, 1)
    house.post(merge.subject, "split/1")
    with house.running(mode="observe"):
        house.commit(split, merge)
        ends = [house.end(split), house.end(merge)]
        wait_until(lambda: len(house.published.events) == 2)
    assert [(end["status"], end["mode"]) for end in ends] == [("observed", "observe")] * 2
    assert json.loads(ends[0]["seen"])["would"] == f"split 0 of {topic}"
    assert json.loads(ends[1]["seen"])["would"] == "nothing: superseded"
    assert {event.status for event in house.published.events} == {"observed"}
    assert (len(house.outcomes()), house.gate.count("POST"), house.layout(topic).epoch) == (2, 0, 0)


MALFORMED = {
    "no JSON": {"arguments": "{"},
    "no object": {"arguments": "[0]"},
    "two segments for a split": {"arguments": '{"segments":[0,1]}'},
    "a segment that is no number": {"arguments": '{"segments":["0"]}'},
    "a truth value": {"arguments": '{"segments":[false]}'},
    "deeply nested": {"arguments": "[" * 100_000},
    "a segment that is not active": {"arguments": '{"segments":[7]}'},
    "the same segment twice": {"action": "merge", "arguments": '{"segments":[0,0]}'},
    "an unknown action": {"action": "shrink"},
    "a rebucket without buckets": {"action": "rebucket"},
    "an unknown family": {"family": "brooks"},
    "inputs of nothing": {"inputs": ""},
    "inputs that are no snapshot": {"inputs": '{"topic":"topic://a/b/c"}'},
    "inputs of another topic": {"subject": "topic://acme/shop/other"},
    "a subject that is no topic": {"subject": "../../etc\nX: y"},
    "an id that is no header": {"decision_id": "a\r\nX: y"},
}


def test_malformed_rows_rejected_with_reason(house: House):
    good = house.decide(house.create("orders", 2), 0)
    rows = [orders.row(good, **{"decision_id": f"bad-{n}"} | bad) for n, bad in enumerate(MALFORMED.values())]
    with house.running():
        orders.commit(house.lake, [*rows, orders.row(good)])
        assert house.end(good)["status"] == "applied"
        wait_until(lambda: len(house.ends()) == len(rows) + 1)
    rejected = [row for row in house.ends() if row["decision_id"] != good.decision_id]
    assert {row["status"] for row in rejected} == {"rejected"}
    assert all(row["error"].startswith("the decisions row is malformed: ") for row in rejected)
    assert house.gate.count("POST") == 1
    announced = [event.decision_id for event in house.published.events]
    assert len(announced) == len(rows), "all but the one whose subject cannot be said on Kafka"


def test_newer_executor_takes_over(house: House):
    split = house.decide(house.create("orders"), 0)

    def overtaken() -> None:
        with house.running() as older:
            house.open_ledger()
            wait_until(older._stopping.is_set)
            house.commit(split)

    with pytest.raises(LeaseLost, match=r"lease token 2, this one had 1"):
        overtaken()
    assert house.outcomes() == []


def test_overtaken_executor_cannot_record_outcomes(house: House, monkeypatch):
    older = house.open_ledger()
    row = older.row(
        decision_id="d", family="autoscale", subject="topic://a/b/c", status="intent", attempt=0, at=Clock().now
    )
    house.open_ledger()
    monkeypatch.setattr(LeasedTable, "check", lambda _: None)
    with pytest.raises(Exception, match="Concurrent transaction"):
        older.append([row])
    assert house.outcomes() == []


def test_concurrent_starts_get_own_tokens(house: House):
    tokens: list[int] = []
    threads = [threading.Thread(target=lambda: tokens.append(house.open_ledger().token)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(tokens) == [1, 2, 3, 4, 5, 6]


def test_the_lease_survives_checkpoints_of_the_log(house: House):
    ledger = house.open_ledger()
    for number in range(60):
        ledger.append(
            [
                ledger.row(
                    decision_id=f"d{number}",
                    family="autoscale",
                    subject="topic://a/b/c",
                    status="failed",
                    attempt=0,
                    at=Clock().now,
                )
            ]
        )
    assert house.open_ledger().token == 2
    assert len(house.outcomes()) == 60


def test_commits_failed_after_success_not_repeated(house: House, monkeypatch):
    split = house.decide(house.create("orders"), 0)
    real, faults = tables.write_deltalake, []

    def made_and_failed(*args, **options):
        real(*args, **options)
        if len(args[1]) and len(faults) < 2:
            faults.append(args[1])
            raise OSError("the connection broke")

    monkeypatch.setattr(tables, "write_deltalake", made_and_failed)
    with house.running():
        house.commit(split)
        house.end(split)
        wait_until(lambda: house.published.events)
    assert len(faults) == 2
    assert [row["status"] for row in house.outcomes()] == ["intent", "applied"]
    assert house.layout(split.subject).epoch == 1


def test_no_call_without_recorded_intent(house: House, monkeypatch):
    topic = house.create("orders")
    split = house.decide(topic, 0)
    real, tried, broken = OutcomeLedger.append, threading.Event(), True

    def append(ledger, rows):
        tried.set()
        if broken:
            raise OSError("No space left on device")
        real(ledger, rows)

    monkeypatch.setattr(OutcomeLedger, "append", append)
    with house.running():
        house.commit(split)
        assert tried.wait(60)
        assert house.gate.requests == []
        broken = False
        assert house.end(split)["status"] == "applied"


def test_tail_with_vacuumed_versions_scans_table(house: House):
    before, after = house.decide(house.create("before"), 0), house.decide(house.create("after"), 0)
    with house.running(poll_ms=10):
        house.commit(before)
        house.end(before)
    table = DeltaTable(table_path(house.lake, DECISIONS))
    tail = follow_decisions(house.lake)
    tail.read(())
    for _ in range(3):
        house.commit(after)
    table.update_incremental()
    table.create_checkpoint()
    for version in range(table.version()):
        (Path(table_path(house.lake, DECISIONS)) / "_delta_log" / f"{version:020}.json").unlink()
    rows = tail.read({before.decision_id})
    assert {row["decision_id"] for row in rows} == {after.decision_id}
