"""Clients for scalable topics on Kafka: segments are Kafka topics, a controller splits and merges them.

Stage: outside the product; imports none of its packages. `watch` follows layouts, `lanes` routes messages, `producer`
writes them.
"""

from anabranch_client.messages import Delivery, Position
from anabranch_client.producer import Producer

__all__ = ["Delivery", "Position", "Producer"]
