"""Look at layouts, split, merge and rebucket through the admin REST interface (design "REST").

Stage: the kernel calls it for rows of the family `autoscale`; `anabranch.executor.process` makes one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from anabranch.admin.answers import Answered, Nonsense, Refused, Reply
from anabranch.admin.connections import only_while
from anabranch.admin.topics import ScalableTopics
from anabranch.executor.autoscale.decision import SegmentDecision, read_segment_decision
from anabranch.executor.autoscale.judge import describe, judge, pending_rebuckets
from anabranch.executor.kernel.family import Answer, CallAccepted, NoAnswer, Observation, Verdict
from anabranch.executor.replies import MAX_REASON, answer_to_call, no_answer
from decisions.topic.layout import SegmentLayout
from schemas.ids import topic_parts


@dataclass(frozen=True)
class TopicGone:
    """Confirmation by the interface that the topic does not exist."""

    reason: str


LiveLayout = SegmentLayout | TopicGone


class AutoscaleActor:
    """Actor for topics behind one admin interface; an `anabranch.executor.kernel.family.Actor`."""

    def __init__(self, topics: ScalableTopics) -> None:
        self._topics = topics

    def read(self, row: Mapping[str, Any]) -> SegmentDecision:
        """Return the split, merge or rebucket in a row of `decisions`. Raises `MalformedDecision`."""
        return read_segment_decision(row)

    def namespace(self, subject: str) -> str | None:
        """Return `tenant/namespace` of a topic name; None for a malformed name."""
        try:
            tenant, namespace, _ = topic_parts(subject)
        except ValueError:
            return None
        return f"{tenant}/{namespace}"

    def look(self, decision: SegmentDecision) -> LiveLayout | NoAnswer:
        """Return the topic's current layout."""
        return live_layout(decision.subject, self._topics.layout(decision.subject))

    def judge(self, decision: SegmentDecision, live: LiveLayout, may_have_called: bool) -> Verdict:
        """Judge a decision by the layout's lineage (`anabranch.executor.autoscale.judge`)."""
        return judge(decision, _layout(live), may_have_called)

    def describe(self, decision: SegmentDecision, live: LiveLayout) -> Observation:
        """Describe the decision's segments and their children in the live layout."""
        layout = _layout(live)
        return Observation(describe(decision, layout), None if layout is None else layout.epoch)

    def call(self, decision: SegmentDecision, live: LiveLayout, may_send: Callable[[], bool]) -> Answer:
        """Make the change on the layout that was seen.

        A rebucket is one call for each segment still to be replaced, with a look after each call. The first failure
        ends it, and the next try continues with the segments that are left.
        """
        topic, name, seen = decision.subject, decision.decision_id, _layout(live)
        with only_while(may_send):
            if decision.action == "rebucket":
                return self._rebucket(decision, seen)
            if decision.action == "split":
                return answer_to_call(self._topics.split_segment(topic, decision.segments[0], name, seen))
            first, second = decision.segments
            return answer_to_call(self._topics.merge_segments(topic, first, second, name, seen))

    def _rebucket(self, decision: SegmentDecision, seen: SegmentLayout | None) -> Answer:
        topic, name, buckets = decision.subject, decision.decision_id, decision.bucket_count or 1
        answer: Answer = CallAccepted()
        while seen is not None and (pending := pending_rebuckets(decision, seen)):
            answer = answer_to_call(self._topics.rebucket_segment(topic, pending[0], buckets, name, seen))
            if not isinstance(answer, CallAccepted) or len(pending) == 1:
                return answer
            live = self.look(decision)
            if isinstance(live, NoAnswer):
                return live
            before, seen = seen, _layout(live)
            if seen is not None and seen.epoch <= before.epoch:
                return NoAnswer("a call was accepted, but does not show yet")
        return answer


def live_layout(topic: str, reply: Reply[SegmentLayout]) -> LiveLayout | NoAnswer:
    """Interpret the reply to a look; a 404 from a proxy says nothing about the topic."""
    if isinstance(reply, Answered):
        return reply.value
    if isinstance(reply, Refused) and reply.status == 404 and reply.from_interface:
        return TopicGone(reply.reason)
    if isinstance(reply, Nonsense):
        return NoAnswer(f"GET {topic} was answered with what is no layout: {reply}"[:MAX_REASON])
    return no_answer(f"GET {topic}", reply)


def _layout(live: LiveLayout) -> SegmentLayout | None:
    return None if isinstance(live, TopicGone) else live
