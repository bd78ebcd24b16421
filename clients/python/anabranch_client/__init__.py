"""Clients for scalable topics whose segments are Kafka topics.

Stage: outside the product; imports none of its packages. `watch` follows layouts, `lanes` routes messages, `producer`
writes them, `stream_consumer`, `queue_consumer` and `checkpoint_consumer` read them.
"""

from anabranch_client.checkpoint_consumer import CheckpointConsumer
from anabranch_client.messages import DeliveryReport, MessagePosition
from anabranch_client.producer import Producer
from anabranch_client.queue_consumer import QueueConsumer
from anabranch_client.received import ReceivedMessage
from anabranch_client.stream_consumer import StreamConsumer
from anabranch_client.transactions import TransactionalProducer

__all__ = [
    "CheckpointConsumer",
    "DeliveryReport",
    "MessagePosition",
    "Producer",
    "QueueConsumer",
    "ReceivedMessage",
    "StreamConsumer",
    "TransactionalProducer",
]
