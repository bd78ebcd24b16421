"""Clusters with bundles out of the lake's rows: random stories through the engine, their rows as the sink has them."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decisions.topic.layout import SegmentLayout
from engine.bundles import cycle
from engine.bundles.codec import pack
from engine.cluster_replay import ClustersReplay
from schemas.tables.rows import DECISIONS, EVENTS, HOLDS
from tests.engine.balancers import BOTH, MINUTE, NOW, bundle, clusters_of, ended, report, skewed
from tests.engine.records import layout, stats, tick
from tests.engine.test_bundles import MINUTES
from tests.engine.test_replay import RecordedBucket
from tests.examples import examples


def recorded():
    return RecordedBucket(families=BOTH)


def told(bucket, minutes, outcomes=()):
    """A story, beside a topic that the bucket has too; of every decision `outcomes` say how it ended."""
    bucket.batch(NOW, layout(SegmentLayout.create(2, NOW)), stats({0: 9.0, 1: 9.0}, NOW))
    ends, last = list(outcomes), []
    for number, messages in enumerate(minutes):
        at = NOW + (number + 1) * MINUTE
        bucket.batch(at - 1, *messages, *(ended(row, ends.pop()) for row in last if ends))
        last = [row for row in bucket.batch(at, tick(at)).decisions if row["family"] == "bundles"]
    return at


def replayed(bucket, replay=None, names=("west", "east"), **how):
    """A replay of the bucket's rows, and what in it is otherwise."""
    replay = replay or ClustersReplay()
    history = bucket.history(of_clusters=True, **how)
    assert {name.partition("/")[0] for name in history.topics()} <= {*names}
    return replay, [one for batch in history.of_bucket(names) for one in replay.take(batch)]


_ENDS = st.lists(st.sampled_from(["applied", "failed", "superseded"]), max_size=4)


@examples(10)
@given(MINUTES, _ENDS)
def test_replayed_rows_rebuild_state_and_answers(minutes, outcomes):
    bucket = recorded()
    told(bucket, minutes, outcomes)
    replay, different = replayed(bucket)
    assert different == []
    assert replay.packed() == pack(clusters_of(bucket.packed))
    rows = [row for table in (DECISIONS, HOLDS) for row in bucket.table(table).to_pylist()]
    assert replay.decisions + replay.holds == sum(row["family"] == "bundles" for row in rows)


@examples(6)
@given(MINUTES, MINUTES)
def test_what_a_replay_leaves_is_gone_on_from(before, after):
    bucket, rest = recorded(), recorded()
    at = told(bucket, before)
    first, _ = replayed(bucket)
    rest.packed, rest.batch_id = bucket.packed, bucket.batch_id
    for number, messages in enumerate(after):
        now = at + (number + 1) * MINUTE
        rest.batch(now, *messages, tick(now))
    replay, different = replayed(rest, ClustersReplay(first.packed()))
    assert different == []
    assert replay.packed() == pack(clusters_of(rest.packed))


def balanced():
    """A move that is decided, and a broker that is left as it is."""
    bucket = recorded()
    bucket.batch(NOW, *skewed(NOW), report("broker-3:8080", {bundle(8): 30.0}, NOW, cpu=45), tick(NOW))
    for minute in (1, 2):
        bucket.batch(NOW + minute * MINUTE, tick(minute))
    return bucket


def changed(bucket, table, column, value):
    """One row of a table with another value."""
    rows = bucket.table(table)
    index = rows.column_names.index(column)
    field = rows.schema.field(index)
    cells = [value if row["family"] == "bundles" else row[column] for row in rows.to_pylist()]
    bucket.tables[table.name] = [rows.set_column(index, field, pa.array(cells, field.type))]


@pytest.mark.parametrize(
    ("table", "column", "value", "said"),
    [
        (DECISIONS, "reason", "because", "decision 1: reason was because, is now"),
        (DECISIONS, "arguments", json.dumps({"bundle": bundle(0)}), "arguments was"),
        (HOLDS, "gate", "nothing", "gate was nothing, is now"),
        (HOLDS, "measured", 0.5, "measured was 0.5, is now"),
    ],
)
def test_what_is_otherwise_on_record_is_said(table, column, value, said):
    bucket = balanced()
    changed(bucket, table, column, value)
    _, different = replayed(bucket)
    assert {one.cluster for one in different} == {"west"}
    assert said in different[0].text


@pytest.mark.parametrize("table", [DECISIONS, HOLDS])
def test_rows_that_are_missing_are_said(table):
    bucket = balanced()
    rows = bucket.table(table)
    bucket.tables[table.name] = [rows.filter(pc.not_equal(rows["family"], "bundles"))]
    _, different = replayed(bucket)
    assert "is not on record, and this release says" in different[0].text


def test_other_releases_record_taken_over(monkeypatch):
    bucket = recorded()
    with monkeypatch.context() as then:
        # As if that release had moved nothing; and it says so in its rows, which are holds.
        then.setattr(cycle, "decide", lambda snapshot, decide=cycle.decide: _without_decisions(decide(snapshot)))
        bucket.batch(NOW, *skewed(NOW), tick(NOW))
    changed(bucket, HOLDS, "engine_version", "0")
    replay, different = replayed(bucket)
    assert different == []
    assert replay.of_older == {"west"}
    assert replay.clusters["west"].open == {}
    assert replay.clusters["west"].decisions == 0
    held = {name: (one.gate, one.seq) for name, one in replay.clusters["west"].held.items()}
    assert held == {name: (one.gate, one.seq) for name, one in clusters_of(bucket.packed)["west"].held.items()}
    _, strict = replayed(bucket, ClustersReplay(every_version=True))
    assert strict


def _without_decisions(answer):
    return answer.model_copy(update={"decisions": [], "action": "hold"})


def test_decision_of_interrupted_batch_in_flight():
    """The job died after `decisions` and before `events`: the tick comes once more, its bundle is on its way."""
    bucket = recorded()
    bucket.batch(NOW, *skewed(NOW))
    bucket.batch(NOW + MINUTE, tick(1))
    last = bucket.batch_id - 1
    for name in (EVENTS.name, HOLDS.name, "batches"):
        rows = pa.concat_tables(bucket.tables[name])
        bucket.tables[name] = [rows.filter(pc.not_equal(rows["batch_id"], last))]
    replay, different = replayed(bucket)
    (row,) = bucket.table(DECISIONS).to_pylist()
    assert different == []
    assert {one.decision_id for one in replay.clusters["west"].open.values()} == {row["decision_id"]}
    assert replay.clusters["west"].decisions == 1


def test_holds_of_interrupted_batch_are_said_again():
    """The job died before it wrote them: to the next cycle they are news."""
    bucket = balanced()
    held = bucket.table(HOLDS).filter(pc.equal(bucket.table(HOLDS)["family"], "bundles"))
    last = pc.min(held["batch_id"]).as_py()
    for name in list(bucket.tables):
        rows = pa.concat_tables(bucket.tables[name])
        end = last if name in (HOLDS.name, "batches") else last + 1
        bucket.tables[name] = [rows.filter(pc.less(rows["batch_id"], end))]
    replay, different = replayed(bucket)
    assert different == []
    assert {(hold.gate, hold.seq) for hold in replay.clusters["west"].held.values()} == {(None, 0)}


def test_report_dated_ahead_of_batch_accepted_again():
    bucket = recorded()
    ahead = NOW + 10 * MINUTE
    early = report("broker-1:8080", {bundle(0): 1.0}, ahead)._replace(timestamp=ahead)
    bucket.batch(NOW, early, tick(1))
    replay, different = replayed(bucket)
    assert different == []
    assert replay.clusters["west"].reports["broker-1:8080"].processed_to == ahead
