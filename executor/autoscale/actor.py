"""Looks at layouts, splits and merges, through the admin REST interface (design "REST").

Stage: what the kernel acts with on rows of the family `autoscale`; `executor.process` makes one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decisions.topic.layout import SegmentLayout
from executor.admin import AdminClient, TopicGone
from executor.autoscale.decision import SegmentDecision, read_segment_decision
from executor.autoscale.judge import describe, judge
from executor.kernel.family import Answer, NoAnswer, Seen, Verdict

LiveLayout = SegmentLayout | TopicGone


class AutoscaleActor:
    """Acts on topics through one admin interface; an `executor.kernel.family.Actor`."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    def read(self, row: Mapping[str, Any]) -> SegmentDecision:
        """The split or merge in a row of `decisions`. Raises `MalformedDecision`."""
        return read_segment_decision(row)

    def look(self, decision: SegmentDecision) -> LiveLayout | NoAnswer:
        """The topic's layout as it is now."""
        return self._admin.layout(decision.subject)

    def judge(self, decision: SegmentDecision, live: LiveLayout, may_have_called: bool) -> Verdict:
        """By the layout's lineage (`executor.autoscale.judge`)."""
        return judge(decision, _layout(live), may_have_called)

    def describe(self, decision: SegmentDecision, live: LiveLayout) -> Seen:
        """The decision's segments and their children, as the live layout has them."""
        layout = _layout(live)
        return Seen(describe(decision, layout), None if layout is None else layout.epoch)

    def call(self, decision: SegmentDecision) -> Answer:
        """The split or merge."""
        if decision.action == "split":
            return self._admin.split_segment(decision.subject, decision.segments[0], decision.decision_id)
        first, second = decision.segments
        return self._admin.merge_segments(decision.subject, first, second, decision.decision_id)


def _layout(live: LiveLayout) -> SegmentLayout | None:
    return None if isinstance(live, TopicGone) else live
