"""Calls that change no layout, and the status that our controller answers; `docs/pulsar.md` says where a
Pulsar answers another one. `{ns}` is the namespace of `tests.contract.servers`."""

from __future__ import annotations

from typing import NamedTuple


class Call(NamedTuple):
    """A request, and the status of its answer."""

    verb: str
    path: str
    status: int
    body: str = ""


_TOPIC = "/scalable/{ns}"
_POLICY = "/scalable/{ns}/p/autoScalePolicy"
_SUBSCRIPTIONS = "/scalable/{ns}/t/subscriptions"
_NAMESPACE = "/namespaces/{ns}/scalableTopicAutoScalePolicy"

CALLS = {
    "create a topic that exists": Call("PUT", f"{_TOPIC}/t", 409),
    "create with 0 segments": Call("PUT", f"{_TOPIC}/n?numInitialSegments=0", 412),
    "create with -1 segments": Call("PUT", f"{_TOPIC}/n?numInitialSegments=-1", 412),
    "create with 70,000 segments": Call("PUT", f"{_TOPIC}/n?numInitialSegments=70000", 412),
    "create with abc segments": Call("PUT", f"{_TOPIC}/n?numInitialSegments=abc", 412),
    "create with a list as properties": Call("PUT", f"{_TOPIC}/n", 400, "[]"),
    "create with properties that are no JSON": Call("PUT", f"{_TOPIC}/n", 400, "{not json"),
    "list with a filter without =": Call("GET", f"{_TOPIC}?property=broken", 412),
    "list a namespace that does not exist": Call("GET", "/scalable/public/nowhere", 200),
    "layout of a missing topic": Call("GET", f"{_TOPIC}/none", 404),
    "stats of a missing topic": Call("GET", f"{_TOPIC}/none/stats", 404),
    "split in a missing topic": Call("POST", f"{_TOPIC}/none/split/0", 404),
    "merge in a missing topic": Call("POST", f"{_TOPIC}/none/merge/0/1", 404),
    "delete a missing topic": Call("DELETE", f"{_TOPIC}/none", 404),
    "policy of a missing topic": Call("GET", f"{_TOPIC}/none/autoScalePolicy", 404),
    "set the policy of a missing topic": Call("POST", f"{_TOPIC}/none/autoScalePolicy", 404, '{"enabled":false}'),
    "remove the policy of a missing topic": Call("DELETE", f"{_TOPIC}/none/autoScalePolicy", 404),
    "subscribe to a missing topic": Call("PUT", f"{_TOPIC}/none/subscriptions/s", 404),
    "unsubscribe from a missing topic": Call("DELETE", f"{_TOPIC}/none/subscriptions/s", 404),
    "split a sealed segment": Call("POST", f"{_TOPIC}/t/split/0", 412),
    "split an unknown segment": Call("POST", f"{_TOPIC}/t/split/99", 404),
    "split a segment of width 1": Call("POST", f"{_TOPIC}/w/split/31", 412),
    "split abc": Call("POST", f"{_TOPIC}/t/split/abc", 404),
    "merge segments that are not adjacent": Call("POST", f"{_TOPIC}/t/merge/1/2", 412),
    "merge a segment with itself": Call("POST", f"{_TOPIC}/t/merge/2/2", 412),
    "merge with a sealed segment": Call("POST", f"{_TOPIC}/t/merge/0/1", 412),
    "merge with an unknown segment": Call("POST", f"{_TOPIC}/t/merge/2/99", 404),
    "merge a and b": Call("POST", f"{_TOPIC}/t/merge/a/b", 404),
    "rebucket an unknown segment": Call("POST", f"{_TOPIC}/t/rebucket/99?bucketCount=8", 404),
    "stats of a segment, which came later": Call("GET", f"{_TOPIC}/t/segments/1/stats", 404),
    "PATCH a topic": Call("PATCH", f"{_TOPIC}/t", 405),
    "GET a split": Call("GET", f"{_TOPIC}/t/split/0", 405),
    "a path that is none": Call("GET", f"{_TOPIC}/t/nonsense", 404),
    "minSegments above maxSegments": Call("POST", _POLICY, 412, '{"minSegments":1000000}'),
    "merge threshold at the split threshold": Call("POST", _POLICY, 412, '{"mergeMsgRateInThreshold":10000}'),
    "a split threshold of 0": Call("POST", _POLICY, 412, '{"splitMsgRateInThreshold":0}'),
    "a policy with an unknown field": Call("POST", _POLICY, 400, '{"nonsense":1}'),
    "a policy with a word for a number": Call("POST", _POLICY, 400, '{"maxSegments":"many"}'),
    "a policy with a number in quotes": Call("POST", _POLICY, 400, '{"maxSegments":"9"}'),
    "a policy with a fraction of a segment": Call("POST", _POLICY, 400, '{"maxSegments":9.5}'),
    "a policy with a number beyond 32 bits": Call("POST", _POLICY, 400, '{"maxSegments":2147483648}'),
    "a policy that is a list": Call("POST", _POLICY, 400, "[]"),
    "a policy that is no JSON": Call("POST", _POLICY, 400, "{not json"),
    "an empty policy": Call("POST", _POLICY, 204, "{}"),
    "no policy": Call("POST", _POLICY, 204),
    "minSegments above maxSegments in a namespace": Call("POST", _NAMESPACE, 412, '{"minSegments":1000000}'),
    "policy of a namespace that does not exist": Call(
        "GET", "/namespaces/public/nowhere/scalableTopicAutoScalePolicy", 404
    ),
    "set the policy of a namespace that does not exist": Call(
        "POST", "/namespaces/public/nowhere/scalableTopicAutoScalePolicy", 404, '{"enabled":false}'
    ),
    "create a namespace that exists": Call("PUT", "/namespaces/{ns}", 409),
    "delete a namespace with topics": Call("DELETE", "/namespaces/public/full", 409),
    "delete a namespace that does not exist": Call("DELETE", "/namespaces/public/nowhere", 404),
    "namespaces of a missing tenant": Call("GET", "/namespaces/nobody", 404),
    "subscribe once more": Call("PUT", f"{_SUBSCRIPTIONS}/s?type=STREAM", 204),
    "subscribe once more with another type": Call("PUT", f"{_SUBSCRIPTIONS}/s?type=QUEUE", 409),
    "subscribe with a type that is none": Call("PUT", f"{_SUBSCRIPTIONS}/x?type=nonsense", 412),
    "unsubscribe an unknown subscription": Call("DELETE", f"{_SUBSCRIPTIONS}/none", 404),
    "seek of an unknown subscription": Call("POST", f"{_SUBSCRIPTIONS}/none/seek?timestamp=0", 404),
    "skip-all of an unknown subscription": Call("POST", f"{_SUBSCRIPTIONS}/none/skip-all", 404),
    "seek": Call("POST", f"{_SUBSCRIPTIONS}/s/seek?timestamp=0", 409),
    "skip-all": Call("POST", f"{_SUBSCRIPTIONS}/s/skip-all", 409),
    "seek to abc": Call("POST", f"{_SUBSCRIPTIONS}/s/seek?timestamp=abc", 412),
}
