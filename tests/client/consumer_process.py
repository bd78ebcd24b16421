"""A stream consumer as a process: prints each batch as JSON; on a line from its input it acknowledges and commits.

On the line `end` it acknowledges, and ends with its input, without closing the consumer.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
from contextlib import suppress

from anabranch_client.errors import AssignmentLost
from anabranch_client.received import ReceivedMessage
from anabranch_client.stream_consumer import StreamConsumer


def main(order: str) -> None:
    """Run until killed."""
    asked = json.loads(order)
    lines: queue.Queue[str] = queue.Queue()
    listening = threading.Thread(target=lambda: [lines.put(line) for line in sys.stdin], daemon=True)
    listening.start()
    consumer = StreamConsumer(asked["config"], asked["topic"], "s", asked["name"])
    newest: ReceivedMessage | None = None
    while True:
        messages = consumer.consume(50, 0.05)
        if messages:
            newest = messages[-1]
            print(json.dumps([[str(m.key(), "ascii"), int(m.value() or b"")] for m in messages]), flush=True)
            if asked["acknowledges"]:
                with suppress(AssignmentLost):
                    consumer.acknowledge(newest)
        if not lines.empty():
            line = lines.get()
            assert newest is not None
            try:
                consumer.acknowledge(newest)
                if line == "end\n":
                    listening.join()
                    return
                consumer.commit(10)
                print('"stored"', flush=True)
            except AssignmentLost:
                print('"lost"', flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
