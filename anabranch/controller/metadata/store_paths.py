"""Paths in the metadata store (PIP-468 "Metadata Store Paths").

 /topics/{tenant}/{namespace}/{topic}                            ScalableTopicMetadata; empty: no such topic
 …/controller                                                    URL of the leader; ephemeral
 …/subscriptions/{subscription}                                  SubscriptionRecord
 …/subscriptions/{subscription}/consumers/{consumer}             ConsumerRegistration
 …/operations/{number}                                           Operation: the journal, the newest has the highest
 …/creation                                                      ScalableTopicMetadata of a topic being created
 …/deletion                                                      ScalableTopicMetadata of a topic being deleted
 …/leftovers/{subscription}                                      deleted, but still in segments that clients read
 /admin/policies/{tenant}/{namespace}/scalableTopicAutoScalePolicy   AutoScalePolicyOverride

Beyond the PIP:

 /format                 format of this tree; controllers that read another one refuse to start
 /lives                  latest creation time (ms) of any deleted topic
 /outbox/{number}        announcements of one commit that wait for Kafka
 /sender                 number of the latest announcing node (`schemas.kafka.messages.Sender`)
 /namespaces/{tenant}/{namespace}    a namespace that was created; others exist through topics or a policy
 /attended/{topic}       the topic needs a leader even without requests: it has sessions or operations
 /nodes/{url}            a live node, and the process behind it; ephemeral
 /nodes/copier           the store is being copied: no controller starts; ephemeral
 /copying                a copy into this store was not finished: no controller starts
 /housekeeper            URL of the node that empties the outbox and adopts topics without a leader; ephemeral

Names are percent-encoded, so that any name is one name of a path.
"""

from urllib.parse import quote, unquote

from schemas.ids import topic_name, topic_parts

TOPICS, POLICIES = "/topics", "/admin/policies"
FORMAT_PATH, FORMAT = "/format", b"1"
OUTBOX, ATTENDED, NODES, HOUSEKEEPER = "/outbox", "/attended", "/nodes", "/housekeeper"
SENDER, LIVES, NAMESPACES = "/sender", "/lives", "/namespaces"
COPIER, COPYING = f"{NODES}/copier", "/copying"
_POLICY = "scalableTopicAutoScalePolicy"


def encode(name: str) -> str:
    """Encode any name as one name of a path."""
    return name.replace(".", "%2E") if name in (".", "..") else quote(name, safe="")


def decode(name: str) -> str:
    """Decode a name encoded by `encode`."""
    return unquote(name)


def topic_path(topic: str) -> str:
    """Return the path of a topic's layout."""
    parts = topic_parts(topic)
    return f"{namespace_path(parts.full_namespace)}/{encode(parts.name)}"


def namespace_path(namespace: str) -> str:
    """Return the path above the topics of `tenant/namespace`."""
    tenant, _, name = namespace.partition("/")
    return f"{TOPICS}/{encode(tenant)}/{encode(name)}"


def topic_of(tenant: str, namespace: str, name: str) -> str:
    """Return the topic at a path, given its three encoded names."""
    return topic_name(decode(tenant), decode(namespace), decode(name))


def leader_path(topic: str) -> str:
    """Return the path of the node that the leader of a topic holds."""
    return f"{topic_path(topic)}/controller"


def subscriptions_path(topic: str) -> str:
    """Return the path above the subscriptions of a topic."""
    return f"{topic_path(topic)}/subscriptions"


def subscription_path(topic: str, subscription: str) -> str:
    """Return the path of a subscription."""
    return f"{subscriptions_path(topic)}/{encode(subscription)}"


def consumers_path(topic: str, subscription: str) -> str:
    """Return the path above the consumers of a subscription."""
    return f"{subscription_path(topic, subscription)}/consumers"


def consumer_path(topic: str, subscription: str, consumer: str) -> str:
    """Return the path of a registration."""
    return f"{consumers_path(topic, subscription)}/{encode(consumer)}"


def operations_path(topic: str) -> str:
    """Return the path above the journal of a topic."""
    return f"{topic_path(topic)}/operations"


def creation_path(topic: str) -> str:
    """Return the path of the node that exists while the segments of a new topic are created."""
    return f"{topic_path(topic)}/creation"


def deletion_path(topic: str) -> str:
    """Return the path of the node that exists while a topic is deleted."""
    return f"{topic_path(topic)}/deletion"


def leftovers_path(topic: str) -> str:
    """Return the path above the deleted subscriptions that still exist in segments."""
    return f"{topic_path(topic)}/leftovers"


def leftover_path(topic: str, subscription: str) -> str:
    """Return the path of a deleted subscription that still exists in segments."""
    return f"{leftovers_path(topic)}/{encode(subscription)}"


def attended_path(topic: str) -> str:
    """Return the path of the mark that a topic needs a leader."""
    return f"{ATTENDED}/{encode(topic)}"


def policy_path(namespace: str) -> str:
    """Return the path of a namespace's override."""
    tenant, _, name = namespace.partition("/")
    return f"{POLICIES}/{encode(tenant)}/{encode(name)}/{_POLICY}"


def namespace_record_path(namespace: str) -> str:
    """Return the path of a namespace that was created."""
    tenant, _, name = namespace.partition("/")
    return f"{NAMESPACES}/{encode(tenant)}/{encode(name)}"


def tenant_paths(tenant: str) -> list[str]:
    """Return the paths above all nodes of a tenant's namespaces."""
    return [f"{top}/{encode(tenant)}" for top in (NAMESPACES, POLICIES, TOPICS)]


def node_path(url: str) -> str:
    """Return the path of a live controller."""
    return f"{NODES}/{encode(url)}"


def is_topic(path: str) -> bool:
    """Return whether a path is that of a topic's layout."""
    return path.startswith(f"{TOPICS}/") and path.count("/") == 4


def is_announcement(path: str) -> bool:
    """Return whether a path is below the outbox."""
    return path.startswith(f"{OUTBOX}/")


def stays_behind(path: str) -> bool:
    """Return whether a copy omits a node: it belongs to this store, or to the processes that use it now."""
    is_leader = path.endswith("/controller") and is_topic(path.rpartition("/")[0])
    return is_leader or path in (FORMAT_PATH, NODES, HOUSEKEEPER, COPYING)
