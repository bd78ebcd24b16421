"""Messages of the family `bundles`: what is valid, what is refused and why, and how large they may be."""

from __future__ import annotations

import json

import pytest

from schemas.kafka.broker_messages import (
    BalancerPolicies,
    BrokerLoadReport,
    BundleOwnership,
    LiveBrokers,
    LocalBrokerReport,
)
from schemas.kafka.messages import MAX_VALUE_BYTES, Rejected, key_of, parse_message
from schemas.kafka.topics import BUNDLE_TOPICS, KAFKA_TOPICS

AT = 1_763_660_000_000
BUNDLE = "acme/shop/0x00000000_0x40000000"
STATS = {"msgRateIn": 5.0, "msgThroughputIn": 500.0, "topics": 3, "cacheSize": 0, "producerCount": 1}
LOCAL = {
    "v": 1,
    "type": "local-broker-data",
    "cluster": "west",
    "broker": "broker-1:8080",
    "at": AT,
    "data": {"cpu": {"usage": 20.0, "limit": 100.0}, "lastUpdate": AT, "lastStats": {BUNDLE: STATS}},
}
LOAD = {
    "v": 1,
    "type": "broker-load-data",
    "cluster": "west",
    "broker": "broker-1:8080",
    "at": AT,
    "data": {"cpu": {"usage": 20.0, "limit": 100.0}, "updatedAt": AT},
    "topBundles": {"topBundlesLoadData": [{"bundleName": BUNDLE, "stats": STATS}]},
}
OWNERSHIP = {
    "v": 1,
    "type": "ownership",
    "cluster": "west",
    "namespace": "acme/shop",
    "at": AT,
    "owners": {"0x00000000_0x40000000": "broker-1:8080", "0x40000000_0xffffffff": None},
}
BROKERS = {"v": 1, "type": "brokers", "cluster": "west", "brokers": {"broker-1:8080": {}}, "at": AT}
POLICIES = {
    "v": 1,
    "type": "policies",
    "cluster": "west",
    "profile": "5.0",
    "at": AT,
    "configuration": {"loadBalancerBrokerOverloadedThresholdPercentage": 70, "failureDomainsEnabled": "true"},
    "antiAffinityGroups": {"acme/shop": "g"},
    "failureDomains": {"rack": {"brokers": ["broker-1:8080"]}},
    "isolationPolicies": {"p": {"namespaces": ["acme/.*"], "primary": ["broker-.*"]}},
}
VALID = [
    ("broker-load", LOCAL, LocalBrokerReport),
    ("broker-load", LOAD, BrokerLoadReport),
    ("broker-events", OWNERSHIP, BundleOwnership),
    ("broker-events", BROKERS, LiveBrokers),
    ("broker-events", POLICIES, BalancerPolicies),
]


def parsed(source, body, key=b"west"):
    return parse_message(source, key, body if isinstance(body, bytes) else json.dumps(body).encode())


@pytest.mark.parametrize(("source", "body", "model"), VALID)
def test_valid_message_keyed_by_its_cluster(source, body, model):
    message = parsed(source, body)
    assert isinstance(message, model)
    assert key_of(message) == "west"
    assert parsed(source, message.to_json().encode()) == message
    assert parsed(source, body | {"unknown": [1]}) == message


def test_reports_differ_by_broker_and_instant():
    for body in (LOCAL, LOAD):
        message = parsed("broker-load", body)
        assert (message.broker, message.last_update) == ("broker-1:8080", AT)


@pytest.mark.parametrize(
    ("changed", "place"),
    [
        ({"profile": "1.0"}, "profile"),
        ({"configuration": {"a": {"b": 1}}}, "configuration.a"),
        ({"isolationPolicies": {"gold": {"namespaces": 5}}}, "isolationPolicies.gold.namespaces"),
    ],
)
def test_unreadable_policies_replace_older_ones(changed, place):
    found = parsed("broker-events", POLICIES | changed, b"west")
    assert (found.cluster, found.at, found.configuration) == ("west", AT, {})
    assert found.unreadable.startswith(place)
    assert parsed("broker-events", found.to_json().encode(), b"west") == found


@pytest.mark.parametrize(
    ("source", "body", "key", "reason"),
    [
        ("broker-load", LOCAL, b"east", "wrong-key"),
        ("broker-load", LOCAL, None, "wrong-key"),
        ("broker-load", LOCAL | {"v": 2}, b"west", "unknown-version"),
        ("broker-load", LOCAL | {"type": "ownership"}, b"west", "unknown-type"),
        ("broker-load", LOCAL | {"cluster": "we/st"}, b"we/st", "invalid"),
        ("broker-load", LOCAL | {"cluster": "*"}, b"*", "invalid"),
        ("broker-load", LOCAL | {"data": {"cpu": {"usage": 1.0}}}, b"west", "invalid"),
        ("broker-load", LOAD | {"data": {"cpu": {"usage": 1.0}}}, b"west", "invalid"),
        ("broker-load", LOCAL | {"data": {"lastUpdate": AT, "msgRateIn": -1.0}}, b"west", "invalid"),
        ("broker-load", b'{"v":1,"type":"local-broker-data","data":{"msgRateIn":NaN}}', b"west", "invalid"),
        ("broker-load", b"\xff\x00", b"west", "not-json"),
        ("broker-events", OWNERSHIP | {"owners": {"all of it": "b"}}, b"west", "invalid"),
        ("broker-events", POLICIES | {"at": None, "profile": "1.0"}, b"west", "invalid"),
        ("broker-events", BROKERS | {"brokers": ["broker-1:8080"]}, b"west", "invalid"),
    ],
)
def test_what_is_refused_says_why(source, body, key, reason):
    found = parsed(source, body, key)
    assert isinstance(found, Rejected)
    assert found.reason.value == reason


def test_report_limit_is_a_mebibyte():
    """A report of a broker with four thousand bundles fits."""
    stats = STATS | {"msgRateOut": 123456.789, "msgThroughputOut": 123456789.123, "consumerCount": 100}
    many = {f"acme/shop/0x{number:08x}_0x{number + 1:08x}": stats for number in range(4000)}
    body = LOCAL | {"data": {"lastUpdate": AT, "lastStats": many}}
    value = json.dumps(body, separators=(",", ":")).encode()
    assert len(value) < MAX_VALUE_BYTES
    assert len(parsed("broker-load", value).data.last_stats) == 4000
    assert parsed("broker-load", value + b" " * MAX_VALUE_BYTES).reason.value == "too-large"


def test_three_topics_suffice_without_family():
    assert [topic.name for topic in KAFKA_TOPICS] == ["segment-stats", "consumer-events", "control-events"]
    assert [topic.name for topic in BUNDLE_TOPICS] == ["broker-load", "broker-events"]
