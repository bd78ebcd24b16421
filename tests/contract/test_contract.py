"""One contract, two servers: what our controller answers to the admin calls, a real Pulsar 5.0.0-M1 answers too.

What differs is in docs/pulsar.md, which these tests read.
"""

from __future__ import annotations

from random import Random

import pytest

from anabranch.admin.answers import Answered, Refused
from schemas.metadata import AutoScalePolicyOverride
from tests.contract.calls import CALLS
from tests.contract.differences import differences
from tests.contract.servers import Server, done
from tests.waiting import wait_until

pytestmark = pytest.mark.pulsar


def expected(server: Server, call: str) -> int:
    """The status of a call at a server."""
    known = differences("Calls that differ").get(call)
    return int(known.pulsar) if known and server.kind == "pulsar" else CALLS[call].status


def check(server: Server, what: str, observed: str, usual: str) -> None:
    """Compares a behaviour with the table of behaviours, which names those that are not as usual."""
    known = differences("Behaviour that differs").get(what)
    assert observed == (getattr(known, server.kind) if known else usual), what


@pytest.mark.parametrize("call", CALLS)
def test_calls_keep_status_and_refusals_no_effect(server: Server, call: str) -> None:
    topic, policy = f"topic://{server.namespace}/t", f"/scalable/{server.namespace}/p/autoScalePolicy"
    before = server.layout(topic), server.http.get(policy).content
    request = CALLS[call]
    answer = server.http.request(
        request.verb,
        request.path.format(ns=server.namespace),
        content=request.body,
        headers={"Content-Type": "application/json"},
    )
    assert answer.status_code == expected(server, call), answer.text[:300]
    if answer.status_code >= 400:
        assert (server.layout(topic), server.http.get(policy).content) == before
        assert isinstance(server.topics.layout(f"topic://{server.namespace}/n"), Refused)


def segment(number, start, end, parents=(), children=(), made=0, sealed=-1):
    """The record of a segment, without instants."""
    return {
        "segmentId": number,
        "hashRange": {"start": start, "end": end},
        "state": "ACTIVE" if sealed < 0 else "SEALED",
        "parentIds": list(parents),
        "childIds": list(children),
        "createdAtEpoch": made,
        "sealedAtEpoch": sealed,
        "sealed": sealed >= 0,
        "active": sealed < 0,
        "root": not parents,
        "leaf": not children,
        "legacy": False,
    }


def test_topic_lifecycle_can_be_repeated(server: Server) -> None:
    topics, topic = server.topics, server.name()
    assert topics.create_topic(topic, 2, {"owner": "me", "of": topic}) == Answered(None)
    assert server.layout(topic) == {
        "epoch": 0,
        "nextSegmentId": 2,
        "properties": {"owner": "me", "of": topic},
        "segments": {"0": segment(0, 0, 32767), "1": segment(1, 32768, 65535)},
    }
    assert topics.list_topics(server.namespace, ["owner=me", f"of={topic}"]) == Answered([topic])
    assert topics.list_topics(server.namespace, ["owner=you", f"of={topic}"]) == Answered([])
    assert topics.split_segment(topic, 0, "d1") == Answered(None)
    assert topics.merge_segments(topic, 1, 3, "d2") == Answered(None)
    assert server.layout(topic) == {
        "epoch": 2,
        "nextSegmentId": 5,
        "properties": {"owner": "me", "of": topic},
        "segments": {
            "0": segment(0, 0, 32767, children=(2, 3), sealed=1),
            "1": segment(1, 32768, 65535, children=(4,), sealed=2),
            "2": segment(2, 0, 16383, parents=(0,), made=1),
            "3": segment(3, 16384, 32767, parents=(0,), children=(4,), made=1, sealed=2),
            "4": segment(4, 16384, 65535, parents=(1, 3), made=2),
        },
    }
    stats = done(topics.stats(topic))
    name = topic.replace("topic://", "segment://")
    assert stats["segments"]["4"] == {"name": f"{name}/4000-ffff-4", "state": "ACTIVE"}
    counts = [stats[field] for field in ("epoch", "totalSegments", "activeSegments", "sealedSegments")]
    assert counts == [2, 5, 2, 3]
    assert topics.delete_topic(topic) == Answered(None)
    assert isinstance(topics.layout(topic), Refused)
    listed = topic in done(topics.list_topics(server.namespace))
    check(server, "a deleted topic is still listed", "yes" if listed else "no", "no")
    assert topics.create_topic(topic, 1, {}) == Answered(None)
    assert server.layout(topic)["segments"] == {"0": segment(0, 0, 65535)}
    again = topics.split_segment(topic, 0) == Answered(None)
    check(server, "a topic that was split, deleted and created again can be split", "yes" if again else "no", "yes")


def test_split_for_a_layout_acts_on_that_layout(server: Server) -> None:
    topics, topic = server.topics, server.name()
    assert topics.create_topic(topic, 2, {}) == Answered(None)
    seen = done(topics.layout(topic))
    assert topics.split_segment(topic, 0, "d1", seen) == Answered(None)
    is_done = topics.split_segment(topic, 1, "d2", seen) == Answered(None)
    check(server, "a split is carried out that is meant for an older layout", "yes" if is_done else "no", "no")
    assert server.layout(topic)["epoch"] == 1 + is_done


def test_random_changes_give_equal_layouts(ours: Server, pulsars: Server) -> None:
    rng, servers = Random(483), (ours, pulsars)
    topics = [server.name() for server in servers]
    for server, topic in zip(servers, topics, strict=True):
        done(server.topics.create_topic(topic, 3, {}))
    answered = 0
    for _ in range(40):
        known = [int(number) for number in ours.layout(topics[0])["segments"]]
        active = [each.segment_id for each in done(ours.topics.layout(topics[0])).active]
        if rng.random() < 0.4:
            chosen = (rng.choice(known if rng.random() < 0.3 else active),)
        else:
            at = rng.randrange(max(1, len(active) - 1))
            chosen = tuple(rng.sample((active[at : at + 2] * 2)[:2] if rng.random() < 0.7 else known * 2, 2))
        replies = [
            server.topics.split_segment(topic, *chosen)
            if len(chosen) == 1
            else server.topics.merge_segments(topic, *chosen)
            for server, topic in zip(servers, topics, strict=True)
        ]
        assert type(replies[0]) is type(replies[1]), (chosen, replies)
        assert ours.layout(topics[0]) == pulsars.layout(topics[1])
        answered += isinstance(replies[0], Answered)
    assert 5 < answered < 40


def test_a_policy_is_set_kept_by_a_split_and_removed(server: Server) -> None:
    topics, topic = server.topics, server.name()
    done(topics.create_topic(topic, 1, {}))
    assert topics.policy(topic) == Answered(None)
    policy = AutoScalePolicyOverride(enabled=True, max_segments=8, split_msg_rate_in_threshold=5000)
    assert topics.set_policy(topic, policy) == Answered(None)
    assert topics.split_segment(topic, 0) == Answered(None)
    stored = {"enabled": True, "maxSegments": 8, "splitMsgRateInThreshold": 5000.0}
    assert topics.policy(topic) == Answered(stored)
    assert server.layout(topic)["autoScalePolicy"] == stored
    for _ in range(2):
        assert topics.remove_policy(topic) == Answered(None)
    assert topics.policy(topic) == Answered(None)


def test_topic_policy_checked_against_namespace(server: Server) -> None:
    topics, topic, namespace = server.topics, server.name(), server.namespace
    done(topics.create_topic(topic, 1, {}))
    below = AutoScalePolicyOverride(split_msg_rate_in_threshold=2000)
    assert topics.set_policy(namespace, AutoScalePolicyOverride(merge_msg_rate_in_threshold=5000)) == Answered(None)
    try:
        assert topics.policy(namespace) == Answered({"mergeMsgRateInThreshold": 5000.0})
        refused = topics.set_policy(topic, below)
        assert isinstance(refused, Refused)
        assert (refused.status, refused.from_interface) == (412, True)
        assert "mergeMsgRateInThreshold" in refused.reason
    finally:
        assert topics.remove_policy(namespace) == Answered(None)
    assert wait_until(lambda: topics.policy(namespace) == Answered(None))
    assert topics.set_policy(topic, below) == Answered(None)


def test_impossible_call_refused_in_one_line(server: Server) -> None:
    topics, topic = server.topics, f"topic://{server.namespace}/t"
    for refused in (
        topics.split_segment(topic, 0),
        topics.split_segment(topic, 99),
        topics.split_segment(f"topic://{server.namespace}/w", 31),
        topics.merge_segments(topic, 1, 2),
        topics.merge_segments(topic, 2, 2),
        topics.merge_segments(topic, 2, 99),
        topics.create_topic(topic, 1, {}),
    ):
        assert isinstance(refused, Refused)
        assert refused.from_interface
        assert 10 < len(refused.reason) < 100
        assert "Exception" not in refused.reason


@pytest.mark.parametrize("name", ["a%20b", "ü+&=:,", "~tilde!$'()*@"])
def test_topic_found_by_listed_name(server: Server, name: str) -> None:
    made = server.http.put(f"/scalable/{server.namespace}/{name}")
    assert made.status_code == 204, made.text[:200]
    [listed] = [one for one in done(server.topics.list_topics(server.namespace)) if one[-2:] == name[-2:]]
    assert server.topics.split_segment(listed, 0) == Answered(None)
    assert server.layout(listed)["epoch"] == 1


def test_what_follows_a_semicolon_belongs_to_the_name(server: Server) -> None:
    assert server.http.put(f"/scalable/{server.namespace}/left;right").status_code == 204
    listed = [one.rpartition("/")[2] for one in done(server.topics.list_topics(server.namespace))]
    [named] = [one for one in listed if one.startswith("left")]
    check(server, "the name of a topic created at the path left;right", named, "left;right")


def test_subscriptions_counted_until_deleted(server: Server) -> None:
    topic = server.name()
    path = f"/scalable/{topic.removeprefix('topic://')}/subscriptions"
    done(server.topics.create_topic(topic, 1, {}))
    for subscription in ("s?type=STREAM", "q?type=QUEUE"):
        assert server.http.put(f"{path}/{subscription}").status_code == 204
    assert done(server.topics.stats(topic))["subscriptions"] == {"q": {"consumerCount": 0}, "s": {"consumerCount": 0}}
    assert server.http.delete(f"{path}/q").status_code == 204
    assert done(server.topics.stats(topic))["subscriptions"] == {"s": {"consumerCount": 0}}
