"""Read access to topics, subscriptions, sessions, policies and operations in the metadata store.

Stage: below `anabranch.controller.layouts.store`, which adds the writes; on any `MetadataStore`, at the paths of
`anabranch.controller.metadata.store_paths`.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from anabranch.controller.errors import NotFound
from anabranch.controller.metadata import store_paths
from anabranch.controller.metadata.base import MetadataStore, Stored
from anabranch.controller.metadata.records import ConsumerRegistration, SubscriptionRecord
from schemas.base import Millis, Wire
from schemas.kafka.messages import SubscriptionType
from schemas.metadata import AutoScalePolicyOverride, ScalableTopicMetadata

_MAX_READS = 200


class StoredTopic(NamedTuple):
    """A stored topic; `version` is the one that a compare-and-set expects."""

    topic: str
    version: int
    metadata: ScalableTopicMetadata


class StoredSubscription(NamedTuple):
    """A subscription and the number of its consumer sessions."""

    name: str
    type: SubscriptionType
    consumers: int


class StoredMembers(NamedTuple):
    """Stored state of a subscription's coordinator."""

    type: SubscriptionType
    drained: tuple[int, ...]
    """Ids of the sealed segments that it has read to the end."""
    consumers: dict[str, bool]
    """Its consumers by name; True: a session, which needs a connection to stay."""
    contested: dict[str, tuple[int, ...]] | None = None
    """Segments that consumers without a connection keep from others (`SubscriptionRecord`)."""
    life: str | None = None
    """Incarnation of the subscription under its name (`SubscriptionRecord`)."""


class _Life(Wire):
    """Part of a layout that identifies the incarnation of its topic; other fields are not parsed."""

    created_at_ms: Millis | None = None


class LayoutReader:
    """Read access; each result was true at some moment during the call."""

    def __init__(self, nodes: MetadataStore) -> None:
        self._nodes = nodes

    def synced(self) -> "LayoutReader":
        """Return this reader once it shows all earlier commits of all nodes; for responses to clients."""
        self._nodes.sync()
        return self

    def topic(self, topic: str) -> StoredTopic | None:
        """Return the topic with its layout, or None."""
        node = self.get(store_paths.topic_path(topic))
        if node is None or not node.value:
            return None
        return StoredTopic(topic, node.version, ScalableTopicMetadata.model_validate_json(node.value))

    def existing_topic(self, topic: str) -> StoredTopic:
        """Return the topic with its layout. Raises `NotFound`."""
        stored = self.topic(topic) or self.synced().topic(topic)
        if stored is None:
            raise no_topic(topic)
        return stored

    def check_topic(self, topic: str) -> None:
        """Raise `NotFound` if the topic does not exist."""
        if not self.has_topic(topic) and not self.synced().has_topic(topic):
            raise no_topic(topic)

    def has_topic(self, topic: str) -> bool:
        """Return whether a topic exists."""
        return self.layout_json(topic) is not None

    def layout_json(self, topic: str) -> str | None:
        """Return the layout record as JSON, or None."""
        node = self.get(store_paths.topic_path(topic))
        return node.value.decode() if node and node.value else None

    def topics_of(self, namespace: str) -> Iterator[tuple[str, bytes]]:
        """Return the topics of a namespace, sorted by name, each with its layout record as JSON."""
        names = sorted(store_paths.decode(name) for name in self._nodes.children(store_paths.namespace_path(namespace)))
        return self.layouts([f"topic://{namespace}/{name}" for name in names])

    def all_topics(self) -> list[str]:
        """Return the names of all topics, sorted; may include topics being created or deleted."""
        return sorted(
            store_paths.topic_of(tenant, namespace, name)
            for tenant in self._nodes.children(store_paths.TOPICS)
            for namespace in self._nodes.children(f"{store_paths.TOPICS}/{tenant}")
            for name in self._nodes.children(f"{store_paths.TOPICS}/{tenant}/{namespace}")
        )

    def layouts(self, topics: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """Yield the existing ones of these topics, each with its layout record as JSON; reads in batches."""
        for start in range(0, len(topics), _MAX_READS):
            some = topics[start : start + _MAX_READS]
            nodes = self._nodes.get_all([store_paths.topic_path(topic) for topic in some])
            yield from ((topic, node.value) for topic, node in zip(some, nodes, strict=True) if node and node.value)

    def layouts_and_creations(self) -> Iterator[tuple[str, bytes]]:
        """Yield all topics with their layout records as JSON, and those of topics that are being created."""
        topics = self.all_topics()
        yield from self.layouts(topics)
        for start in range(0, len(topics), _MAX_READS):
            some = topics[start : start + _MAX_READS]
            nodes = self._nodes.get_all([store_paths.creation_path(topic) for topic in some])
            yield from ((topic, node.value) for topic, node in zip(some, nodes, strict=True) if node)

    def subscriptions(self, topic: str) -> list[StoredSubscription]:
        """Return the subscriptions of a topic with the number of their sessions, sorted by name."""
        names = sorted(store_paths.decode(name) for name in self.children(store_paths.subscriptions_path(topic)))
        stored = [self.subscription(topic, name) for name in names]
        return [known_subscription for known_subscription in stored if known_subscription is not None]

    def subscription_records(self, topic: str) -> dict[str, SubscriptionRecord]:
        """Return the subscriptions of a topic by name, without their sessions."""
        names = sorted(store_paths.decode(name) for name in self.children(store_paths.subscriptions_path(topic)))
        records = {name: self.subscription_record(topic, name) for name in names}
        return {name: record for name, record in records.items() if record is not None}

    def subscription(self, topic: str, name: str) -> StoredSubscription | None:
        """Return a subscription with the number of its sessions, or None."""
        if (record := self.subscription_record(topic, name)) is None:
            return None
        return StoredSubscription(name, record.type, len(self.children(store_paths.consumers_path(topic, name))))

    def existing_subscription(self, topic: str, name: str) -> StoredSubscription:
        """Return a subscription with the number of its sessions. Raises `NotFound`, also for the topic."""
        self.check_topic(topic)
        stored = self.subscription(topic, name) or self.synced().subscription(topic, name)
        if stored is None:
            raise NotFound(f"Subscription not found: {name} on {topic}")
        return stored

    def members(self, topic: str, name: str) -> StoredMembers | None:
        """Return the consumers and drained segments of a subscription, or None."""
        if (record := self.subscription_record(topic, name)) is None:
            return None
        registrations = [
            ConsumerRegistration.model_validate_json(value)
            for value in self.values(store_paths.consumers_path(topic, name))
        ]
        consumers = {registration.consumer_name: registration.session for registration in registrations}
        return StoredMembers(
            record.type, record.drained, dict(sorted(consumers.items())), record.contested, record.life
        )

    def has_namespace(self, namespace: str) -> bool:
        """Return whether a namespace was created, has a policy, or has topics."""
        paths = (store_paths.namespace_record_path(namespace), store_paths.policy_path(namespace))
        return any(self._nodes.get_all(paths)) or self.has_topics(namespace)

    def has_topics(self, namespace: str) -> bool:
        """Return whether a namespace has topics."""
        return next(self.topics_of(namespace), None) is not None

    def namespace_names(self, tenant: str) -> list[str]:
        """Return the names of a tenant's namespaces, sorted; may include some that no longer exist."""
        names = {name for path in store_paths.tenant_paths(tenant) for name in self._nodes.children(path)}
        return sorted(map(store_paths.decode, names))

    def namespace_policy(self, namespace: str) -> AutoScalePolicyOverride | None:
        """Return the override of a namespace, or None."""
        node = self.get(store_paths.policy_path(namespace))
        return AutoScalePolicyOverride.model_validate_json(node.value) if node else None

    def namespace_policies(self) -> dict[str, AutoScalePolicyOverride]:
        """Return the overrides of all namespaces."""
        namespaces = sorted(
            f"{store_paths.decode(tenant)}/{store_paths.decode(name)}"
            for tenant in self._nodes.children(store_paths.POLICIES)
            for name in self._nodes.children(f"{store_paths.POLICIES}/{tenant}")
        )
        policies = [(namespace, self.namespace_policy(namespace)) for namespace in namespaces]
        return {namespace: policy for namespace, policy in policies if policy is not None}

    def open_creation(self, topic: str) -> ScalableTopicMetadata | None:
        """Return the layout of a topic whose creation is unfinished, or None."""
        node = self.get(store_paths.creation_path(topic))
        return ScalableTopicMetadata.model_validate_json(node.value) if node else None

    def open_deletion(self, topic: str) -> ScalableTopicMetadata | None:
        """Return the former layout of a topic whose deletion is unfinished, or None."""
        node = self.get(store_paths.deletion_path(topic))
        return ScalableTopicMetadata.model_validate_json(node.value) if node else None

    def created_at(self, topic: str) -> int | None:
        """Return the incarnation of a topic, `created_at_ms` of its layout. Raises `NotFound`."""
        if (layout := self.layout_json(topic)) is None:
            raise no_topic(topic)
        return life_of(layout)

    def leftovers(self, topic: str) -> list[str]:
        """Return the deleted subscriptions of a topic that still exist in its segments."""
        return sorted(map(store_paths.decode, self.children(store_paths.leftovers_path(topic))))

    def is_leftover(self, topic: str, subscription: str) -> bool:
        """Return whether a subscription of that name is one of them."""
        return self.get(store_paths.leftover_path(topic, subscription)) is not None

    def topics_needing_leader(self) -> list[str]:
        """Return topics that have or had sessions or operations: they need a leader without any request."""
        return [store_paths.decode(name) for name in self._nodes.children(store_paths.ATTENDED)]

    def without_leader(self, topics: Sequence[str]) -> list[str]:
        """Return those of these topics that have no leader."""
        leaders = self._nodes.get_all([store_paths.leader_path(topic) for topic in topics])
        return [topic for topic, node in zip(topics, leaders, strict=True) if node is None]

    def subscription_record(self, topic: str, subscription: str) -> SubscriptionRecord | None:
        """Return the record of a subscription, or None."""
        node = self.get(store_paths.subscription_path(topic, subscription))
        return SubscriptionRecord.model_validate_json(node.value) if node else None

    def get(self, path: str) -> Stored | None:
        """Return the node at a path, or None."""
        return self._nodes.get(path)

    def children(self, path: str) -> list[str]:
        """Return the names below a path, sorted."""
        return self._nodes.children(path)

    def values(self, path: str) -> list[bytes]:
        """Return the values below a path, sorted by name."""
        return [node.value for _, node in self._nodes.values(path)]


def life_of(layout: str | bytes) -> int | None:
    """Return the incarnation of the topic that has this layout record."""
    return _Life.model_validate_json(layout).created_at_ms


def no_topic(topic: str) -> NotFound:
    """Return the refusal of a request about a topic that does not exist."""
    return NotFound(f"Scalable topic not found: {topic}")
