"""Rounds over a cluster of two brokers whose answers are written by hand."""

from __future__ import annotations

import json

import pytest

from anabranch.admin.answers import NotConnected, Response
from anabranch.admin.transport import Transport
from anabranch.collectors.bundles import BundleRounds, Unread
from schemas.bundles import BrokerLookupData
from schemas.kafka.broker_messages import BalancerPolicies, BundleOwnership, LiveBrokers, LocalBrokerReport

A, B = "127.0.0.1:8081", "127.0.0.1:8082"
NOW = 1_763_660_000_000
WHOLE = "0x00000000_0xffffffff"
CLASS = "org.apache.pulsar.broker.loadbalance.extensions.ExtensibleLoadManagerImpl"


class Brokers(Transport):
    """A cluster; `down` do not answer."""

    def __init__(self, cluster, me=A):
        self.cluster, self.me = cluster, me

    def beside(self, broker):
        return Brokers(self.cluster, broker)

    def exchange(self, method, path, query=None, body=None, headers=None):
        cluster = self.cluster
        if self.me in cluster["down"]:
            return NotConnected(method, "refused")
        answers = {
            "/admin/v2/brokers": [A, B],
            "/admin/v2/brokers/version": cluster["versions"][self.me],
            "/admin/v2/brokers/configuration/runtime": {
                "clusterName": "west",
                "loadManagerClassName": cluster.get("class", CLASS),
                "enablePersistentTopics": "true" if self.me == A else "false",
            },
            "/admin/v2/broker-stats/load-report": {"lastUpdate": NOW, "cpu": {"usage": 1.0, "limit": 100.0}},
            "/admin/v2/clusters/west/namespaceIsolationPolicies": {},
            "/admin/v2/clusters/west/failureDomains": {},
        }
        for broker in (A, B):
            owned = {f"{one}/{WHOLE}": {"is_active": True} for one in cluster["owned"][broker]}
            answers[f"/admin/v2/brokers/west/{broker}/ownedNamespaces"] = owned
        if path.endswith("/bundles"):
            namespace = path.removeprefix("/admin/v2/namespaces/").removesuffix("/bundles")
            if namespace in cluster["gone"]:
                return Response(404, "application/json", b'{"reason":"Namespace does not exist"}', path)
            answers[path] = {"boundaries": WHOLE.split("_")}
        answer = answers.get(path)
        return Response(200, "application/json", b"" if answer is None else json.dumps(answer).encode(), path)


@pytest.fixture
def cluster():
    return {"down": set(), "gone": set(), "owned": {A: ["a/x"], B: ["a/y"]}, "versions": {A: "4.0.7", B: "4.1.0-rc1"}}


def of(kind, messages):
    return [one for one in messages if isinstance(one, kind)]


def test_versions_classes_and_abilities_are_told(cluster):
    messages = BundleRounds(Brokers(cluster)).read(NOW)
    assert of(LiveBrokers, messages)[0].brokers == {
        A: BrokerLookupData(broker_version="4.0.7", load_manager_class_name=CLASS, persistent_topics_enabled=True),
        B: BrokerLookupData(broker_version="4.1.0-rc1", load_manager_class_name=CLASS, persistent_topics_enabled=False),
    }
    assert {one.namespace: one.owners for one in of(BundleOwnership, messages)} == {
        "a/x": {WHOLE: A},
        "a/y": {WHOLE: B},
    }


def test_silent_broker_alone_left_out(cluster):
    rounds = BundleRounds(Brokers(cluster))
    cluster["down"].add(B)
    messages = rounds.read(NOW)
    assert list(rounds.unread) == [B]
    assert list(of(LiveBrokers, messages)[0].brokers) == [one.broker for one in of(LocalBrokerReport, messages)] == [A]
    assert not of(BundleOwnership, messages)
    assert not of(BalancerPolicies, messages)
    cluster["down"].add(A)
    with pytest.raises(Unread):
        rounds.read(NOW)


def test_namespace_without_owners_reported_once(cluster):
    rounds = BundleRounds(Brokers(cluster))
    rounds.read(NOW)
    cluster["owned"], cluster["gone"] = {A: [], B: []}, {"a/y"}
    told = of(BundleOwnership, rounds.read(NOW + 1))
    assert {one.namespace: one.owners for one in told} == {"a/x": {WHOLE: None}, "a/y": {}}
    assert not of(BundleOwnership, rounds.read(NOW + 2))
