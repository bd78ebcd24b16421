"""What must hold after any run: figures out of the raw rows, the controller's journal and what a client saw."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from datetime import datetime
from itertools import pairwise

import pytest

from tests.local.running import made_way
from tests.reallake.raw import untiled
from tests.reallake.recording import KILLED, PARTS, RECREATED

pytestmark = [pytest.mark.local_run, pytest.mark.spark, pytest.mark.timeout(900)]


def actions(real_lake):
    """Splits and merges that the controller carried out, from its journal."""
    return [one for one in real_lake.operations.values() if one["kind"] in ("split", "merge") and one["step"] == "done"]


def test_run_ends_cleanly_after_every_kill(real_lake):
    report = real_lake.report
    assert real_lake.exit_code == 0
    assert real_lake.left_running == []
    assert {part["name"] for part in report["parts"]} == PARTS
    died = Counter(event["part"] for event in report["partEvents"] if event["what"] == "died")
    assert died >= Counter(part for parts in KILLED for part, _ in parts)
    assert report["integrity"]["ok"], report["integrity"]
    assert report["integrity"]["kafka"]["lag"] == 0


def test_clients_never_see_a_torn_layout(real_lake):
    assert real_lake.layouts_seen > 100
    assert real_lake.torn == []


def test_recorded_layouts_tile_at_all_times(raw):
    layouts = list(raw.every_layout())
    assert len(layouts) > 20
    assert [(one.topic, one.epoch, wrong) for one in layouts if (wrong := untiled(one.active))] == []


def test_new_segments_take_the_place_of_their_parents(raw):
    checked = 0
    for of_topic in raw.layouts.values():
        for before, after in pairwise(of_topic):
            if before.life != after.life or after.epoch != before.epoch + 1:
                continue
            gone = [before.active[segment] for segment in before.active.keys() - after.active.keys()]
            came = [after.active[segment] for segment in after.active.keys() - before.active.keys()]
            assert covered(gone) == covered(came), (after.topic, after.epoch)
            checked += bool(came)
    assert checked > 20


def covered(ranges):
    return {value for start, end in ranges for value in range(start, end + 1)}


def test_every_message_is_counted_once(real_lake, raw):
    total = Counter()
    for row in raw.rows("batches"):
        assert row["messages"] == row["messages_accepted"] + row["messages_suppressed"] + row["dead_letters"]
        total.update(
            {name: row[name] for name in ("messages", "dead_letters", "decisions", "holds", "samples_accepted")}
        )
    assert total["messages"] == sum(real_lake.report["integrity"]["kafka"]["endOffsets"].values()) - ticks_left(
        real_lake
    )
    assert total["decisions"] == len(raw.rows("decisions"))
    assert total["holds"] == len(raw.rows("holds"))
    assert total["samples_accepted"] == len(raw.rows("segment_load"))
    records = Counter((row["kafka_topic"], row["kafka_partition"], row["kafka_offset"]) for row in raw.rows("events"))
    assert [record for record, count in records.items() if count > 1] == []


def ticks_left(real_lake):
    """Ticks that the job wrote while it stopped, and did not read."""
    return real_lake.report["integrity"]["kafka"].get("ticks", 0)


def test_bad_messages_become_dead_letters(real_lake, raw):
    letters = raw.rows("dead_letters")
    assert len(real_lake.garbage) > 50
    assert Counter(row["reason"] for row in letters) == Counter(real_lake.garbage)
    whole = sum(row["sample"] is None for row in letters)
    assert sum(row["dead_letters"] for row in raw.rows("batches")) == whole


def test_each_decision_ends_once(raw):
    assert {identity: rows for identity, rows in raw.ends.items() if len(rows) != 1} == {}
    decisions = Counter(row["decision_id"] for row in raw.rows("decisions"))
    assert raw.ends.keys() <= decisions.keys()
    assert set(decisions.values()) == {1}


def test_applied_decisions_are_those_of_the_journal(real_lake, raw):
    applied = {identity for identity, (row,) in raw.ends.items() if row["status"] == "applied"}
    carried_out = Counter(one["decisionId"] for one in actions(real_lake))
    assert len(applied) > 20
    assert {identity for identity, count in carried_out.items() if count > 1} == set()
    assert carried_out.keys() <= applied
    unseen = applied - carried_out.keys()
    assert unseen <= applied_before_deletion(real_lake, raw)
    segments = {row["decision_id"]: (row["action"], ids(row)) for row in raw.rows("decisions")}
    done = {one["decisionId"]: (one["kind"], parents(one)) for one in actions(real_lake)}
    assert done == {identity: segments[identity] for identity in applied - unseen}


def applied_before_deletion(real_lake, raw):
    """Decisions on the deleted topic that ended after the last look at its journal, which goes with the topic."""
    deleted_at = min(row["at"] for row in raw.events("layout") if row["cause"] == "deleted")
    read_at = max((at for at in real_lake.read_at if at < deleted_at.timestamp()), default=0.0)
    ended = {identity for identity, (row,) in raw.ends.items() if row["at"].timestamp() > read_at}
    decided = [row for row in raw.rows("decisions") if row["subject"] == RECREATED and row["decided_at"] < deleted_at]
    return ended & {row["decision_id"] for row in decided}


def ids(decision):
    return sorted(json.loads(decision["arguments"])["segments"])


def parents(operation):
    """Segment ids of descriptors such as `0000-7fff-3`."""
    return sorted(int(name.rpartition("-")[2]) for name in operation["segments"])


def test_several_segments_of_a_topic_act_at_once(raw):
    taken = Counter((row["subject"], row["decided_at"]) for row in raw.rows("decisions"))
    assert sum(count > 1 for count in taken.values()) >= 3


def test_superseded_only_by_other_action_or_later_split(real_lake, raw):
    consumed = defaultdict(list)
    for operation in actions(real_lake):
        for segment in parents(operation):
            consumed[operation["topic"], segment].append(operation["startedAt"])
    # The job decides on the topic until it hears that it was deleted.
    heard_at = min(row["accepted_at"] for row in raw.events("layout") if row["cause"] == "deleted")
    decisions, unexplained = raw.rows("decisions"), []
    for row in decisions:
        (end,) = raw.ends.get(row["decision_id"], [{"status": "open"}])
        if end["status"] != "superseded":
            continue
        consumed_at = [at for segment in ids(row) for at in consumed[row["subject"], segment]]
        was_consumed = any(at <= end["at"].timestamp() * 1000 for at in consumed_at)
        was_deleted = row["subject"] == RECREATED and row["decided_at"] <= heard_at
        if not (was_consumed or was_deleted or made_way(row, end["at"], decisions) or "decided again" in end["error"]):
            unexplained.append((row["subject"], row["action"], ids(row), end["error"]))
    assert unexplained == []


def test_nothing_is_rejected_or_failed(raw):
    statuses = raw.statuses()
    assert statuses.keys() <= {"applied", "superseded", "open"}, statuses
    assert statuses["applied"] >= 0.9 * (statuses.total() - statuses["open"]), statuses


def test_nothing_is_in_flight_at_the_end(real_lake, raw):
    """But for what was decided after the executor had been told to stop."""
    stopped = [event["at"] for event in real_lake.report["partEvents"] if event["part"] == "executor"]
    executor_ended = datetime.fromisoformat(max(stopped))
    late = {one["decisionId"] for one in real_lake.report["balance"]["open"] if "told to stop" in one["state"]}
    heard = {row["decision_id"] for row in raw.events("outcome")}
    for row in raw.rows("decisions"):
        if row["decision_id"] in late:
            assert row["decision_id"] not in raw.ends, row
        elif row["decision_id"] not in raw.ends:
            committed = next(one["committed_at"] for one in raw.rows("batches") if one["batch_at"] == row["decided_at"])
            # It had some seconds for it, and took some more to end.
            assert (executor_ended - committed).total_seconds() < 5, row
        else:
            assert row["decision_id"] in heard, row


def test_recreated_topic_begins_a_new_life(real_lake, raw):
    lives = {one.life for one in raw.layouts[RECREATED]}
    assert len(lives) == 2
    assert raw.present()[RECREATED].life == max(lives)
    assert raw.layouts[RECREATED][-1].ends is None


def test_changed_policy_bounds_the_segments(real_lake, raw):
    heard = min(row["accepted_at"] for row in raw.events("policy") if '"maxSegments":12' in row["body"])
    # Splits that were decided before the job heard of it may end above the cap, however late they were applied.
    later = {row["decision_id"] for row in raw.rows("decisions") if row["decided_at"] > heard}
    bounded = [one for one in raw.every_layout() if one.cause == "split" and one.decision_id in later]
    assert bounded
    assert max(len(one.active) for one in bounded) <= 12


def test_balance_of_the_report_is_that_of_the_rows(real_lake, raw):
    balance = real_lake.report["balance"]
    statuses = raw.statuses()
    assert balance["decisions"] == statuses.total()
    assert balance["applied"] == statuses["applied"]
    assert sum(balance["superseded"].values()) == statuses["superseded"]
    assert len(balance["open"]) == statuses["open"]
    assert sum(balance["rejected"].values()) == statuses["rejected"]
    assert sum(balance["failed"].values()) == statuses["failed"]
