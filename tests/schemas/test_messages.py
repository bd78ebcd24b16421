"""Raw bytes to messages: every kind of bad message is refused with its reason, and none raises."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.kafka.messages import (
    MAX_VALUE_BYTES,
    ConsumerEvent,
    LayoutEvent,
    OutcomeEvent,
    PolicyEvent,
    Rejected,
    RejectReason,
    SegmentStats,
    TickEvent,
    key_of,
    parse_message,
)

TOPIC = "topic://acme/shop/orders"
SAMPLE = {"id": 3, "msgRateIn": 12000.0, "bytesRateIn": 64e6, "msgRateOut": 48000, "bytesRateOut": 256e6}
STATS = {"v": 1, "topic": TOPIC, "reporter": "broker-3", "sampledAt": 1763660000000, "segments": [SAMPLE]}
CONSUMER = {
    "v": 1,
    "topic": TOPIC,
    "subscription": "billing",
    "type": "STREAM",
    "event": "registered",
    "consumer": "billing-7f",
    "consumers": 3,
    "at": 1763660000000,
}
SEGMENT = {"segmentId": 0, "hashRange": {"start": 0, "end": 65535}, "state": "ACTIVE"}
LAYOUT = {"epoch": 0, "nextSegmentId": 1, "segments": {"0": SEGMENT}, "properties": {}}
CONTROL = {
    "layout": {
        "v": 1,
        "type": "layout",
        "topic": TOPIC,
        "cause": "created",
        "decisionId": None,
        "layout": LAYOUT,
        "at": 1,
    },
    "cluster": {"v": 1, "type": "policy", "scope": "cluster", "policy": {"maxSegments": 8}, "at": 1},
    "namespace": {"v": 1, "type": "policy", "scope": "namespace", "name": "acme/shop", "policy": None, "at": 1},
    "tick": {"v": 1, "type": "tick", "at": 1},
    "outcome": {
        "v": 1,
        "type": "outcome",
        "decisionId": "d",
        "topic": TOPIC,
        "status": "applied",
        "error": None,
        "at": 1,
    },
}


LIVING = [("consumer-events", CONSUMER), ("control-events", CONTROL["layout"])]
"""Messages that say which life of the topic they are about."""


def parse(source, body, key=TOPIC):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return parse_message(source, None if key is None else key.encode(), raw)


@pytest.mark.parametrize(
    ("source", "body", "kind", "key"),
    [
        ("segment-stats", STATS, SegmentStats, TOPIC),
        ("consumer-events", CONSUMER, ConsumerEvent, TOPIC),
        ("control-events", CONTROL["layout"], LayoutEvent, TOPIC),
        ("control-events", CONTROL["cluster"], PolicyEvent, "*"),
        ("control-events", CONTROL["namespace"], PolicyEvent, "*"),
        ("control-events", CONTROL["tick"], TickEvent, "*"),
        ("control-events", CONTROL["outcome"], OutcomeEvent, TOPIC),
    ],
)
def test_valid_message_round_trips(source, body, kind, key):
    message = parse(source, body, key)
    assert isinstance(message, kind)
    assert key_of(message) == key
    assert parse(source, message.to_json().encode(), key) == message


def test_family_outcome_keyed_by_subject():
    bundle = "acme/shop/0x00000000_0x40000000"
    body = {**CONTROL["outcome"], "family": "bundles", "topic": bundle}
    message = parse("control-events", body, bundle)
    assert (message.family, key_of(message)) == ("bundles", bundle)
    assert json.loads(message.to_json()) == {name: value for name, value in body.items() if value is not None}


def test_outcome_says_absent_only_if_it_is():
    older = parse("control-events", CONTROL["outcome"])
    newer = parse("control-events", {**CONTROL["outcome"], "status": "superseded", "absent": True})
    assert (older.absent, newer.absent) == (False, True)
    assert "absent" not in older.to_json()
    assert json.loads(newer.to_json())["absent"] is True


def test_topic_outcome_names_topic_without_family():
    assert "family" not in parse("control-events", CONTROL["outcome"]).to_json()
    refused = parse("control-events", {**CONTROL["outcome"], "topic": "acme/shop"}, "acme/shop")
    assert refused == Rejected(RejectReason.INVALID, "outcome: Value error, topic is not topic://tenant/namespace/name")


def test_unknown_fields_are_ignored():
    assert parse("segment-stats", {**STATS, "new": {"a": 1}}) == parse("segment-stats", STATS)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", RejectReason.NOT_JSON),
        (b"{", RejectReason.NOT_JSON),
        (b"\x00\xff\xfe garbage", RejectReason.NOT_JSON),
        (json.dumps(STATS).encode() + b" trailing", RejectReason.NOT_JSON),
        (b"[" * 200_000, RejectReason.NOT_JSON),
        (b"null", RejectReason.INVALID),
        (b"[]", RejectReason.INVALID),
        (b'"text"', RejectReason.INVALID),
        (json.dumps({**STATS, "v": 3}).encode(), RejectReason.UNKNOWN_VERSION),
        (json.dumps({k: v for k, v in STATS.items() if k != "v"}).encode(), RejectReason.UNKNOWN_VERSION),
        (json.dumps({**STATS, "topic": "persistent://a/b/c"}).encode(), RejectReason.INVALID),
        (json.dumps({**STATS, "sampledAt": "soon"}).encode(), RejectReason.INVALID),
        (json.dumps({**STATS, "sampledAt": -1}).encode(), RejectReason.INVALID),
        (json.dumps({**STATS, "sampledAt": 1.5}).encode(), RejectReason.INVALID),
        (json.dumps({**STATS, "segments": [SAMPLE, SAMPLE]}).encode(), RejectReason.INVALID),
        (json.dumps({**STATS, "segments": [{**SAMPLE, "msgRateIn": float("nan")}]}).encode(), RejectReason.INVALID),
        (json.dumps({**STATS, "segments": [{**SAMPLE, "msgRateIn": "NaN"}]}).encode(), RejectReason.INVALID),
        (json.dumps({**STATS, "segments": [{**SAMPLE, "msgRateIn": -1}]}).encode(), RejectReason.INVALID),
        (json.dumps({**STATS, "segments": [{**SAMPLE, "msgRateIn": None}]}).encode(), RejectReason.INVALID),
        (json.dumps({**STATS, "segments": [{**SAMPLE, "id": 2**64}]}).encode(), RejectReason.INVALID),
        (json.dumps({**STATS, "segments": [{**SAMPLE, "id": 1.5}]}).encode(), RejectReason.INVALID),
        (json.dumps({**STATS, "segments": [{"id": 1}]}).encode(), RejectReason.INVALID),
        (json.dumps(STATS).replace("12000.0", "1e400").encode(), RejectReason.INVALID),
        (b" " * (MAX_VALUE_BYTES + 1), RejectReason.TOO_LARGE),
    ],
)
def test_a_bad_sample_is_refused_with_its_reason(value, reason):
    rejected = parse("segment-stats", value)
    assert isinstance(rejected, Rejected)
    assert rejected.reason is reason
    assert rejected.detail


def test_message_of_many_faults_refused_briefly():
    of_a_list = parse("segment-stats", {**STATS, "segments": [{}] * 60_000})
    assert (of_a_list.reason, of_a_list.detail) == (RejectReason.INVALID, "segments.0.id: Field required")
    faults = {"epoch": 1, "nextSegmentId": 1, "segments": {}, "properties": dict.fromkeys(map(str, range(2000)), 1)}
    event = {"v": 1, "type": "layout", "topic": TOPIC, "cause": "created", "at": 1, "layout": faults}
    assert parse("control-events", event) == Rejected(RejectReason.INVALID, "2000 faults")


def test_the_last_of_a_repeated_json_key_counts():
    twice = json.dumps(STATS).replace('"reporter"', '"reporter": "other", "reporter"').encode()
    assert parse("segment-stats", twice).reporter == "broker-3"


def test_an_unknown_type_of_control_event_is_refused():
    assert parse("control-events", {"v": 1, "type": "rebucket", "at": 1}, "*").reason is RejectReason.UNKNOWN_TYPE


@pytest.mark.parametrize("key", [None, "", "*", "topic://acme/shop/other"])
def test_a_key_that_is_not_the_topic_is_refused(key):
    assert parse("segment-stats", STATS, key).reason is RejectReason.WRONG_KEY


def test_a_record_without_a_value_is_refused():
    assert parse_message("segment-stats", TOPIC.encode(), None).reason is RejectReason.NO_VALUE


def test_truncated_value_refused_by_whole_size():
    assert parse_message("segment-stats", b"k", b"{}", size=10_000_000).reason is RejectReason.TOO_LARGE


@pytest.mark.parametrize("body", [CONTROL["cluster"] | {"name": "a/b"}, CONTROL["namespace"] | {"name": None}])
def test_policy_name_must_fit_scope(body):
    assert parse("control-events", body, "*").reason is RejectReason.INVALID


@given(
    source=st.sampled_from(["segment-stats", "consumer-events", "control-events"]),
    key=st.one_of(st.none(), st.binary(max_size=40)),
    value=st.one_of(st.none(), st.binary(max_size=200)),
)
def test_no_bytes_make_the_parser_raise(source, key, value):
    assert isinstance(parse_message(source, key, value), Rejected)


@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=10)),
        lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
        max_leaves=12,
    ),
    st.sampled_from(sorted(STATS)),
)
def test_no_json_in_a_field_makes_the_parser_raise(junk, field):
    answer = parse("segment-stats", {**STATS, field: junk})
    assert isinstance(answer, (Rejected, SegmentStats))


@pytest.mark.parametrize(("source", "body"), LIVING)
def test_topic_incarnation_is_optional(source, body):
    message = parse(source, {**body, "topicCreatedAt": 1763650000000})
    assert message.topic_created_at == 1763650000000
    assert json.loads(message.to_json())["topicCreatedAt"] == 1763650000000
    assert "topicCreatedAt" not in parse(source, body).to_json()
    assert isinstance(parse(source, {**body, "topicCreatedAt": "yesterday"}), Rejected)
