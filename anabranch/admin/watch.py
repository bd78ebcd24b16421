"""Layouts pushed by our controller (Pulsar has no such path): server-sent events of `…/watch`.

Stage: over `transport`, called by `anabranch.admin.topics`. A caller that gets `NoWatch` polls instead.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import httpx
from httpx_sse import EventSource

from anabranch.admin.answers import Misdirected, Nonsense, Unanswered
from anabranch.admin.paths import topic_path
from anabranch.admin.transport import MAX_BODY_BYTES, NETWORK_FAULTS, BodyTooLarge, Transport, unanswered_reason
from decisions.topic.layout import SegmentLayout
from schemas.metadata import ScalableTopicMetadata

SILENCE_SECONDS = 60.0
"""Longest silence: a server that pushes sends at least a comment every 15 s."""
_EVENTS = "text/event-stream"


@dataclass(frozen=True)
class NoWatch:
    """The server does not push layouts: it responded with this status."""

    status: int


Pushed: TypeAlias = SegmentLayout | NoWatch | Nonsense | Unanswered


def watch_layouts(transport: Transport, topic: str, since: int) -> Iterator[Pushed]:
    """Yield every layout after epoch `since`; ends with the stream or after an invalid layout."""
    path = f"{topic_path(topic)}/watch"
    headers = {"Accept": _EVENTS, "Last-Event-ID": str(since)}
    try:
        with transport.stream("GET", path, headers=headers, silence_seconds=SILENCE_SECONDS) as answer:
            if isinstance(answer, Misdirected):
                yield answer
            elif answer.status_code != 200 or _EVENTS not in answer.headers.get("content-type", ""):
                yield NoWatch(answer.status_code)
            else:
                yield from _read_layouts(answer)
    except NETWORK_FAULTS as error:
        yield unanswered_reason(f"GET {transport.url}{path}", error, may_be_done=False)


def _read_layouts(answer: httpx.Response) -> Iterator[SegmentLayout | Nonsense]:
    """Yield the layouts of an event stream; ignore other events, end after an invalid one."""
    bounded = _Bounded(answer.iter_bytes())
    # Events are always UTF-8, even if the server declares another encoding.
    for event in EventSource(httpx.Response(200, headers={"content-type": _EVENTS}, stream=bounded)).iter_sse():
        bounded.size = 0
        if event.event == "layout":
            layout = _read_layout(event.data)
            yield layout
            if isinstance(layout, Nonsense):
                return


def _read_layout(message: str) -> SegmentLayout | Nonsense:
    try:
        parsed = json.loads(message)
        if not isinstance(parsed, dict) or "layout" not in parsed:
            return Nonsense("it has no layout")
        return SegmentLayout.from_metadata(ScalableTopicMetadata.model_validate_json(json.dumps(parsed["layout"])))
    except (ValueError, RecursionError) as error:
        return Nonsense(str(error))


class _Bounded(httpx.SyncByteStream):
    """Bytes of a stream; raises once a single event is too large."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = chunks
        self.size = 0
        """Bytes since the last event."""

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            self.size += len(chunk)
            if self.size > MAX_BODY_BYTES:
                raise BodyTooLarge
            yield chunk
