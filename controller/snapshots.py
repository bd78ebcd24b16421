"""The truth again, now and then: every namespace policy, layout and consumer count, so that a listener can heal.

Stage: asked by the publisher, page by page, inside the same view in which it read the outbox. A page is therefore never
older than an announcement that was sent before it, and what changes later is announced after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from controller.announcements import Record, consumer_record, layout_record, policy_record
from controller.store import View

TOPICS_A_PAGE = 50


class Snapshots:
    """Rounds over the whole store: the first at once, then one every `every_seconds`."""

    def __init__(self, every_seconds: float, now_ms: Callable[[], int]) -> None:
        self._every_seconds = every_seconds
        self._now_ms = now_ms
        self._due = time.monotonic()
        self._topic: str | None = None
        """The last topic of the page before; None between two rounds."""

    def due_in(self) -> float:
        """Seconds until there is a page to send; 0 in the middle of a round."""
        return 0.0 if self._topic is not None else max(0.0, self._due - time.monotonic())

    def restart(self) -> None:
        """Begin a round anew: what was sent of this one may be lost."""
        self._topic = None
        self._due = time.monotonic()

    def next_page(self, view: View) -> list[Record]:
        """The next records of the round, nothing when none is due."""
        if self.due_in() > 0:
            return []
        now = self._now_ms()
        records: list[Record | None] = []
        if self._topic is None:
            self._topic = ""
            self._due = time.monotonic() + self._every_seconds
            records += [policy_record(name, policy, now) for name, policy in view.namespace_policies().items()]
        topics = view.topics_after(self._topic, TOPICS_A_PAGE)
        for topic, _, metadata in topics:
            records.append(layout_record(topic, "snapshot", metadata, now))
            records += [
                consumer_record(topic, name, type, "snapshot", consumers, now)
                for name, type, consumers in view.subscriptions(topic)
            ]
        self._topic = topics[-1].topic if len(topics) == TOPICS_A_PAGE else None
        return [record for record in records if record is not None]
