"""Why a topic acts or holds, worked out from the lake's rows: the job's own engine writes them, without Spark.

Longer than other files: one test for each situation that an explanation can meet.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import write_deltalake

from anabranch.cli.instants import read_instant
from anabranch.cli.main import cli
from anabranch.history.explain import checkpoints, record
from anabranch.history.explain.changes import changes
from anabranch.history.explain.checkpoints import NotOnRecord, replay_topic
from anabranch.history.explain.record import check_segment, explain
from anabranch.query.topics import UnknownTopic, find_topic
from decisions.topic.layout import SegmentLayout
from engine.history import Batches, columns_of, history_of
from engine.replay import BucketReplay
from lake.batches import read_outline
from lake.files import table_path
from lake.tables import create_table
from schemas.tables.arrow import to_arrow
from schemas.tables.rows import BATCHES, DECISIONS, EVENTS, HOLDS, OUTCOMES, SEGMENT_LOAD, WAITS, OutcomeRow, WaitRow
from tests.engine.buckets import CONFIGURED, PROMPT
from tests.engine.records import consumers, delivery, layout, outcome, policy, stats, tick
from tests.engine.test_engine import MINUTE, NOW, SECOND
from tests.engine.test_replay import NAMES, RecordedBucket

COLD, WARM = {0: 10.0, 1: 10.0}, {0: 5_000.0, 1: 5_000.0}
TABLES = (EVENTS, SEGMENT_LOAD, DECISIONS, HOLDS, BATCHES)


def written(bucket, lake, without=()):
    for table in TABLES:
        rows = bucket.table(table)
        made = create_table(lake, table)
        if len(rows) and table not in without:
            write_deltalake(made, rows, mode="append")
    return str(lake)


def at(millis):
    return datetime.fromtimestamp(millis / 1000, timezone.utc)


@pytest.fixture(scope="module")
def bucket():
    """A topic that is warm, then cold and waits for its window; and another one beside it."""
    bucket = RecordedBucket()
    made = SegmentLayout.create(2, NOW - MINUTE)
    bucket.batch(NOW, *(layout(made, topic=name) for name in NAMES[:2]), consumers(1, topic=NAMES[0]))
    bucket.batch(NOW + SECOND, stats(WARM, NOW, NAMES[0]), tick(1))
    bucket.batch(NOW + MINUTE, stats(COLD, NOW + MINUTE, NAMES[0]), tick(2))
    for minute in range(2, 5):
        bucket.batch(NOW + minute * MINUTE, stats(COLD, NOW + minute * MINUTE, NAMES[0]), tick(minute + 1))
    return bucket


@pytest.fixture(scope="module")
def lake(bucket, tmp_path_factory):
    """Its lake, for tests that only read."""
    return Path(written(bucket, tmp_path_factory.mktemp("recorded") / "lake"))


def test_explanation_lists_all_gates_beyond_hold(lake):
    found = explain(str(lake), NAMES[0], None, CONFIGURED)
    assert (found.answer.gate.value, found.hold["gate"], found.held_since) == (
        "merge-window",
        "merge-window",
        NOW + MINUTE,
    )
    assert {reading.gate.value for reading in found.answer.gates} >= {"max-segments", "settling", "merge-window"}
    assert (found.doubts, found.assumed_fresh) == ([], [])
    assert found.answer.binding.measured == 3 * MINUTE


def test_explanation_holds_few_of_many_batches(bucket, tmp_path, monkeypatch):
    """A job writes millions in a month: the rows that are kept in memory are counted."""
    lake, table = written(bucket, tmp_path / "lake"), bucket.table(BATCHES)
    last = table.slice(len(table) - 1).to_pylist()[0]
    quiet = dict.fromkeys(("samples_accepted", "events", "decisions", "holds", "evaluations"), 0)
    more = [
        {**last, **quiet, "batch_id": last["batch_id"] + n, "batch_at": last["batch_at"] + timedelta(milliseconds=n)}
        for n in range(1, 1_001)
    ]
    write_deltalake(table_path(lake, BATCHES), pa.Table.from_pylist(more, schema=table.schema), mode="append")
    sizes = []

    def counted(batches, *tables):
        sizes.append(len(batches))
        return history_of(batches, *tables) if tables else Batches(batches)

    monkeypatch.setattr(record, "Batches", counted)
    monkeypatch.setattr(checkpoints, "history_of", counted)
    assert explain(lake, NAMES[0], None, CONFIGURED).answer.gate.value == "merge-window"
    assert len(sizes) == 2
    assert max(sizes) < 20


def test_checkpoint_gives_the_same_with_fewer_batches(tmp_path, monkeypatch):
    """Three hours with decisions, slow deliveries and a policy: four instants, and back again."""
    bucket, made = RecordedBucket(), SegmentLayout.create(2, NOW - MINUTE)
    bucket.batch(NOW, layout(made, topic=NAMES[0]), consumers(1, topic=NAMES[0]))
    for number in range(36):
        when = NOW + number * 5 * MINUTE
        rates = {active.segment_id: 12_500.0 if number in (5, 17) else 10.0 for active in made.active}
        more = [delivery(SLOW, reported=2, at=when - SECOND, topic=NAMES[0])] if number % 7 == 3 else []
        more += [policy({"maxSegments": 9}, "acme/shop")] if number == 8 else []
        for row in bucket.batch(when, stats(rates, when, NAMES[0]), *more, tick(number)).decisions:
            segments = json.loads(row["arguments"])["segments"]
            made = (
                made.split_segment(*segments, when)
                if row["action"] == "split"
                else made.merge_segments(*segments, when)
            )
            ended = outcome(row["decision_id"], "applied", when, NAMES[0])
            bucket.batch(when + SECOND, layout(made, row["action"], at=when, topic=NAMES[0]), ended)
    lake, kept, taken = written(bucket, tmp_path / "lake"), {}, []
    assert made.epoch > 2

    def answer(when, *more):
        taken.append(0)
        found = explain(lake, NAMES[0], at(when), CONFIGURED, timedelta(0), *more)
        # The rank of a batch among those that were read.
        return replace(found, hold=found.hold and {name: found.hold[name] for name in found.hold if name != "place"})

    take_in = BucketReplay.take_in

    def counted(replay, batch):
        taken[-1] += 1
        return take_in(replay, batch)

    monkeypatch.setattr(BucketReplay, "take_in", counted)
    instants = [NOW + number * 15 * MINUTE + SECOND for number in (1, 3, 9, 11)]
    for when in (*instants, *reversed(instants)):
        assert answer(when, kept) == answer(when)
    assert [checkpoint.at for checkpoint in kept.values()] == [at(instants[-1]).replace(minute=0, second=0)]
    assert taken[6] * 2 < taken[7]


def test_checkpoint_is_not_left_where_the_clock_was_set_back(tmp_path):
    hour = NOW - NOW % (60 * MINUTE) + 60 * MINUTE
    bucket, made = RecordedBucket(), SegmentLayout.create(2, hour - 9 * MINUTE)
    bucket.batch(hour - 8 * MINUTE, layout(made, topic=NAMES[0]), consumers(1, topic=NAMES[0]))
    bucket.batch(hour + MINUTE, stats(WARM, hour + MINUTE, NAMES[0]), tick(1))
    bucket.batch(hour - MINUTE, stats(COLD, hour - MINUTE, NAMES[0]), tick(2))
    for minute in range(2, 10):
        bucket.batch(hour + minute * MINUTE, tick(minute + 1))
    lake, kept = written(bucket, tmp_path / "lake"), {}
    for _ in range(2):
        again = explain(lake, NAMES[0], None, CONFIGURED, checkpoints=kept)
        assert again.snapshot == explain(lake, NAMES[0], None, CONFIGURED).snapshot


def test_checkpoints_are_bounded_by_their_bytes(tmp_path, monkeypatch):
    hour = NOW - NOW % (60 * MINUTE) + 60 * MINUTE
    bucket, made = RecordedBucket(), SegmentLayout.create(2, hour - 9 * MINUTE)
    bucket.batch(hour - 8 * MINUTE, *(layout(made, topic=name) for name in NAMES[:2]))
    for minute in (-7, 1):
        when = hour + minute * MINUTE
        bucket.batch(when, *(stats(WARM, when, name) for name in NAMES[:2]), tick(minute + 8))
    lake, kept = written(bucket, tmp_path / "lake"), {}

    def explained(name, most):
        monkeypatch.setattr(checkpoints, "MAX_BYTES", most)
        found = explain(lake, name, None, CONFIGURED, checkpoints=kept).snapshot
        assert found == explain(lake, name, None, CONFIGURED).snapshot
        return [topic for _, topic in kept]

    assert explained(NAMES[0], 1_000_000) == [NAMES[0]]
    size = kept[lake, NAMES[0]].size
    assert size > 500
    assert explained(NAMES[1], size + 100) == [NAMES[1]]
    assert explained(NAMES[0], 2 * size + 100) == [NAMES[1], NAMES[0]]
    kept.clear()
    assert explained(NAMES[0], 100) == []


def test_checkpoint_has_reports_dated_after_it_and_late_ones(tmp_path):
    """The decision comes before the hour; a report dated before it is accepted after the first question."""
    hour = NOW - NOW % (60 * MINUTE) + 60 * MINUTE
    bucket, made = RecordedBucket(), SegmentLayout.create(1, hour - 9 * MINUTE)
    bucket.batch(hour - 8 * MINUTE, layout(made, topic=NAMES[0]), consumers(1, topic=NAMES[0]))
    decided = bucket.batch(hour - MINUTE, stats({0: 50_000.0}, hour - MINUTE, NAMES[0]), tick(1)).decisions
    bucket.batch(hour - SECOND, delivery(SLOW, reported=1, at=hour + 5 * SECOND, topic=NAMES[0]))
    bucket.batch(hour + MINUTE, tick(2))
    bucket.batch(hour + 2 * MINUTE, delivery(SLOW, reported=3, at=hour - 2 * MINUTE, topic=NAMES[0]))
    lake, kept = written(bucket, tmp_path / "lake"), {}
    for when in (hour + MINUTE, hour + 3 * MINUTE):
        past = [
            replay_topic(
                lake, NAMES[0], at(when), Batches(read_outline(lake, columns_of(BATCHES), at(when))), CONFIGURED, some
            )[1]
            for some in (kept, {})
        ]
        assert past[0].delivery == past[1].delivery
        assert past[0].delivery_when_decided == past[1].delivery_when_decided
    assert (len(decided), past[0].delivery.at) == (1, hour + 5 * SECOND)
    assert past[0].delivery_when_decided.at == hour - 2 * MINUTE


def test_past_instant_answered_as_it_was(lake):
    lake = str(lake)
    found = explain(lake, NAMES[0], at(NOW + 30 * SECOND), CONFIGURED)
    assert (found.answer.gate.value, found.hold["gate"]) == ("merge-thresholds", "merge-thresholds")
    with pytest.raises(NotOnRecord, match=r"the record begins at 2025-11-20 17:33:20 UTC"):
        explain(lake, NAMES[0], at(NOW - 1), CONFIGURED)


def test_unrecorded_constant_load_fresh_as_hold_states(tmp_path):
    bucket = RecordedBucket()
    bucket.batch(NOW, layout(SegmentLayout.create(2, NOW - MINUTE), topic=NAMES[0]))
    for minute in range(30):
        bucket.batch(NOW + minute * MINUTE, stats(WARM, NOW + minute * MINUTE, NAMES[0]), tick(minute))
    found = explain(written(bucket, tmp_path / "lake"), NAMES[0], None, CONFIGURED)
    assert (found.answer.gate.value, found.assumed_fresh) == ("merge-thresholds", [0, 1])


def test_a_history_that_is_too_short_is_said(bucket, tmp_path):
    found = explain(written(bucket, tmp_path / "lake", without=[SEGMENT_LOAD]), NAMES[0], None, CONFIGURED)
    assert "gate was merge-thresholds, is now load-missing" in found.doubts[0]


def command(lake, *arguments):
    settings = lake / "settings.toml"
    settings.write_text(f'[lake]\npath = "{lake}"\n')
    return CliRunner().invoke(cli, ["-c", str(settings), "explain", *arguments], catch_exceptions=False)


def test_command_explains_reason_input_and_changes(lake):
    run = command(lake, "t0")
    assert run.exit_code == 0
    assert " >> merge-window " in run.output
    assert "on record: hold 2, merge-window (measured 0ms, limit 5m0s then), since 2025-11-20T17:34:20Z" in run.output
    assert "in 2m0s, at 2025-11-20T17:39:20Z, if all else stays as it is" in run.output
    assert "at 10,001 msg/s in on segment 0 (now 10)" in run.output
    assert "consumers: billing 1 STREAM" in run.output
    assert json.loads(command(lake, "t0", "--snapshot").output)["consumers"] == {
        "billing": {"type": "STREAM", "count": 1}
    }


SLOW = {
    "id": 0,
    "subscription": "billing",
    "backlog": 9_000,
    "msgRateOut": 100.0,
    "consumers": 1,
    "readyConsumers": 0,
    "backlogAgeSeconds": 240.0,
    "waitingPublishers": 2,
}


def test_a_slow_topic_is_explained_by_the_last_report(tmp_path):
    hot, bucket = {0: 15_000.0, 1: 10.0}, RecordedBucket()
    made = SegmentLayout.create(2, NOW - MINUTE)
    bucket.batch(NOW, layout(made, topic=NAMES[0]), consumers(2, topic=NAMES[0]))
    bucket.batch(NOW + SECOND, delivery(reported=2, at=NOW, topic=NAMES[0]))
    bucket.batch(NOW + MINUTE, stats(hot, NOW + MINUTE, NAMES[0]), tick(1))
    bucket.batch(NOW + MINUTE + SECOND, delivery(SLOW, reported=2, at=NOW + MINUTE + SECOND, topic=NAMES[0]))
    bucket.batch(NOW + 2 * MINUTE, delivery(reported=2, topic=NAMES[1]))
    lake = tmp_path / "lake"
    written(bucket, lake)
    run = command(lake, "t0", "--at", "2025-11-20T17:35:20Z")
    assert "short of segments: consumers or brokers could do more if the load were divided further" in run.output
    assert (
        "segment 0, billing: 9,000 messages behind (the oldest 4m0s old), 0 of 1 consumers ready, 2 producers wait for "
        "exclusive access, which no split changes, load 150% of split: segments"
    ) in run.output
    told = json.loads(command(lake, "t0", "--at", "2025-11-20T17:35:20Z", "--output", "json").output)["slowness"]
    assert (told["verdict"], told["backlog"], told["reportAgeMs"]) == ("segments", 9_000, 59_000)
    assert [(one["segment"], one["cause"], one["overload"]) for one in told["segments"]] == [(0, "segments", 1.5)]
    earlier = command(lake, "t0", "--at", "2025-11-20T17:34:00Z").output
    assert "not slow: no subscription is a minute or more behind on any segment (reported 40s ago)" in earlier


def test_unreported_topic_not_called_slow_or_quick(lake):
    found = explain(str(lake), NAMES[0], None, CONFIGURED)
    assert (found.slowness.verdict, found.slowness.age_ms, found.snapshot.delivery) == ("unknown", None, None)


def test_a_time_between_two_evaluations_names_both(lake):
    said = json.loads(command(lake, "t0", "--at", "2025-11-20T17:35:50", "--output", "json").stdout)
    at_tick = json.loads(command(lake, "t0", "--at", "2025-11-20T17:35:20", "--output", "json").stdout)
    for answer in (said, at_tick):
        assert (answer["evaluatedAt"], answer["nextEvaluationAt"]) == (NOW + 2 * MINUTE, NOW + 3 * MINUTE)
    assert said["answer"]["gate"] == "merge-window"
    assert {
        "input": "now",
        "is": NOW + 150 * SECOND,
        "needed": NOW + 6 * MINUTE,
        "then": "merge segments 0 and 1",
    } in said["changes"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("order",), "no topic order is on record; "),
        (("t",), "the nearest names are topic://acme/shop/t1, topic://acme/shop/t0"),
        (("t0", "--segment", "9"), "there is no segment 9 at that time; active are 0, 1"),
        (("t0", "--at", "2025-11-20T12:00"), "the record begins at 2025-11-20 17:33:20 UTC, and "),
        (("t0", "--at", "2025-11-20T18:00"), "the record ends at 2025-11-20 17:37:20 UTC, and 2025-11-20 18:00:00"),
        (("T0",), "the nearest names are topic://acme/shop/t0"),
        (("",), "the name of the topic is empty"),
        (("t0", "--at", "2d"), "'2d' is no time; did you mean '2d ago'?"),
        (("t0", "--at", "9y ago"), "is before that: ask for a later time, or for none, which is the end of the record"),
        (("t0", "--at", "noon"), "'noon' is no time; write 14:05, 2026-11-22T14:05:00Z or '10m ago'"),
    ],
)
def test_what_is_not_there_is_said_with_what_is(lake, arguments, expected):
    run = command(lake, *arguments)
    assert run.exit_code != 0
    assert expected in run.output


@pytest.mark.parametrize("asked", ["explain", "history"])
def test_missing_lake_error_names_searched_place(tmp_path, asked):
    (tmp_path / "s.toml").write_text(f'[lake]\npath = "{tmp_path / "none"}"\n')
    run = CliRunner().invoke(cli, ["-c", str(tmp_path / "s.toml"), asked, "t0"])
    assert run.exit_code == 3
    assert f"no layout of any topic is on record in {tmp_path / 'none'}: is the job running" in run.output


@pytest.mark.parametrize("asked", ["explain", "history"])
def test_damaged_lake_ends_with_3(tmp_path, asked):
    log = tmp_path / "lake/events/_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text("{")
    (tmp_path / "s.toml").write_text(f'[lake]\npath = "{tmp_path / "lake"}"\n')
    run = CliRunner().invoke(cli, ["-c", str(tmp_path / "s.toml"), asked, "t0"])
    assert (run.exit_code, f"the lake {tmp_path / 'lake'} cannot be read" in run.output) == (3, True)


def test_decision_explained_by_its_input_until_next(tmp_path):
    bucket = RecordedBucket()
    bucket.batch(NOW, layout(SegmentLayout.create(2, NOW - MINUTE), topic=NAMES[0]))
    bucket.batch(NOW + SECOND, stats({0: 5_000.0, 1: 12_500.0}, NOW, NAMES[0]), tick(1))
    bucket.batch(NOW + 61 * SECOND, stats({0: 5_000.0, 1: 12_500.0}, NOW + MINUTE, NAMES[0]), tick(2))
    lake = written(bucket, tmp_path / "lake")
    found = explain(lake, NAMES[0], at(NOW + 30 * SECOND), CONFIGURED)
    assert (found.answer.action, found.answer.segment, found.decision.at) == ("split", 1, NOW + SECOND)
    assert "loads.1.msgRateIn" in {one.path for one in changes(found.snapshot)}
    later = explain(lake, NAMES[0], at(NOW + 90 * SECOND), CONFIGURED)
    assert (later.answer.gate.value, later.decision, later.last_decision.segments) == ("in-flight", None, (1,))


def test_hot_sample_between_ticks_is_an_evaluation(tmp_path):
    bucket = RecordedBucket(configured=PROMPT)
    bucket.batch(NOW, layout(SegmentLayout.create(2, NOW - MINUTE), topic=NAMES[0]), tick(0))
    bucket.batch(NOW + SECOND, stats({0: 12_500.0, 1: 5_000.0}, NOW + SECOND, NAMES[0]))
    bucket.batch(NOW + 2 * SECOND, stats({0: 22_500.0, 1: 5_000.0}, NOW + 2 * SECOND, NAMES[0]))
    lake = written(bucket, tmp_path / "lake")
    found = explain(lake, NAMES[0], at(NOW + SECOND), PROMPT)
    assert (found.decision.action, found.evaluations.last) == ("split", NOW + SECOND)
    later = explain(lake, NAMES[0], None, PROMPT)
    assert (later.answer.gate.value, later.hold["gate"]) == ("in-flight", "in-flight")
    assert later.evaluations.last == NOW + 2 * SECOND


def test_event_after_decision_is_explained_instead(tmp_path):
    bucket, made = RecordedBucket(), SegmentLayout.create(2, NOW - MINUTE)
    bucket.batch(NOW, layout(made, topic=NAMES[0]))
    [row] = bucket.batch(NOW + SECOND, stats({0: 5_000.0, 1: 12_500.0}, NOW, NAMES[0]), tick(1)).decisions
    # Announced before its outcome: the decision is in flight, which is put on record at once.
    split = layout(made.split_segment(1, NOW + 5 * SECOND), "split", at=NOW + 5 * SECOND, topic=NAMES[0])
    bucket.batch(NOW + 6 * SECOND, split, consumers(2, topic=NAMES[0]))
    bucket.batch(NOW + 9 * SECOND, outcome(row["decision_id"], "applied", NOW + 5 * SECOND, NAMES[0]))
    bucket.batch(NOW + 61 * SECOND, tick(2))
    lake = written(bucket, tmp_path / "lake")
    before, open_still, ended = (
        explain(lake, NAMES[0], at(NOW + second * SECOND), CONFIGURED) for second in (5, 8, 30)
    )
    assert (before.answer.action, before.decision.at) == ("split", NOW + SECOND)
    assert (open_still.answer.gate.value, open_still.decision, open_still.hold["gate"]) == (
        "in-flight",
        None,
        "in-flight",
    )
    assert [one.segment_id for one in ended.snapshot.layout.active] == [0, 2, 3]
    assert (ended.decision, ended.snapshot.in_flight, ended.evaluations.last) == (None, None, NOW + 9 * SECOND)


def test_split_segment_shown_with_children():
    divided = SegmentLayout.create(2, NOW).split_segment(0, NOW + MINUTE)
    with pytest.raises(NotOnRecord, match=r"segment 0 is no longer active: it was split into 2 and 3 at 2025-11-20 17"):
        check_segment(divided, 0)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("orders", "topic://acme/shop/orders"),
        ("shop/clicks", "topic://acme/shop/clicks"),
        ("acme/shop/orders", "topic://acme/shop/orders"),
        ("topic://acme/web/clicks", "topic://acme/web/clicks"),
    ],
)
def test_topic_found_by_unique_suffix(given, name):
    names = ["topic://acme/shop/orders", "topic://acme/shop/clicks", "topic://acme/web/clicks"]
    assert find_topic(names, given) == name
    with pytest.raises(UnknownTopic, match="clicks may be each of topic://acme/shop/clicks, topic://acme/web/clicks"):
        find_topic(names, "clicks")


@pytest.mark.parametrize(
    ("text", "hours"),
    [("14:05", -1), ("15:04:05", -24), ("2026-11-22T16:05:00+01:00", 0), ("2 h ago", -2), ("15:00", 0), ("now", 0)],
)
def test_time_of_day_is_latest_and_utc_only(text, hours):
    now = datetime(2026, 11, 22, 15, 0, 0, tzinfo=timezone.utc)
    minutes = {"14:05": 5, "15:04:05": 4, "2026-11-22T16:05:00+01:00": 5}.get(text, 0)
    seconds = 5 if text == "15:04:05" else 0
    expected = now + timedelta(hours=hours, minutes=minutes, seconds=seconds)
    assert read_instant(text, now) == expected


@pytest.fixture
def decided(tmp_path):
    """A lake in which segment 1 was to be split, and what its executor's tables say of that decision."""
    bucket = RecordedBucket()
    bucket.batch(NOW, layout(SegmentLayout.create(2, NOW - MINUTE), topic=NAMES[0]))
    bucket.batch(NOW + SECOND, stats({0: 5_000.0, 1: 12_500.0}, NOW, NAMES[0]), tick(1))
    bucket.batch(NOW + 61 * SECOND, stats({0: 5_000.0, 1: 12_500.0}, NOW + MINUTE, NAMES[0]), tick(2))
    written(bucket, tmp_path / "lake")
    return tmp_path / "lake", bucket.table(DECISIONS)["decision_id"][0].as_py()


def step(decision, status, second, mode="act", error=None):
    when = at(NOW + second * SECOND)
    return OUTCOMES, OutcomeRow(
        decision_id=decision,
        family="topics",
        subject=NAMES[0],
        status=status,
        attempt=1,
        at=when,
        layout_epoch=1,
        seen="{}",
        error=error,
        executor="e",
        mode=mode,
        day=when.date(),
    )


def wait(decision, second):
    when = at(NOW + second * SECOND)
    return WAITS, WaitRow(
        decision_id=decision,
        family="topics",
        subject=NAMES[0],
        brake="pause",
        reason="paused by ada: a release",
        until=None,
        at=when,
        executor="e",
        day=when.date(),
    )


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([], "no executor has said anything of it; is one at work?"),
        ([(wait, 5)], "it has waited since 2025-11-20T17:33:25Z for a safeguard: pause: paused by ada: a release"),
        ([(step, "intent", 3), (wait, 5)], "it has waited since 2025-11-20T17:33:25Z for a safeguard: pause: "),
        ([(wait, 5), (step, "intent", 5)], "begun at 2025-11-20T17:33:25Z, and no end of it is on record"),
        ([(step, "intent", 3), (wait, 5), (step, "applied", 4)], "applied at 2025-11-20T17:33:24Z"),
        (
            [(step, "intent", 3), (step, "failed", 9, "act", "503 of the broker")],
            "failed at 2025-11-20T17:33:29Z: 503 of the broker",
        ),
        ([(step, "observed", 4, "observe")], "observed at 2025-11-20T17:33:24Z, nothing was called: the executor was"),
    ],
)
def test_a_decision_is_told_with_what_became_of_it(decided, steps, expected):
    lake, decision = decided
    for make, *values in steps:
        table, row = make(decision, *values)
        write_deltalake(create_table(lake, table), to_arrow(table, [row]), mode="append")
        # Another decision's fate is not this one's.
        _, other = step("another", "rejected", 50)
        write_deltalake(create_table(lake, OUTCOMES), to_arrow(OUTCOMES, [other]), mode="append")
    for asked in ("2025-11-20T17:33:50", "2025-11-20T17:34:30"):
        assert f"what became of it: {expected}" in command(lake, "t0", "--at", asked).stdout


def test_absent_topic_explained_by_hold_and_outcome(tmp_path):
    bucket = RecordedBucket()
    bucket.batch(NOW, layout(SegmentLayout.create(2, NOW - MINUTE), topic=NAMES[0]))
    (row,) = bucket.batch(NOW + SECOND, stats({0: 50_000.0, 1: 3_000.0}, NOW, NAMES[0]), tick(1)).decisions
    bucket.batch(NOW + 2 * SECOND, outcome(row["decision_id"], "absent", NOW + 2 * SECOND, NAMES[0]))
    bucket.batch(NOW + 20 * SECOND, tick(2))
    lake = written(bucket, tmp_path / "lake")
    _, end = step(row["decision_id"], "superseded", 2, error="the topic is gone")
    write_deltalake(create_table(lake, OUTCOMES), to_arrow(OUTCOMES, [end]), mode="append")
    text = command(tmp_path / "lake", "t0").stdout
    assert "hold, retry-backoff: The last decision of this kind ended without effect" in text
    assert "what became of it: superseded at 2025-11-20T17:33:22Z: the topic is gone" in text
    assert "acts at 2025-11-20T17:33:52Z (in 12s) if nothing else changes" in text


def test_downtime_of_job_stated_first(tmp_path):
    bucket = RecordedBucket()
    bucket.batch(NOW, layout(SegmentLayout.create(2, NOW - MINUTE), topic=NAMES[0]))
    for minute in (1, 4, 34):
        bucket.batch(NOW + minute * MINUTE, stats(WARM, NOW + minute * MINUTE, NAMES[0]), tick(minute))
    lake = tmp_path / "lake"
    written(bucket, lake)
    said = command(lake, "t0", "--at", "2025-11-20T17:45:00").stdout
    assert said.startswith(
        "not evaluated: no batch of the job is on record from 2025-11-20T17:37:20Z to 2025-11-20T18:07:20Z (30m0s)"
    )
    silent = {
        minute: explain(str(lake), NAMES[0], at(NOW + minute * MINUTE), CONFIGURED).silence
        for minute in (0, 3, 4, 33, 34)
    }
    away = (NOW + 4 * MINUTE, NOW + 34 * MINUTE)
    assert silent == {0: None, 3: None, 4: None, 33: away, 34: None}
    asked = str(lake), NAMES[0], at(NOW + 9 * MINUTE), CONFIGURED
    assert explain(*asked, timedelta(minutes=30)).silence is None
    assert explain(*asked, timedelta(seconds=1)).silence == away


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("2025-11-23T17:36", "; the last 17:36:00 on record is --at 2025-11-20T17:36:00Z"),
        ("2025-11-21T17:37:20", "; the last 17:37:20 on record is --at 2025-11-20T17:37:20Z"),
        ("2025-11-23T17:40", None),
    ],
)
def test_time_after_record_names_last_occurrence(lake, asked, expected):
    said = command(lake, "t0", "--at", asked).output
    assert "is too long after that to be known" in said
    assert (expected or "known\n") in said


def test_missing_topic_reported_with_time(tmp_path):
    bucket = RecordedBucket()
    made = SegmentLayout.create(2, NOW)
    bucket.batch(NOW, layout(made, topic=NAMES[1]))
    bucket.batch(NOW + MINUTE, layout(made, at=NOW + MINUTE, topic=NAMES[0]), tick(1))
    bucket.batch(NOW + 2 * MINUTE, layout(made, "deleted", at=NOW + 2 * MINUTE, topic=NAMES[0]), tick(2))
    bucket.batch(NOW + 3 * MINUTE, tick(3))
    lake = tmp_path / "lake"
    written(bucket, lake)
    gone = command(lake, "t0").output
    assert f"{NAMES[0]} was deleted at 2025-11-20 17:35:20 UTC" in gone
    early = command(lake, "t0", "--at", "2025-11-20T17:34:00").output
    assert "is on record up to 2025-11-20 17:34:00 UTC; the first one came at 2025-11-20 17:34:20 UTC" in early
