"""A lost state out of the lake's rows: random stories through the engine, their rows as the sink has them. No JVM."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decisions.autoscale.clocks import Failures
from decisions.topic.layout import SegmentLayout
from engine.autoscale import evaluation, storing, topics
from engine.autoscale.topics import ConfiguredPolicy
from engine.families import FAMILIES
from engine.history import Batches, BatchHistory, free_generation, history_of, rebuilt_generation
from engine.kernel.packed import pack_anew
from engine.kernel.records import COUNTS
from engine.replay import BucketReplay, RebuildError
from schemas.ids import decision_id
from schemas.snapshot import ENGINE_VERSION
from schemas.tables.arrow import arrow_schema
from schemas.tables.rows import BATCHES, DEAD_LETTERS, DECISIONS, EVENTS, HOLDS, SEGMENT_LOAD
from streaming.operator.rows import KIND_OF, rows_of
from tests.engine.buckets import CONFIGURED, PROMPT, SETTINGS, Bucket, knowing, loads_of, topics_of
from tests.engine.records import consumers, layout, outcome, policy, record, stats, tick
from tests.engine.test_engine import MINUTE, NOW, SECOND
from tests.examples import examples

TABLES = (EVENTS, SEGMENT_LOAD, DEAD_LETTERS, DECISIONS, HOLDS)
NAMES = [f"topic://acme/shop/t{number}" for number in range(3)]


_NO_ROWS = {table.name: rows_of(table, [], 0, 0) for table in (*TABLES, BATCHES)}
"""By table what the sink makes of a batch that has none of its rows."""


class RecordedBucket(Bucket):
    """A bucket whose output goes into tables, as the sink writes them."""

    def __init__(self, settings=SETTINGS, generation="first", configured=CONFIGURED, families=FAMILIES):
        super().__init__(settings, families, configured)
        self.generation = generation
        self.batch_id = 0
        self.commit_ms = 0
        """From a batch's time until it is in the lake."""
        self.tables = {table.name: [] for table in (*TABLES, BATCHES)}

    def batch(self, now, *records):
        output = super().batch(now, *records)
        bodies = {kind: [body] for kind, body in output.bodies().items()}
        row = {
            **json.loads(bodies[COUNTS][0])[0],
            "generation": self.generation,
            "batch_at": now,
            "committed_at": now + self.commit_ms,
        }
        bodies[BATCHES.name] = [json.dumps([row]).encode()]
        for table in (*TABLES, BATCHES):
            made = _NO_ROWS[table.name]
            if found := bodies.get(KIND_OF.get(table.name, table.name)):
                made = rows_of(table, found, now, self.batch_id)
            self.tables[table.name].append(made)
        self.batch_id += 1
        return output

    def begin_again(self, generation):
        """A new checkpoint with empty state; what the lake holds stays."""
        self.packed, self.generation, self.batch_id = knowing(), generation, 0
        self.restart()

    def table(self, table):
        return pa.concat_tables([arrow_schema(table.row).empty_table(), *self.tables[table.name]])

    def history(self, without=(), **how):
        tables = {
            table.name: arrow_schema(table.row).empty_table() if table in without else self.table(table)
            for table in TABLES
        }
        return history_of(self.table(BATCHES), tables, **how)

    def states(self):
        """Topics and loads of the store."""
        return topics_of(self.packed), loads_of(self.packed)


def replayed(history: BatchHistory, configured=CONFIGURED):
    replay = BucketReplay(SETTINGS, configured)
    for batch in history.of_bucket(history.topics()):
        replay.take(batch)
    return replay


def of_topics(state):
    """All that is known of the topics but when an extra tick was last asked for."""
    plain = {name: msgspec.structs.asdict(topic) for name, topic in state.topics.items()}
    for topic in plain.values():
        del topic["due"]
    return plain, state.cluster_policy, state.namespace_policies


def of_loads(loads):
    """All loads but when the last suppressed sample was seen."""
    return {
        name: {i: replace(load, seen_at=None) for i, load in loads.loads_of(name).items()}
        for name in loads.index.topics()
    }


def assert_same(replay, state, loads):
    assert of_topics(replay.state) == of_topics(state)
    assert of_loads(replay.loads) == of_loads(loads)
    for name in loads.index.topics():
        for segment, load in loads.loads_of(name).items():
            assert load.modified_at <= replay.loads.loads_of(name)[segment].seen_at <= load.seen_at


class Story:
    """What happens to three topics, with layouts that follow the decisions."""

    def __init__(self, bucket):
        self.bucket = bucket
        self.layouts = {}
        self.open = {}

    def records(self, kind, name, rate, now):
        known = self.layouts.get(name)
        if known is None or kind == "created":
            self.layouts[name] = SegmentLayout.create(2, now) if known is None else known
            return [layout(self.layouts[name], topic=name)]
        active = [segment.segment_id for segment in known.active]
        decision = self.open.get(name)
        if kind == "stats":
            return [stats({i: rate * (1 + i % 2) for i in active}, now - number * SECOND, name) for number in range(2)]
        if kind == "consumers":
            return [consumers(int(rate) % 5, topic=name, event="registered" if rate > 1 else "deleted")]
        if kind == "policy":
            return [policy({"enabled": True, "maxSegments": 3 + int(rate) % 4} if rate > 1 else None, "acme/shop")]
        if kind == "own policy":
            return [layout(known, "policy", topic=name, policy={"mergeMsgRateInThreshold": rate})]
        if kind == "deleted":
            del self.layouts[name]
            return [layout(known, "deleted", topic=name)]
        if kind == "garbage":
            return [record("consumer-events", name, b"{")]
        if kind == "failed" and decision:
            return [outcome(decision["decision_id"], "failed", topic=name)]
        if kind in ("applied", "split by hand") and (decision or kind == "split by hand"):
            self.layouts[name] = after = _apply(known, decision, now)
            told = [outcome(decision["decision_id"], "applied", topic=name)] if decision else []
            return [layout(after, "split", topic=name), *told]
        return []

    def tell(self, now, events):
        happened = [one for kind, which, rate in events for one in self.records(kind, NAMES[which], rate, now)]
        for row in self.bucket.batch(now, *happened).decisions:
            self.open[row["subject"]] = row


def _apply(known, decision, now):
    if decision is None:
        return known.split_segment(known.active[0].segment_id, now)
    segments = json.loads(decision["arguments"])["segments"]
    if not {segment.segment_id for segment in known.active}.issuperset(segments):
        return known
    return (
        known.split_segment(segments[0], now) if decision["action"] == "split" else known.merge_segments(*segments, now)
    )


KINDS = [
    "stats",
    "stats",
    "stats",
    "consumers",
    "applied",
    "failed",
    "created",
    "policy",
    "own policy",
    "deleted",
    "garbage",
    "split by hand",
]
EVENT = st.tuples(
    st.sampled_from(KINDS), st.integers(0, 2), st.sampled_from([1.0, 1.1, 900.0, 960.0, 5_000.0, 60_000.0])
)
STORY = st.lists(
    st.tuples(st.lists(EVENT, max_size=4), st.booleans(), st.integers(1, 6 * MINUTE)), min_size=1, max_size=12
)


def told(story, bucket, begin=NOW):
    one, now = Story(bucket), begin
    one.tell(now, [("created", which, 1.0) for which in range(3)])
    for events, has_tick, later in story:
        now += later
        one.tell(now, events)
        if has_tick:
            for row in bucket.batch(now + 1, tick(now)).decisions:
                one.open[row["subject"]] = row
    return now


@given(STORY, st.sampled_from([CONFIGURED, PROMPT]))
@examples(6)
def test_any_recorded_story_replays_to_job_state(story, configured):
    bucket = RecordedBucket(configured=configured)
    told(story, bucket)
    assert_same(replayed(bucket.history(), configured), *bucket.states())


@given(STORY, STORY)
@examples(3)
def test_job_continues_from_replayed_state(story, rest):
    """It decides as the old job and can be replayed again."""
    bucket = RecordedBucket()
    now = told(story, bucket)
    bucket.packed = pack_anew(replayed(bucket.history()).parts)
    bucket.generation, bucket.batch_id = rebuilt_generation("first", 0), 0
    bucket.restart()
    told(rest, bucket, now + MINUTE)
    assert bucket.history().generation == bucket.generation
    assert_same(replayed(bucket.history()), *bucket.states())


def hot():
    """A bucket with a decision and a hold on record."""
    bucket = RecordedBucket()
    bucket.batch(NOW, layout(SegmentLayout.create(2, NOW - MINUTE), topic=NAMES[0]))
    bucket.batch(NOW + SECOND, stats({0: 50_000.0, 1: 1.0}, NOW, NAMES[0]), tick(1))
    bucket.batch(NOW + 2 * SECOND, tick(2))
    assert (len(bucket.table(DECISIONS)), len(bucket.table(HOLDS))) == (1, 1)
    return bucket


def test_long_suppressed_load_replays_equally():
    """A decision that counts on having seen a segment lately: of the samples that showed it, none is in the lake."""
    bucket = RecordedBucket()
    bucket.batch(NOW, layout(SegmentLayout.create(2, NOW - MINUTE), topic=NAMES[0]))
    for minute in range(30):
        bucket.batch(NOW + minute * MINUTE, stats({0: 1.0, 1: 5_000.0}, NOW + minute * MINUTE, NAMES[0]))
    assert len(bucket.table(SEGMENT_LOAD)) == 2
    bucket.batch(NOW + 30 * MINUTE, tick(1))
    assert_same(replayed(bucket.history()), *bucket.states())


def test_older_decision_ids_taken_over(monkeypatch):
    with monkeypatch.context() as older:
        older.setattr(topics, "decision_id", lambda *of, **_: decision_id(*of[:5]))
        bucket = hot()
    [row] = bucket.table(DECISIONS).to_pylist()
    open_decision = replayed(bucket.history()).state.topics[NAMES[0]].open_decision
    assert open_decision.decision_id == row["decision_id"] == decision_id(NAMES[0], 0, "split", [0], 1)


def test_equal_decision_on_recreated_topic_has_new_id():
    first, again = (SegmentLayout.create(2, created) for created in (NOW - MINUTE, NOW))
    ids = []
    for made in (first, again):
        bucket = RecordedBucket()
        bucket.batch(NOW, layout(made, topic=NAMES[0]))
        ids += [
            row["decision_id"] for row in bucket.batch(NOW + SECOND, stats({0: 9e9}, NOW, NAMES[0]), tick(1)).decisions
        ]
    assert len(set(ids)) == 2


def test_decision_without_events_refused():
    with pytest.raises(RebuildError, match=r"of topic://acme/shop/t0 at .* is of a topic without a layout"):
        replayed(hot().history(without=(EVENTS,)))


def test_decision_without_loads_refused_with_difference():
    with pytest.raises(RebuildError, match=r"decision 1 of .* another state: loads was \{0: .*50000\.0.*is now \{\}"):
        replayed(hot().history(without=(SEGMENT_LOAD,)))


def test_missing_decision_noticed_at_next_row():
    with pytest.raises(RebuildError, match=r"hold 1 of .* gate was in-flight, is now split;"):
        replayed(hot().history(without=(DECISIONS,)))


def test_changed_default_policy_is_no_difference():
    bucket = hot()
    other = '{"splitMsgRateInThreshold":70000.0,"mergeMsgRateInThreshold":2.0}'
    replay = replayed(bucket.history(), ConfiguredPolicy("default", other))
    assert of_topics(replay.state) == of_topics(bucket.states()[0])


def test_interrupted_batch_leaves_decision_only():
    """The decision is there, its event is not."""
    bucket = hot()
    before = bucket.history().next_offsets
    bucket.batch(NOW + 9 * MINUTE, outcome(open_decision(bucket), "failed", topic=NAMES[0]))
    bucket.batch(NOW + 19 * MINUTE, stats({0: 90_000.0}, NOW + 19 * MINUTE, NAMES[0]), tick(3))
    for table in (EVENTS, SEGMENT_LOAD, BATCHES):
        del bucket.tables[table.name][-1]
    history = bucket.history()
    state = replayed(history).state.topics[NAMES[0]]
    assert state.decision_seq == 2
    assert state.open_decision.decision_id == open_decision(bucket)
    assert history.times[-1] == (NOW + 19 * MINUTE, False)
    assert history.next_offsets["segment-stats"] == before["segment-stats"]


def open_decision(bucket):
    return bucket.table(DECISIONS)["decision_id"].to_pylist()[-1]


def test_empty_checkpoint_discards_earlier_rows():
    bucket = hot()
    bucket.begin_again("second")
    bucket.batch(NOW + 5 * MINUTE, layout(SegmentLayout.create(1, NOW), topic=NAMES[1]))
    bucket.batch(NOW + 6 * MINUTE, stats({0: 60_000.0}, NOW + 6 * MINUTE, NAMES[1]), tick(4))
    history = bucket.history()
    assert (history.generation, history.topics()) == ("second", [NAMES[1]])
    assert_same(replayed(history), *bucket.states())


def test_batches_ordered_as_run_despite_clock():
    bucket = RecordedBucket()
    bucket.batch(NOW, layout(SegmentLayout.create(1, NOW - MINUTE), topic=NAMES[0]), consumers(1, topic=NAMES[0]))
    bucket.batch(NOW - 5, consumers(2, topic=NAMES[0]))
    bucket.batch(NOW - 3, consumers(3, topic=NAMES[0], sub="other"), consumers(4, topic=NAMES[0]))
    replay = replayed(bucket.history())
    assert replay.state.topics[NAMES[0]].consumers == {"billing": ("STREAM", 4), "other": ("STREAM", 3)}


def test_kafka_resumed_after_last_recorded_message():
    bucket = RecordedBucket()
    bucket.batch(NOW, letter := record("consumer-events", NAMES[0], b"{"), ticked := tick(1))
    bucket.batch(NOW + 1, loaded := stats({0: 1.0}, NOW, NAMES[0]), stats({0: 1.0}, NOW, NAMES[0]))
    assert bucket.history().next_offsets == {
        "consumer-events": {0: letter.offset + 1},
        "control-events": {0: ticked.offset + 1},
        "segment-stats": {0: loaded.offset + 1},
    }


def test_used_generation_not_given_to_new_checkpoint():
    used = {rebuilt_generation("first", 0)}
    second = free_generation("first", used.__contains__)
    assert second == rebuilt_generation("first", 1)
    rows = {
        "generation": ["first", "stranger", second],
        "batch_id": [3, 7, 0],
        "batch_at": [NOW * 1000, NOW * 1000 - 5, NOW * 1000 + 9],
    }
    schema = pa.schema([("generation", pa.string()), ("batch_id", pa.int64()), ("batch_at", pa.timestamp("us"))])
    assert Batches(pa.table(rows, schema=schema)).generations == ["first", second]


def test_a_lake_without_a_row_leads_to_an_empty_state():
    history = RecordedBucket().history()
    assert (history.generation, history.topics(), list(history.of_bucket([]))) == (None, [], [])


def test_older_engine_results_taken_over(monkeypatch):
    """As one that counted an observed decision as a failure."""
    with monkeypatch.context() as older:
        older.setattr(evaluation, "ENGINE_VERSION", "1")
        older.setattr(storing, "failures_after_outcome", lambda failures, action, status, now: Failures(1, now, action))
        bucket = hot()
        bucket.batch(NOW + MINUTE, outcome(open_decision(bucket), "observed", topic=NAMES[0]), tick(1))
    bucket.batch(NOW + 20 * MINUTE, stats({0: 70_000.0}, NOW + 20 * MINUTE, NAMES[0]), tick(3))
    rows = bucket.table(DECISIONS).to_pylist()
    assert [row["engine_version"] for row in rows] == ["1", ENGINE_VERSION]
    state = replayed(bucket.history()).state.topics[NAMES[0]]
    assert (state.open_decision.decision_id, state.decision_seq) == (rows[-1]["decision_id"], 2)


def test_hot_key_known_after_rebuild():
    bucket, known, now, key = RecordedBucket(), SegmentLayout.create(1, NOW), NOW, 12_345
    bucket.batch(now, layout(known, topic=NAMES[0]))
    for _ in range(24):
        now += MINUTE
        rates = {one.segment_id: 50_000.0 if one.start <= key <= one.end else 1.0 for one in known.active}
        done = bucket.batch(now, stats(rates, now, NAMES[0]), tick(now)).decisions
        for row in done:
            segments = json.loads(row["arguments"])["segments"]
            act = known.split_segment if row["action"] == "split" else known.merge_segments
            known = act(*segments, now + SECOND)
            bucket.batch(
                now + SECOND,
                layout(known, row["action"], at=now + SECOND, topic=NAMES[0]),
                outcome(row["decision_id"], "applied", now + SECOND, NAMES[0]),
            )
    state, loads = bucket.states()
    assert state.topics[NAMES[0]].hot_keys
    assert_same(replayed(bucket.history()), state, loads)
