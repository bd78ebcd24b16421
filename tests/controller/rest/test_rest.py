"""The admin REST interface against what a real Pulsar 5.0.0-M1 answered, and right answers where Pulsar's are wrong.

Long, as it goes through Pulsar's calls one after the other.
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from schemas.kafka.messages import ConsumerEvent, LayoutEvent, Message, PolicyEvent
from schemas.metadata import ScalableTopicMetadata
from tests.controller.conftest import RunningController
from tests.examples import only_first

JSON = {"Content-Type": "application/json"}


class Topics:
    """Calls on the topics of one namespace."""

    def __init__(self, controller: RunningController, namespace: str) -> None:
        self.namespace = namespace
        self.controller = controller
        self.base = f"/admin/v2/scalable/{namespace}"

    def call(self, verb: str, path: str, **more: Any) -> httpx.Response:
        answer = self.controller.client.request(verb, f"{self.base}{path}", **more)
        if answer.status_code >= 400:
            assert set(answer.json()) == {"reason"}
            assert "Traceback" not in answer.text
        if answer.status_code == 204:
            assert "content-type" not in answer.headers
        return answer

    def layout(self, topic: str) -> ScalableTopicMetadata:
        return ScalableTopicMetadata.model_validate_json(self.call("GET", f"/{topic}").content)

    def active(self, topic: str) -> dict[int, tuple[int, int]]:
        return {
            id: (segment.hash_range.start, segment.hash_range.end)
            for id, segment in self.layout(topic).segments.items()
            if segment.state == "ACTIVE"
        }

    def announced(self, topic: str) -> list[Message]:
        return self.controller.announced(f"topic://{self.namespace}/{topic}")


@pytest.fixture
def topics(controller: RunningController, namespace: str) -> Topics:
    return Topics(controller, namespace)


def outcome(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["reason"] if answer.content else ""


def test_create_list_and_get_as_pulsar(topics: Topics) -> None:
    name = f"topic://{topics.namespace}"
    assert topics.call("GET", "").json() == []
    assert topics.call("PUT", "/t1?numInitialSegments=2", json={"owner": "me"}).status_code == 204
    assert topics.call("PUT", "/t2?numInitialSegments=4", headers=JSON).status_code == 204
    assert topics.call("PUT", "/t3").status_code == 204
    assert outcome(topics.call("PUT", "/t1?numInitialSegments=2", json={})) == (
        409,
        f"Scalable topic already exists: {name}/t1",
    )
    assert topics.call("GET", "").json() == [f"{name}/t1", f"{name}/t2", f"{name}/t3"]
    assert topics.call("GET", "/t1").json() == {
        "epoch": 0,
        "nextSegmentId": 2,
        "segments": {
            str(id): {
                "segmentId": id,
                "hashRange": {"start": start, "end": end},
                "state": "ACTIVE",
                "parentIds": [],
                "childIds": [],
                "createdAtEpoch": 0,
                "sealedAtEpoch": -1,
                "createdAtMs": topics.controller.clock.now,
                "sealedAtMs": -1,
                "sealed": False,
                "active": True,
                "root": True,
                "leaf": True,
                "legacy": False,
            }
            for id, start, end in ((0, 0, 32767), (1, 32768, 65535))
        },
        "properties": {"owner": "me"},
        "createdAtMs": topics.controller.life(f"{name}/t1"),
    }
    assert topics.active("t3") == {0: (0, 0xFFFF)}


@pytest.mark.parametrize(
    ("count", "status", "reason"),
    [
        ("0", 412, "numInitialSegments must be >= 1"),
        ("-1", 412, "numInitialSegments must be >= 1"),
        ("65537", 412, "numInitialSegments must be <= 65536"),
        ("70000", 412, "numInitialSegments must be <= 65536"),
        ("abc", 412, "numInitialSegments must be a whole number, got: abc"),
        ("1.5", 412, "numInitialSegments must be a whole number, got: 1.5"),
        ("", 412, "numInitialSegments must be a whole number, got: "),
        ("9" * 40, 412, "numInitialSegments must be a whole number, got: " + "9" * 40),
    ],
)
def test_wrong_segment_count_refused_without_effect(topics: Topics, count: str, status: int, reason: str) -> None:
    assert outcome(topics.call("PUT", "/t9", params={"numInitialSegments": count})) == (status, reason)
    assert topics.call("GET", "").json() == []


@pytest.mark.parametrize("count", only_first(1, [4_096, 65_536]))
def test_topic_may_have_as_many_segments_as_hashes(topics: Topics, count: int) -> None:
    """All 65,536 take seconds; 4,096 are too many for one message of Kafka as well."""
    assert topics.call("PUT", f"/all?numInitialSegments={count}").status_code == 204
    assert len(topics.call("GET", "/all").json()["segments"]) == count
    assert topics.announced("all") == []
    assert topics.call("DELETE", "/all").status_code == 204


@pytest.mark.parametrize(
    "body",
    [b"[]", b'"x"', b"1", b'{"a": 1}', b'{"a": null}', b"{not json", b'{"a": "b"', b"\xff\xfe", b"NaN", b"[" * 9999],
)
def test_malformed_properties_refused(topics: Topics, body: bytes) -> None:
    assert topics.call("PUT", "/t", content=body, headers=JSON).status_code == 400
    assert topics.call("GET", "/t").status_code == 404


@pytest.mark.parametrize("body", [b"", b"  \n", b"null", b"{}"])
def test_empty_body_creates_plain_topic(topics: Topics, body: bytes) -> None:
    assert topics.call("PUT", "/t", content=body, headers=JSON).status_code == 204
    assert topics.layout("t").properties == {}


def test_properties_are_bounded(topics: Topics) -> None:
    assert topics.call("PUT", "/t", json={"k": "v" * 65_536}).status_code == 412
    assert topics.call("PUT", "/t", json={"k": "v" * 65_535}).status_code == 204


def test_the_list_is_filtered_by_all_properties(topics: Topics) -> None:
    topics.call("PUT", "/a", json={"owner": "me", "team": "a b&c=d/é"})
    topics.call("PUT", "/b", json={"owner": "me"})
    topics.call("PUT", "/c")
    name = f"topic://{topics.namespace}"
    assert topics.call("GET", "?property=owner%3Dme").json() == [f"{name}/a", f"{name}/b"]
    assert topics.call("GET", "?property=team%3Da+b%26c%3Dd%2F%C3%A9&property=owner%3Dme").json() == [f"{name}/a"]
    assert topics.call("GET", "?property=owner%3Dyou").json() == []
    for broken in ("broken", "empty%3D", "%3Dx", ""):
        status, reason = outcome(topics.call("GET", f"?property={broken}"))
        assert status == 412
        assert reason.startswith("property filter must be in the form key=value, got: ")


def test_split_and_merge_as_pulsar(topics: Topics) -> None:
    topics.call("PUT", "/t1?numInitialSegments=2", json={"owner": "me"})
    topics.controller.clock.now += 1000
    assert topics.call("POST", "/t1/split/0", headers=JSON).status_code == 204
    assert topics.active("t1") == {1: (32768, 65535), 2: (0, 16383), 3: (16384, 32767)}
    parent = topics.layout("t1").segments[0]
    assert (parent.child_ids, parent.sealed_at_epoch, parent.sealed_at_ms) == ([2, 3], 1, topics.controller.clock.now)
    assert topics.call("POST", "/t1/merge/3/2", headers=JSON).status_code == 204
    assert topics.active("t1") == {1: (32768, 65535), 4: (0, 32767)}
    layout = topics.layout("t1")
    assert layout.segments[4].parent_ids == [3, 2]
    assert (layout.epoch, layout.next_segment_id, layout.properties) == (2, 5, {"owner": "me"})
    base = f"segment://{topics.namespace}/t1"
    stats = topics.call("GET", "/t1/stats").json()
    assert (stats["effectivePolicy"]["profile"], stats.pop("effectivePolicy")["policy"]["maxSegments"]) == (
        "default",
        64,
    )
    assert stats == {
        "epoch": 2,
        "totalSegments": 5,
        "activeSegments": 2,
        "sealedSegments": 3,
        "segments": {
            "0": {"name": f"{base}/0000-7fff-0", "state": "SEALED"},
            "1": {"name": f"{base}/8000-ffff-1", "state": "ACTIVE"},
            "2": {"name": f"{base}/0000-3fff-2", "state": "SEALED"},
            "3": {"name": f"{base}/4000-7fff-3", "state": "SEALED"},
            "4": {"name": f"{base}/0000-7fff-4", "state": "ACTIVE"},
        },
        "subscriptions": {},
    }


def test_rebucket_adds_buckets_and_is_announced(topics: Topics) -> None:
    topics.call("PUT", "/b?numInitialSegments=2")
    assert "entryBucketSplits" not in topics.call("GET", "/b").text
    assert topics.call("POST", "/b/rebucket/1?bucketCount=8", headers=JSON).status_code == 204
    successor = topics.layout("b").segments[2]
    assert (successor.parent_ids, successor.hash_range.start, successor.hash_range.end) == ([1], 32768, 65535)
    assert successor.entry_bucket_splits == list(range(8192, 65536, 8192))
    assert topics.call("POST", "/b/split/2").status_code == 204
    stats = topics.call("GET", "/b/stats").json()["segments"]
    assert [stats[number].get("entryBuckets") for number in "01234"] == [None, None, 8, 4, 4]
    changes = [event for event in topics.announced("b") if isinstance(event, LayoutEvent)]
    assert [event.cause for event in changes] == ["created", "rebucket", "split"]
    (_, rebucket) = topics.call("GET", "/b/operations").json()
    assert (rebucket["kind"], rebucket["bucketCount"], rebucket["step"]) == ("rebucket", 8, "done")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("split/0", 412),
        ("split/99", 404),
        ("split/-1", 404),
        ("split/abc", 404),
        ("split/1.0", 404),
        ("split/%D9%A3", 404),
        ("split/" + "9" * 30, 404),
        ("merge/1/2", 412),
        ("merge/2/2", 412),
        ("merge/0/1", 412),
        ("merge/2/99", 404),
        ("merge/99/2", 404),
        ("merge/a/b", 404),
        ("merge/2", 404),
        ("rebucket/1?bucketCount=1", 412),
        ("rebucket/1?bucketCount=0", 412),
        ("rebucket/1?bucketCount=1025", 412),
        ("rebucket/1?bucketCount=many", 412),
        ("rebucket/1", 412),
        ("rebucket/0?bucketCount=8", 412),
        ("rebucket/99?bucketCount=8", 404),
    ],
)
def test_impossible_split_or_merge_is_4xx(topics: Topics, path: str, status: int) -> None:
    topics.call("PUT", "/t1?numInitialSegments=2")
    topics.call("POST", "/t1/split/0")
    before = topics.call("GET", "/t1").json()
    assert topics.call("POST", f"/t1/{path}").status_code == status
    assert topics.call("GET", "/t1").json() == before
    assert len(topics.announced("t1")) == 2


def test_sixteen_splits_reach_one_hash_then_412(topics: Topics) -> None:
    topics.call("PUT", "/w")
    for segment in (0, *range(1, 31, 2)):
        assert topics.call("POST", f"/w/split/{segment}").status_code == 204
    assert topics.active("w")[31] == (0, 0)
    assert topics.call("POST", "/w/split/31").status_code == 412
    stats = topics.call("GET", "/w/stats").json()
    assert (stats["epoch"], stats["totalSegments"], stats["activeSegments"]) == (16, 33, 17)


@pytest.mark.parametrize(
    ("verb", "path"),
    [
        ("GET", ""),
        ("GET", "/stats"),
        ("POST", "/split/0"),
        ("POST", "/merge/0/1"),
        ("DELETE", ""),
        ("GET", "/autoScalePolicy"),
        ("POST", "/autoScalePolicy"),
        ("DELETE", "/autoScalePolicy"),
        ("PUT", "/subscriptions/s"),
        ("DELETE", "/subscriptions/s"),
        ("PUT", "/subscriptions/s/consumers/c"),
        ("DELETE", "/subscriptions/s/consumers/c"),
    ],
)
def test_everything_on_a_missing_topic_is_404(topics: Topics, verb: str, path: str) -> None:
    reason = f"Scalable topic not found: topic://{topics.namespace}/none"
    assert outcome(topics.call(verb, f"/none{path}")) == (404, reason)


def test_a_deleted_topic_is_gone_and_its_name_free(topics: Topics) -> None:
    topics.call("PUT", "/t1")
    topics.call("POST", "/t1/split/0")
    topics.call("PUT", "/t1/subscriptions/s/consumers/c")
    assert topics.call("DELETE", "/t1?force=false").status_code == 204
    assert topics.call("GET", "/t1").status_code == 404
    assert topics.call("GET", "").json() == []
    *_, subscription, last = topics.announced("t1")
    assert isinstance(subscription, ConsumerEvent)
    assert (subscription.event, subscription.subscription, subscription.consumers) == ("deleted", "s", 0)
    assert isinstance(last, LayoutEvent)
    assert (last.cause, last.layout.epoch) == ("deleted", 1)
    assert topics.call("PUT", "/t1").status_code == 204
    assert topics.call("POST", "/t1/split/0").status_code == 204
    assert topics.call("GET", "/t1/stats").json()["subscriptions"] == {}


def test_a_policy_is_set_kept_by_a_split_and_removed(topics: Topics) -> None:
    topics.call("PUT", "/t2?numInitialSegments=4")
    unset = topics.call("GET", "/t2/autoScalePolicy")
    assert (unset.status_code, unset.content, "content-type" in unset.headers) == (200, b"", False)
    policy = {"enabled": True, "maxSegments": 8, "splitMsgRateInThreshold": 5000}
    assert topics.call("POST", "/t2/autoScalePolicy", json=policy).status_code == 204
    stored = '{"enabled":true,"maxSegments":8,"splitMsgRateInThreshold":5000.0}'
    assert topics.call("GET", "/t2/autoScalePolicy").text == stored
    assert topics.layout("t2").auto_scale_policy is not None
    topics.call("POST", "/t2/split/1")
    assert topics.call("GET", "/t2/autoScalePolicy").text == stored
    assert topics.call("DELETE", "/t2/autoScalePolicy").status_code == 204
    assert topics.call("DELETE", "/t2/autoScalePolicy").status_code == 204
    assert topics.call("GET", "/t2/autoScalePolicy").content == b""
    causes = [event.cause for event in topics.announced("t2") if isinstance(event, LayoutEvent)]
    assert causes == ["created", "policy", "split", "policy"]


@pytest.mark.parametrize("body", [b"", b"null"])
def test_empty_post_removes_policy_as_in_pulsar(topics: Topics, body: bytes) -> None:
    topics.call("PUT", "/t")
    topics.call("POST", "/t/autoScalePolicy", json={"maxSegments": 8})
    assert topics.call("POST", "/t/autoScalePolicy", content=body, headers=JSON).status_code == 204
    assert topics.call("GET", "/t/autoScalePolicy").content == b""


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b'{"minSegments": 1000000}', 412, ["minSegments", "maxSegments"]),
        (b'{"mergeMsgRateInThreshold": 10000}', 412, ["splitMsgRateInThreshold", "mergeMsgRateInThreshold"]),
        (b'{"splitMsgRateInThreshold": 0}', 412, ["splitMsgRateInThreshold"]),
        (b'{"nonsense": 1}', 400, ["nonsense"]),
        (b'{"max_segments": 9}', 400, ["max_segments"]),
        (b'{"maxSegments": "9"}', 400, ["maxSegments"]),
        (b'{"maxSegments": 9.5}', 400, ["maxSegments"]),
        (b'{"enabled": 1}', 400, ["enabled"]),
        (b'{"maxSegments": 2147483648}', 400, ["maxSegments"]),
        (b'{"splitBytesRateInThreshold": 9223372036854775808}', 400, ["splitBytesRateInThreshold"]),
        (b'{"mergeWindowSeconds": 9223372036854776}', 400, ["mergeWindowSeconds"]),
        (b'{"splitMsgRateInThreshold": 1e400}', 400, []),
        (b'{"splitMsgRateInThreshold": NaN}', 400, []),
        (b"{not json", 400, []),
        (b"[]", 400, []),
        (b'"on"', 400, []),
        (b"\x00\xff\x17", 400, []),
        (b"{" * 100_000, 400, []),
    ],
)
def test_invalid_policy_refused_and_old_one_kept(topics: Topics, body: bytes, status: int, words: list[str]) -> None:
    topics.call("PUT", "/t")
    topics.call("POST", "/t/autoScalePolicy", json={"maxSegments": 8})
    found, reason = outcome(topics.call("POST", "/t/autoScalePolicy", content=body, headers=JSON))
    assert found == status
    assert all(word in reason for word in words)
    assert topics.call("GET", "/t/autoScalePolicy").json() == {"maxSegments": 8}


def test_topic_policy_checked_with_namespace(topics: Topics) -> None:
    topics.call("PUT", "/t2")
    of_namespace = f"/admin/v2/namespaces/{topics.namespace}/scalableTopicAutoScalePolicy"
    client = topics.controller.client
    assert client.get(of_namespace).content == b""
    assert client.post(of_namespace, json={"mergeMsgRateInThreshold": 5000}).status_code == 204
    assert client.get(of_namespace).text == '{"mergeMsgRateInThreshold":5000.0}'
    assert topics.call("POST", "/t2/autoScalePolicy", json={"splitMsgRateInThreshold": 2000}).status_code == 412
    assert client.delete(of_namespace).status_code == 204
    assert client.delete(of_namespace).status_code == 204
    assert topics.call("POST", "/t2/autoScalePolicy", json={"splitMsgRateInThreshold": 2000}).status_code == 204
    assert client.post(of_namespace, json={"minSegments": 1_000_000}).status_code == 412
    assert client.post(of_namespace, json={"nonsense": 1}).status_code == 400
    events = [e for e in topics.controller.announced() if isinstance(e, PolicyEvent) and e.name == topics.namespace]
    assert [event.policy and event.policy.merge_msg_rate_in_threshold for event in events] == [5000, None]


def test_consumers_told_with_their_segments(topics: Topics) -> None:
    topics.call("PUT", "/t9")
    for consumer in ("b", "a", "c"):
        topics.call("PUT", f"/t9/subscriptions/s/consumers/{consumer}")
    topics.call("PUT", "/t9/subscriptions/q/consumers/x?type=QUEUE")
    active = set(topics.active("t9"))
    found = topics.call("GET", "/t9/subscriptions/s/consumers").json()
    assert (found["type"], found["count"], found["layoutEpoch"]) == ("STREAM", 3, 0)
    held = [segment for one in found["consumers"] for segment in one["segments"]]
    assert sorted(held) == sorted(active)
    # Those that have something come first, then by name; by REST nobody is connected.
    names = [(not one["segments"], one["consumer"]) for one in found["consumers"]]
    assert names == sorted(names)
    for one in found["consumers"]:
        asked = topics.call("GET", f"/t9/subscriptions/s/consumers/{one['consumer']}").json()["assignedSegments"]
        assert [segment["segmentId"] for segment in asked] == one["segments"]
    queue = topics.call("GET", "/t9/subscriptions/q/consumers").json()
    assert [one["segments"] for one in queue["consumers"]] == [[]]
    assert topics.call("GET", "/t9/subscriptions/none/consumers").status_code == 404
    assert topics.call("GET", "/none/subscriptions/s/consumers").status_code == 404


def test_subscriptions_and_consumers_announced(topics: Topics) -> None:
    topics.call("PUT", "/t2")
    calls = [
        ("PUT", "/t2/subscriptions/s1?type=STREAM"),
        ("PUT", "/t2/subscriptions/s1"),
        ("PUT", "/t2/subscriptions/q1?type=QUEUE"),
        ("PUT", "/t2/subscriptions/s1/consumers/c1"),
        ("PUT", "/t2/subscriptions/s1/consumers/c1?type=STREAM"),
        ("PUT", "/t2/subscriptions/s1/consumers/c2"),
        ("PUT", "/t2/subscriptions/k/consumers/c1?type=CHECKPOINT"),
        ("DELETE", "/t2/subscriptions/s1/consumers/c1"),
    ]
    assert [topics.call(*call).status_code for call in calls] == [204] * len(calls)
    subscriptions = topics.call("GET", "/t2/stats").json()["subscriptions"]
    assert subscriptions == {"k": {"consumerCount": 1}, "q1": {"consumerCount": 0}, "s1": {"consumerCount": 1}}
    assert topics.call("DELETE", "/t2/subscriptions/s1").status_code == 204
    events = [event for event in topics.announced("t2") if isinstance(event, ConsumerEvent)]
    assert [(e.subscription, e.type, e.event, e.consumer, e.consumers) for e in events] == [
        ("s1", "STREAM", "snapshot", None, 0),
        ("q1", "QUEUE", "snapshot", None, 0),
        ("s1", "STREAM", "registered", "c1", 1),
        ("s1", "STREAM", "registered", "c2", 2),
        ("k", "CHECKPOINT", "registered", "c1", 1),
        ("s1", "STREAM", "unregistered", "c1", 1),
        ("s1", "STREAM", "deleted", None, 0),
    ]


SEEKS = [
    *(("POST", f"s/seek{query}", 412) for query in ("", "?timestamp=", "?timestamp=-1", "?timestamp=1.5")),
    *(("POST", f"s/seek?timestamp={text}", 412) for text in ("soon", "1e3", "%2B1", "٣", 2**63, "9" * 400)),
    ("POST", f"s/seek?timestamp={2**63 - 1}", 409),
    ("POST", "s/skip-all", 409),
    ("POST", "x/seek?timestamp=0", 404),
    ("POST", "x/skip-all", 404),
]


@pytest.mark.parametrize(
    ("verb", "path", "status"),
    [
        ("PUT", "/t/subscriptions/s?type=QUEUE", 409),
        ("PUT", "/t/subscriptions/s/consumers/c?type=QUEUE", 409),
        ("PUT", "/t/subscriptions/x?type=nonsense", 412),
        ("PUT", "/t/subscriptions/x/consumers/c?type=", 412),
        *((verb, f"/t/subscriptions/{path}", status) for verb, path, status in SEEKS),
        ("DELETE", "/t/subscriptions/x", 404),
        ("DELETE", "/t/subscriptions/x/consumers/c", 404),
        ("DELETE", "/t/subscriptions/s/consumers/nobody", 404),
        ("PUT", "/t/subscriptions/" + "x" * 1025, 412),
    ],
)
def test_a_wrong_subscription_call_is_a_4xx(topics: Topics, verb: str, path: str, status: int) -> None:
    topics.call("PUT", "/t")
    topics.call("PUT", "/t/subscriptions/s/consumers/c")
    assert topics.call(verb, path).status_code == status
    assert topics.call("GET", "/t/stats").json()["subscriptions"] == {"s": {"consumerCount": 1}}


def test_checkpoint_subscription_cannot_move(topics: Topics) -> None:
    topics.call("PUT", "/t")
    topics.call("PUT", "/t/subscriptions/s?type=CHECKPOINT")
    for path in ("seek?timestamp=0", "skip-all"):
        answer = topics.call("POST", f"/t/subscriptions/s/{path}")
        assert (answer.status_code, "CHECKPOINT" in answer.json()["reason"]) == (409, True)
        assert topics.call("POST", f"/nowhere/subscriptions/s/{path}").status_code == 404


def test_change_announced_with_its_decision(topics: Topics) -> None:
    topics.call("PUT", "/t?numInitialSegments=2")
    topics.call("POST", "/t/split/0", headers={"X-Anabranch-Decision": "d-1"})
    topics.call("POST", "/t/merge/2/3", headers={"x-anabranch-decision": "d-2"})
    topics.call("POST", "/t/split/1")
    too_long = topics.call("POST", "/t/split/4", headers={"X-Anabranch-Decision": "d" * 129})
    assert too_long.status_code == 400
    events = [event for event in topics.announced("t") if isinstance(event, LayoutEvent)]
    assert [(event.cause, event.decision_id) for event in events] == [
        ("created", None),
        ("split", "d-1"),
        ("merge", "d-2"),
        ("split", None),
    ]


@pytest.mark.parametrize(
    ("created", "same"),
    [
        ("odd%20name+%C3%BC&=", "odd%2520name%2B%c3%bc%26%3d"),
        ("ünïcødé-主题", "%C3%BCn%C3%AFc%C3%B8d%C3%A9-%E4%B8%BB%E9%A2%98"),
        ("a+b", "a%2Bb"),
        ("a%2Fb", "a%2fb"),
        ("50%25", "50%2525"),
        ("q%3Fx%23y", "q%3fx%23y"),
        ("stats", "%73tats"),
        ("emoji-🦦", "emoji-%F0%9F%A6%A6"),
    ],
)
def test_odd_name_reaches_topic_in_every_spelling(topics: Topics, created: str, same: str) -> None:
    assert topics.call("PUT", f"/{created}").status_code == 204
    assert topics.call("PUT", f"/{same}").status_code == 409
    assert topics.call("POST", f"/{same}/split/0").status_code == 204
    (listed,) = topics.call("GET", "").json()
    by_list = topics.controller.client.get(f"/admin/v2/scalable/{listed.removeprefix('topic://')}")
    assert by_list.json()["epoch"] == 1
    assert {event.topic for event in topics.controller.announced(listed) if isinstance(event, LayoutEvent)} == {listed}


@pytest.mark.parametrize(
    ("verb", "path", "status"),
    [
        ("GET", "/a/b", 404),
        ("GET", "/t/", 404),
        ("GET", "/%ff", 400),
        ("PATCH", "/t", 405),
        ("POST", "/t", 405),
        ("GET", "/t/split/0", 405),
        ("GET", "/" + "x" * 1100, 412),
    ],
)
def test_unknown_path_or_verb_is_4xx_with_reason(topics: Topics, verb: str, path: str, status: int) -> None:
    assert topics.call(verb, path).status_code == status


def test_the_interface_describes_itself(topics: Topics) -> None:
    paths = topics.controller.client.get("/openapi.json").json()["paths"]
    assert "/admin/v2/scalable/{tenant}/{namespace}/{topic}/split/{segment}" in paths


def test_health_reports_kafka_outage(topics: Topics) -> None:
    topics.call("PUT", "/t")
    answer = topics.controller.client.get("/healthz")
    assert answer.status_code == 503
    assert answer.json()["outbox"] >= 1
    assert "127.0.0.1:1" in answer.json()["reason"]
