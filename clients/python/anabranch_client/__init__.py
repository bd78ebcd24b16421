"""Clients for scalable topics whose segments are Kafka topics.

Stage: outside the product; imports none of its packages. `watch` follows layouts, `lanes` routes messages, `producer`
writes them.
"""

from anabranch_client.messages import DeliveryReport, MessagePosition
from anabranch_client.producer import Producer

__all__ = ["DeliveryReport", "MessagePosition", "Producer"]
