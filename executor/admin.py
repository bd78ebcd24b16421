"""The admin interface as the executor sees it: what a layout or a call tells about a decision.

Stage: under the actors; a thin adapter on the admin client. An answer that does not say clearly "done" or "that is
wrong" is `NoAnswer`, and then the layout has to be asked.
"""

from __future__ import annotations

from dataclasses import dataclass

from admin import answers
from admin.answers import Answered, Reply
from admin.topics import ScalableTopics
from admin.transport import Transport
from decisions.topic.layout import SegmentLayout
from executor.kernel.family import Accepted, NoAnswer, Refused

_SHOWN = 500


@dataclass(frozen=True)
class TopicGone:
    """The interface has said that there is no such topic."""

    reason: str


class AdminClient:
    """One admin interface, in the executor's terms; used by several threads at once."""

    def __init__(self, url: str, token: str | None, timeout_seconds: float) -> None:
        """`url` is the base, without `/admin/v2`; `timeout_seconds` bounds each answer as a whole."""
        self._topics = ScalableTopics(
            Transport(url, token, user_agent="anabranch-executor", timeout_seconds=timeout_seconds)
        )

    def layout(self, topic: str) -> SegmentLayout | TopicGone | NoAnswer:
        """The layout of a topic as it is now."""
        return seen_layout(topic, self._topics.layout(topic))

    def split_segment(self, topic: str, segment: int, decision_id: str) -> Accepted | Refused | NoAnswer:
        """POST …/split/ID."""
        return called(self._topics.split_segment(topic, segment, decision_id))

    def merge_segments(self, topic: str, first: int, second: int, decision_id: str) -> Accepted | Refused | NoAnswer:
        """POST …/merge/ID1/ID2."""
        return called(self._topics.merge_segments(topic, first, second, decision_id))

    def close(self) -> None:
        """Drop all connections; calls that wait for an answer end with `NoAnswer`."""
        self._topics.close()


def seen_layout(topic: str, reply: Reply[SegmentLayout]) -> SegmentLayout | TopicGone | NoAnswer:
    """What a look tells. A 404 of something in front of the interface says nothing about the topic."""
    if isinstance(reply, Answered):
        return reply.value
    if isinstance(reply, answers.Refused) and reply.status == 404 and reply.from_interface:
        return TopicGone(reply.reason)
    if isinstance(reply, answers.Nonsense):
        return NoAnswer(f"GET {topic} was answered with what is no layout: {reply}"[:_SHOWN])
    return _no_answer(f"GET {topic}", reply)


def called(reply: Reply[None]) -> Accepted | Refused | NoAnswer:
    """What the answer to a call tells."""
    if isinstance(reply, Answered):
        return Accepted()
    if isinstance(reply, answers.Refused):
        return Refused(str(reply)[:_SHOWN])
    return _no_answer("the call", reply)


def _no_answer(what: str, fault: object) -> NoAnswer:
    text = f"{what} was answered with {fault}" if isinstance(fault, answers.Rejection) else str(fault)
    return NoAnswer(text[:_SHOWN], denied=isinstance(fault, answers.Denied))
