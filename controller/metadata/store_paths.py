"""Where everything is in the metadata store (PIP-468 "Metadata Store Paths"). Stage: below `controller.layouts.store`.

    /topics/{tenant}/{namespace}/{topic}                            ScalableTopicMetadata; empty: no such topic
    …/controller                                                    URL of the leader; ephemeral
    …/subscriptions/{subscription}                                  SubscriptionRecord
    …/subscriptions/{subscription}/consumers/{consumer}             ConsumerRegistration
    …/operations/{number}                                           Operation: the journal, the newest has the highest
    …/creation                                                      ScalableTopicMetadata of a topic that is being made
    …/deletion                                                      ScalableTopicMetadata of one that is being deleted
    …/leftovers/{subscription}                                      deleted, and still in segments that clients read
    /admin/policies/{tenant}/{namespace}/scalableTopicAutoScalePolicy   AutoScalePolicyOverride

and what the PIP does not need:

    /format                 the format of all this; controllers that read another one refuse to start
    /lives                  when the topic was created that was deleted and had been created last (ms)
    /outbox/{number}        announcements of one commit that wait for Kafka
    /sender                 number of the node that announced last (`schemas.messages.Sender`)
    /namespaces/{tenant}/{namespace}    a namespace that was created; others exist by having topics or a policy
    /attended/{topic}       the topic needs a leader even if nobody asks for anything: it has sessions or operations
    /nodes/{url}            a node that is alive, and which process it is; ephemeral
    /nodes/copier           the store is being copied: no controller starts; ephemeral
    /copying                a copy into this store was not finished: no controller starts
    /housekeeper            URL of the node that empties the outbox and looks after topics without a leader; ephemeral

Names are percent-encoded, so that any name is one name of a path.
"""

from __future__ import annotations

from urllib.parse import quote, unquote

from schemas.ids import topic_name, topic_parts

TOPICS, POLICIES = "/topics", "/admin/policies"
FORMAT_PATH, FORMAT = "/format", b"1"
OUTBOX, ATTENDED, NODES, HOUSEKEEPER = "/outbox", "/attended", "/nodes", "/housekeeper"
SENDER, LIVES, NAMESPACES = "/sender", "/lives", "/namespaces"
COPIER, COPYING = f"{NODES}/copier", "/copying"
_POLICY = "scalableTopicAutoScalePolicy"


def encode(name: str) -> str:
    """Any name as one name of a path."""
    return name.replace(".", "%2E") if name in (".", "..") else quote(name, safe="")


def decode(name: str) -> str:
    """The name that `encode` was given."""
    return unquote(name)


def topic_path(topic: str) -> str:
    """The node of a topic's layout."""
    parts = topic_parts(topic)
    return f"{namespace_path(parts.full_namespace)}/{encode(parts.name)}"


def namespace_path(namespace: str) -> str:
    """The node that has the topics of `tenant/namespace` below it."""
    tenant, _, name = namespace.partition("/")
    return f"{TOPICS}/{encode(tenant)}/{encode(name)}"


def topic_of(tenant: str, namespace: str, name: str) -> str:
    """The topic at a path, of three names as they are there."""
    return topic_name(decode(tenant), decode(namespace), decode(name))


def leader_path(topic: str) -> str:
    """The node that the leader of a topic holds."""
    return f"{topic_path(topic)}/controller"


def subscriptions_path(topic: str) -> str:
    """The node that has the subscriptions of a topic below it."""
    return f"{topic_path(topic)}/subscriptions"


def subscription_path(topic: str, subscription: str) -> str:
    """The node of a subscription."""
    return f"{subscriptions_path(topic)}/{encode(subscription)}"


def consumers_path(topic: str, subscription: str) -> str:
    """The node that has the consumers of a subscription below it."""
    return f"{subscription_path(topic, subscription)}/consumers"


def consumer_path(topic: str, subscription: str, consumer: str) -> str:
    """The node of a registration."""
    return f"{consumers_path(topic, subscription)}/{encode(consumer)}"


def operations_path(topic: str) -> str:
    """The node that has the journal of a topic below it."""
    return f"{topic_path(topic)}/operations"


def creation_path(topic: str) -> str:
    """The node that is there while the segments of a new topic are made."""
    return f"{topic_path(topic)}/creation"


def deletion_path(topic: str) -> str:
    """The node that is there while a topic is deleted."""
    return f"{topic_path(topic)}/deletion"


def leftovers_path(topic: str) -> str:
    """The node that has below it the deleted subscriptions that are still in segments."""
    return f"{topic_path(topic)}/leftovers"


def leftover_path(topic: str, subscription: str) -> str:
    """The node of one of them."""
    return f"{leftovers_path(topic)}/{encode(subscription)}"


def attended_path(topic: str) -> str:
    """The node that says that a topic needs a leader."""
    return f"{ATTENDED}/{encode(topic)}"


def policy_path(namespace: str) -> str:
    """The node of a namespace's override."""
    tenant, _, name = namespace.partition("/")
    return f"{POLICIES}/{encode(tenant)}/{encode(name)}/{_POLICY}"


def namespace_record_path(namespace: str) -> str:
    """The node of a namespace that was created."""
    tenant, _, name = namespace.partition("/")
    return f"{NAMESPACES}/{encode(tenant)}/{encode(name)}"


def tenant_paths(tenant: str) -> list[str]:
    """The nodes that have nodes of a tenant's namespaces below them."""
    return [f"{top}/{encode(tenant)}" for top in (NAMESPACES, POLICIES, TOPICS)]


def node_path(url: str) -> str:
    """The node of a controller that is alive."""
    return f"{NODES}/{encode(url)}"


def is_topic(path: str) -> bool:
    """Whether a node is that of a topic's layout."""
    return path.startswith(f"{TOPICS}/") and path.count("/") == 4


def is_announcement(path: str) -> bool:
    """Whether a node is one of the outbox."""
    return path.startswith(f"{OUTBOX}/")


def stays_behind(path: str) -> bool:
    """Whether a copy leaves a node out: it belongs to this store, or to the processes that use it now."""
    is_leader = path.endswith("/controller") and is_topic(path.rpartition("/")[0])
    return is_leader or path in (FORMAT_PATH, NODES, HOUSEKEEPER, COPYING)
