"""JSON records of a subscription and its consumers (PIP-468 "Metadata Store Paths").

Stage: values at the paths of `anabranch.controller.metadata.store_paths`. A `SubscriptionRecord` is stored at
`…/subscriptions/{subscription}` and a `ConsumerRegistration` at `…/consumers/{consumerName}` below it, so that a
consumer that comes or goes costs one small write. Connections and grace periods are not stored.
"""

from typing import Annotated

from pydantic import Field

from schemas.base import Name, SegmentId, Wire
from schemas.kafka.messages import SubscriptionType
from schemas.metadata import MAX_SEGMENTS_IN_METADATA

MAX_OPERATIONS = 20
"""Number of newest operations that a topic's journal keeps; ZooKeeper holds all of them in memory."""


class SubscriptionRecord(Wire):
    """A subscription without its consumers; Pulsar 5 stores no drained ids and polls after a failover."""

    type: SubscriptionType
    drained: Annotated[tuple[SegmentId, ...], Field(max_length=MAX_SEGMENTS_IN_METADATA)] = ()
    """Ids of the sealed segments in the layout that it has read to the end, ascending."""
    contested: dict[Name, tuple[SegmentId, ...]] | None = None
    """Ids of segments that consumers without a connection keep from others, by consumer.

    None: there are none. Absent in records of older releases.
    """
    life: Annotated[str, Field(max_length=32)] | None = None
    """Distinguishes it from an earlier, deleted subscription of its name.

    Absent in records of older releases.
    """


def same_life(life: str | None, other: str | None) -> bool:
    """Return whether two incarnations may be the same subscription; None: unknown."""
    return life is None or other is None or life == other


class ConsumerRegistration(Wire):
    """A session. As in Pulsar 5 without its segments: they follow from names, layout and drained ids."""

    consumer_name: Name
    session: bool = True
    """False: registered by REST, it needs no connection and stays until it is unregistered."""
