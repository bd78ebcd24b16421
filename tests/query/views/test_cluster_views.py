"""The views of clusters with bundles against a count by hand, and the rules that ship on what the job has written."""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import datetime, timedelta, timezone
from statistics import pstdev

import pytest

from anabranch.alerts.asking import Asking
from anabranch.alerts.rules import read_rules
from anabranch.query.sql import LakeSql
from schemas.tables.rows import DECISIONS, EVENTS
from tests.alerts.test_rules import SHIPPED

pytestmark = pytest.mark.xdist_group("views")

DAY = datetime(2026, 11, 22, tzinfo=timezone.utc)


@pytest.fixture(scope="session")
def ask(lake_of_clusters):
    """A question, and its rows."""
    questions = LakeSql(lake_of_clusters)
    return lambda sql: questions.rows(sql, is_own=True)


@pytest.fixture(scope="module")
def usages(cluster_story):
    """CPU by minute and broker, as the reports have it."""
    found = defaultdict(dict)
    for row in cluster_story.bucket.table(EVENTS).to_pylist():
        if row["type"] == "local-broker-data":
            body = json.loads(row["body"])
            minute = row["accepted_at"].replace(second=0, microsecond=0)
            found[minute][body["broker"]] = body["data"]["cpu"]["usage"] / 100
    return found


def test_decision_is_move_with_brokers_and_outcome(cluster_story, ask):
    ends = {one["decision_id"]: one for one in cluster_story.outcomes if one["status"] != "intent"}
    expected = []
    for row in sorted(cluster_story.bucket.table(DECISIONS).to_pylist(), key=lambda row: row["seq"]):
        arguments, end = json.loads(row["arguments"]), ends[row["decision_id"]]
        owner = json.loads(end["seen"])["owner"]
        expected.append(
            (
                row["action"],
                arguments["bundle"],
                arguments["sourceBroker"],
                arguments.get("destinationBroker"),
                end["status"],
                owner,
                end["error"],
            )
        )
    found = ask("SELECT action, bundle, source, destination, status, owner, error FROM bundle_moves ORDER BY seq")
    assert [tuple(row.values()) for row in found] == expected


def test_bundle_moved_back_within_hour_returns(ask):
    moves = ask("SELECT * FROM bundle_moves WHERE status = 'applied'")
    expected = sorted(
        (a["decision_id"], b["decision_id"])
        for a in moves
        for b in moves
        if a["bundle"] == b["bundle"]
        and a["source"] == b["destination"]
        and timedelta(0) < b["ended_at"] - a["ended_at"] <= timedelta(hours=1)
    )
    assert expected
    found = ask("SELECT decision_id, undone_by FROM bundle_returns")
    assert sorted(tuple(row.values()) for row in found) == expected


def test_usage_and_balance_are_those_of_the_reports(ask, usages):
    found = ask("SELECT broker, date_trunc('minute', accepted_at) AS minute, usage, bundles FROM broker_usage")
    assert {(row["minute"], row["broker"]): row["usage"] for row in found} == {
        (minute, broker): pytest.approx(usage) for minute, of in usages.items() for broker, usage in of.items()
    }
    assert {row["bundles"] for row in found} <= set(range(13))
    balance = {row["minute"]: row for row in ask("SELECT * FROM broker_balance")}
    for minute, of_minute in usages.items():
        values, row = list(of_minute.values()), balance[minute]
        mean = sum(values) / len(values)
        assert (row["brokers"], row["over"]) == (len(values), sum(one > 0.85 for one in values))
        assert row["idle"] == sum(one < mean / 4 for one in values)
        assert row["deviation"] == pytest.approx(pstdev(values))
        assert row["highest_by_mean"] == pytest.approx(max(values) / mean)


@pytest.mark.parametrize(
    ("rule", "at", "said"),
    [
        ("BrokerIdle", "13:05", [{"cluster": "west", "broker": "broker-3:8080"}]),
        ("BrokerIdle", "12:30", []),
        ("BundlePingPong", "14:55", [{"cluster": "west", "bundle": "acme/shop/0x00000000_0x00000010"}]),
        ("BundlePingPong", "14:20", []),
        ("ClusterUnheard", "15:30", [{"cluster": "west"}]),
        ("ClusterUnheard", "14:30", []),
        ("BundlesNotMoved", "13:00", []),
        ("AppliedNotObserved", "14:50", []),
    ],
)
def test_shipped_rule_describes_cluster_events(lake_of_clusters, rule, at, said):
    hour, minute = map(int, at.split(":"))
    asking = Asking(lake_of_clusters, DAY + timedelta(hours=hour, minutes=minute))
    assert [dict(one.labels) for one in asking.matches(read_rules(SHIPPED).rule(rule))] == said


def test_misplaced_moves_reported_when_many(lake_of_clusters):
    rule = read_rules(SHIPPED).rule("BundlesNotMoved")
    many = rule.model_copy(update={"above": 1.0})
    (found,) = Asking(lake_of_clusters, DAY + timedelta(hours=13)).matches(many)
    assert (dict(found.labels), found.value) == ({"cluster": "west"}, 2.0)


@pytest.mark.parametrize("at", ["12:44", "13:05", "13:44", "14:30"])
def test_broker_over_limit_reported_unless_relieved(lake_of_clusters, ask, usages, at):
    hour, minute = map(int, at.split(":"))
    now, limit = DAY + timedelta(hours=hour, minutes=minute), 0.2
    since = now - timedelta(minutes=20)
    lowest = defaultdict(list)
    for when, of in usages.items():
        for broker, usage in of.items():
            if since < when <= now:
                lowest[broker].append(usage)
    relieved = {row["source"] for row in ask("SELECT * FROM bundle_moves") if since < row["decided_at"] <= now}
    over = {broker for broker, values in lowest.items() if min(values) > limit}
    assert over - relieved, "somebody is told"
    assert at != "13:05" or over & relieved, "and somebody is not"
    rule = read_rules(SHIPPED).rule("OverloadNotRelieved").model_copy(update={"above": limit})
    found = {dict(one.labels)["broker"]: one.value for one in Asking(lake_of_clusters, now).matches(rule)}
    assert found == {broker: pytest.approx(min(lowest[broker])) for broker in over - relieved}
