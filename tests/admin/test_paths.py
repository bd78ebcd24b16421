"""Every name that the interface accepts goes into one path, and comes back out of it at the server."""

from __future__ import annotations

import httpx
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from anabranch.admin.answers import Misdirected
from anabranch.admin.bundles import BundleAdmin
from anabranch.admin.cluster import ClusterAdmin
from anabranch.admin.paths import consumer_path, namespace_path, policy_path, subscription_path, topic_path
from anabranch.admin.plain import PlainTopics
from anabranch.controller.errors import ControllerError
from anabranch.controller.topic_names import canonical_segment, namespace_of_path, plain_name, topic_of_path
from schemas.base import MAX_NAME_BYTES
from schemas.ids import topic_name

ENCODABLE = st.characters(exclude_categories=["Cs"])
HOSTILE = st.sampled_from(
    ["..", ".", "../../healthz", "a%2Fb", "%2e%2E", "100%", "%zz", "%25%32%46", "a?b#c", "\\", "a\n"]
)
NAMES = st.text(ENCODABLE, min_size=1, max_size=40) | st.text("%2Ff.?#/; aé\x00", min_size=1, max_size=12) | HOSTILE
PARTS = NAMES.filter(lambda name: "/" not in name)


def sent(path: str) -> list[str]:
    """The parts of a path as they arrive at a server, not decoded."""
    return httpx.URL(f"http://127.0.0.1:8080{path}").raw_path.decode().split("/")


def canonical(*parts: str) -> list[str]:
    """The parts as the controller calls them; only names that it accepts are of interest."""
    try:
        found = [canonical_segment(part) for part in parts]
    except ControllerError:
        assume(False)
    assume(len(topic_name(*found)) <= MAX_NAME_BYTES if len(found) == 3 else True)
    return found


@given(PARTS, PARTS, NAMES)
@example("acme", "shop", "..%2Fx")
@example("..", ".", "..")
def test_topic_found_by_name_and_listed_name(tenant, namespace, name):
    """Any topic name is found by itself and by the name that lists show."""
    expected = topic_name(*canonical(tenant, namespace, name))
    for spelling in (topic_name(tenant, namespace, name), expected):
        empty, admin, v2, scalable, *parts = sent(topic_path(spelling))
        assert (empty, admin, v2, scalable) == ("", "admin", "v2", "scalable")
        assert topic_of_path(*parts) == expected
        assert sent(policy_path(spelling))[4:] == [*parts, "autoScalePolicy"]


@given(PARTS, PARTS)
def test_a_namespace_of_any_name_is_found(tenant, namespace):
    expected = "/".join(canonical(tenant, namespace))
    assert namespace_of_path(*sent(namespace_path(f"{tenant}/{namespace}"))[4:]) == expected
    *parts, last = sent(policy_path(f"{tenant}/{namespace}"))[4:]
    assert namespace_of_path(*parts) == expected
    assert last == "scalableTopicAutoScalePolicy"


@pytest.mark.parametrize("name", ["..", ".", "%2E%2E", "a/b", "a?b", "a#b", ""])
def test_no_cluster_or_plain_topic_climbs(name):
    asked = []

    class Recording:
        def exchange(self, _verb, path, *_more, **_named):
            asked.append(path)
            return Misdirected("not sent")

    ClusterAdmin(Recording()).brokers(name)
    ClusterAdmin(Recording()).isolation_policies(name)
    PlainTopics(Recording()).unload(f"{name.replace('/', '')}/..//{name}")
    PlainTopics(Recording()).set_subscription_properties("t/n/persistent/x", name, {})
    BundleAdmin(Recording()).owned(name, name)
    assert [len(sent(path)) for path in asked] == [5 if name else 4, 6, 8, 10, 7]
    assert asked == [path for path in asked if httpx.URL(f"http://h{path}").raw_path.decode() == path]


@given(NAMES, NAMES)
def test_subscription_and_consumer_names_kept_whole(subscription, consumer):
    topic = "topic://acme/shop/orders"
    parts = sent(consumer_path(topic, subscription, consumer))
    assert parts[:8] == ["", "admin", "v2", "scalable", "acme", "shop", "orders", "subscriptions"]
    assert (plain_name(parts[8], "subscription"), parts[9]) == (subscription, "consumers")
    assert plain_name(parts[10], "consumer") == consumer
    assert sent(subscription_path(topic, subscription)) == parts[:9]


@pytest.mark.parametrize("name", ["orders", "persistent://acme/shop/orders", "topic://acme/shop", "topic://acme//x"])
def test_what_is_no_name_of_a_topic_has_no_path(name):
    with pytest.raises(ValueError, match="not a scalable topic's name"):
        topic_path(name)
