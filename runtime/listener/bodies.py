"""Request bodies, read completely before a request is handled, so that no endpoint waits for a sender.

Stage: under the gates of controller and page.
"""

from collections.abc import Callable

from starlette.types import Message, Receive


class BrokenOff(Exception):
    """The client has left before its request was there."""


async def read_body(receive: Receive, max_bytes: int, count: Callable[[int], None] = lambda _: None) -> bytes | None:
    """Return the whole body; None when it is too large. Raises `BrokenOff`, and what `count` raises.

    `count` is given the bytes as they come, as a sender may take its time.
    """
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise BrokenOff
        chunk = message.get("body", b"")
        if len(body) + len(chunk) > max_bytes:
            return None
        count(len(chunk))
        body += chunk
        if not message.get("more_body", False):
            return bytes(body)


def replay_body(body: bytes, receive: Receive) -> Receive:
    """Return `receive` for an app, with a body that was read before."""
    pending = [body]

    async def replay() -> Message:
        return {"type": "http.request", "body": pending.pop(), "more_body": False} if pending else await receive()

    return replay
