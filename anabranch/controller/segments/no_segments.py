"""Segment store without segment topics: clients handle the messages, the controller only layouts.

Every operation succeeds; nothing is remembered.
"""

from collections.abc import Iterable, Mapping, Sequence

from anabranch.controller.segments.base import Position, SegmentStore, SegmentTopicStats, Target, segment_name
from schemas.metadata import HashRange


class NoSegments(SegmentStore):
    """Segments without messages: never terminated, without subscriptions, without a backlog."""

    def of_incarnation(self, created_at: int | None) -> SegmentStore:
        return self

    def answers(self) -> bool:
        return True

    def check_topic(self, topic: str) -> None:
        pass

    def create(self, topic: str, segment_id: int, hash_range: HashRange, subscriptions: Iterable[str] = ()) -> str:
        return segment_name(topic, segment_id, hash_range)

    def create_subscription(self, segment: str, subscription: str, position: Position = "earliest") -> None:
        pass

    def set_position(self, segment: str, subscription: str, position: int) -> None:
        pass

    def delete_subscription(self, segment: str, subscription: str) -> None:
        pass

    def check_unused(self, segment: str, subscription: str) -> None:
        pass

    def seek(self, segment: str, subscription: str, target: Target) -> None:
        pass

    def subscriptions(self, segment: str) -> list[str]:
        return []

    def terminate(self, segment: str) -> int:
        return 0

    def is_terminated(self, segment: str) -> bool:
        return False

    def delete(self, segment: str) -> None:
        pass

    def backlog(self, segment: str, subscription: str) -> int:
        return 0

    def unread(self, segment: str, subscriptions: Iterable[str]) -> Mapping[str, int | None]:
        return {}

    def owners(self, segments: Sequence[str]) -> dict[str, str]:
        return {}

    def stats(self, segment: str) -> SegmentTopicStats:
        return SegmentTopicStats(False, 0, 0, {})
