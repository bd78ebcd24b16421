"""Heads of requests: refused before they are parsed when h11 would take long for them."""

import re

import h11

MAX_HEADERS = 100
MAX_BLANKS = 256
"""Spaces and tabs in a row in a head."""

TOO_LARGE_HEAD = f"the headers are too large, or more than {MAX_HEADERS}"
REASONS = {
    400: "this is no HTTP request",
    408: "the request did not arrive in time",
    411: "a body needs the header Content-Length; chunks are not taken",
    431: TOO_LARGE_HEAD,
}
"""Texts of the refusals by status."""


class BoundedParser(h11.Connection):
    """h11 parser that rejects heads which are slow to parse, also in pipelined requests."""

    def __init__(self, max_head_bytes: int) -> None:
        super().__init__(h11.SERVER, max_head_bytes)
        self._max_head_bytes = max_head_bytes
        self.fault: int | None = None
        """Status that the head is refused with."""

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """See `h11.Connection`."""
        if self.their_state is h11.IDLE:
            self.fault = fault_of_head(self.trailing_data[0], self._max_head_bytes)
            if self.fault is not None:
                raise h11.RemoteProtocolError(REASONS[self.fault])
        return super().next_event()

    def drop_data(self) -> None:
        """Free the bytes that have come and are not parsed; none of them will be."""
        self._receive_buffer = type(self._receive_buffer)()


_END_OF_HEAD = re.compile(rb"\n\r?\n")
_BLANKS = re.compile(rb"[ \t]{%d}" % (MAX_BLANKS + 1))
_CHUNKS = re.compile(rb"\ntransfer-encoding[ \t]*:", re.IGNORECASE)


def fault_of_head(data: bytes, max_bytes: int) -> int | None:
    """Return the status that rejects the head at the start of `data`, or None, in linear time."""
    head = data[:max_bytes]
    end = _END_OF_HEAD.search(head)
    if end is None and len(data) > max_bytes:
        return 431
    head = head[: end.end()] if end else head
    if head.count(b"\n") > MAX_HEADERS + 2:
        return 431
    if _BLANKS.search(head):
        return 400
    return 411 if _CHUNKS.search(head) else None


def is_large_head(target: str, headers: list[tuple[bytes, bytes]], max_bytes: int) -> bool:
    """Return whether the head of a parsed request exceeds the limits."""
    size = len(target) + sum(len(name) + len(value) + 4 for name, value in headers)
    return len(headers) > MAX_HEADERS or size > max_bytes
