"""State of older releases is read: of the one before lives and reporters were told apart (topics of version 3, loads of
version 2), and of the one before topics were stored in MessagePack (topics of version 4)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from engine.autoscale.loads_codec import LOADS_VERSION
from engine.autoscale.topics import PolicySender, TopicEnd
from engine.autoscale.topics_codec import STATE_VERSION
from engine.kernel.packed import Packed, StoredPart
from engine.kernel.records import RawRecord
from tests.engine.buckets import Bucket, loads_of, topics_of
from tests.engine.records import TOPIC, consumers, of_life, outcome, sent_by, stats, tick
from tests.engine.test_engine import MINUTE, NOW, SECOND

GONE = "topic://acme/shop/gone"


def older():
    """The stored bucket, and the id of its topic's failed decision."""
    stored = json.loads((Path(__file__).parent / "state_v3.json").read_text())
    bucket = Bucket()
    bucket.packed = packed_of(stored)
    return bucket, stored["decisionId"]


def packed_of(stored):
    parts = {
        name: StoredPart(bytes.fromhex(part["base"]), [bytes.fromhex(entry) for entry in part["log"]])
        for name, part in stored["parts"].items()
    }
    return Packed(bytes.fromhex(stored["fence"]), parts)


def test_what_an_older_release_stored_is_known():
    bucket, _ = older()
    known = topics_of(bucket.packed)
    topic = known.topics[TOPIC]
    assert (topic.failures.in_a_row, topic.consumers, topic.hold_gate) == (
        1,
        {"billing": ("STREAM", 2)},
        "retry-backoff",
    )
    assert (topic.created_at, topic.since, topic.observed_at) == (None, 0, None)
    assert known.ended == {GONE: TopicEnd(0, None, 6, None)}
    assert known.policy_senders["acme/bar"] == PolicySender(7, 0)
    load = loads_of(bucket.packed).loads_of(TOPIC)[0]
    assert (load.msg_rate_in, load.seen_at) == (50_000.0, NOW + 3 * SECOND)


def test_it_is_gone_on_with_and_stored_in_todays_form():
    bucket, failed = older()
    late = sent_by(5, consumers(3, topic=GONE))
    at = NOW + 10 * MINUTE
    output = bucket.batch(at, late, stats({0: 52_000.0, 1: 700.0}, at), outcome(failed, "applied"), tick(3))
    assert [row["seq"] for row in output.decisions] == [2]
    assert GONE not in topics_of(bucket.packed).topics
    for name, newest in (("topics", STATE_VERSION), ("loads", LOADS_VERSION)):
        part = bucket.packed.parts[name]
        assert [part.base, *part.log][-1][0] == newest
    bucket.restart()
    bucket.batch(at + SECOND, of_life(NOW - MINUTE, consumers(2)))
    assert topics_of(bucket.packed).topics[TOPIC].consumers == {"billing": ("STREAM", 2)}


def test_topics_stored_as_json_match_announcements():
    stored = json.loads((Path(__file__).parent / "state_v4.json").read_text())
    again = Bucket()
    for now, records in stored["batches"]:
        values = [(source, key.encode(), value.encode(), offset) for source, key, value, offset in records]
        again.batch(now, *(RawRecord(s, key, v, len(v), 0, offset, 0, True) for s, key, v, offset in values))
    then, now = topics_of(packed_of(stored)), topics_of(again.packed)
    for topic in now.topics.values():
        # What older releases did not keep.
        topic.due = then.topics[topic.name].due
        topic.attempt_of, topic.attempted = then.topics[topic.name].attempt_of, {}
        topic.pasts = {}
        topic.set_open([replace(one, segments=()) for one in topic.all_open])
    assert then.topics == now.topics
    assert {name for name, topic in then.topics.items() if topic.open_decision} == {TOPIC}
    assert (then.ended, then.policy_senders, then.namespace_policies, then.without_layout) == (
        now.ended,
        now.policy_senders,
        now.namespace_policies,
        now.without_layout,
    )
