"""A process that does one operation on a segment and kills itself with -9 after its n-th change of anything in Kafka.

Run as `python -m tests.controller.segments.killed_at BOOTSTRAP TOPIC OPERATION CHANGE` with the operation create,
terminate or delete; exits with 0 when there were fewer changes than that.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from confluent_kafka.admin import AdminClient

from anabranch.controller.segments.kafka import KafkaSegments
from schemas.kafka.connection import KafkaConnection
from schemas.metadata import HashRange

WHOLE = HashRange(start=0, end=0xFFFF)
SUBSCRIPTIONS = ["audit", "billing"]


CHANGES = {
    "create_topics",
    "delete_topics",
    "incremental_alter_configs",
    "alter_consumer_group_offsets",
    "delete_consumer_groups",
}


class _DyingAdmin:
    """The real client until a chosen change has been answered."""

    def __init__(self, admin: AdminClient, changes: int) -> None:
        self._admin, self._left = admin, changes

    def __getattr__(self, name: str) -> Callable[..., Any]:
        real: Callable[..., Any] = getattr(self._admin, name)
        return partial(self._change, real) if name in CHANGES else real

    def _change(self, real: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        answer = real(*arguments, **named)
        self._left -= 1
        if self._left == 0:
            for future in answer.values():
                future.exception(10)
            os.kill(os.getpid(), signal.SIGKILL)
        return answer


def main(bootstrap: str, topic: str, operation: str, change: str) -> None:
    """See the module."""
    segments = KafkaSegments(KafkaConnection(bootstrap))
    dying: Any = _DyingAdmin(segments._kafka.admin, int(change))
    segments._kafka._admin = dying
    if operation == "create":
        segments.create(topic, 0, WHOLE, SUBSCRIPTIONS)
    else:
        getattr(segments, operation)(f"segment://{topic.removeprefix('topic://')}/0000-ffff-0")


if __name__ == "__main__":
    main(*sys.argv[1:])
