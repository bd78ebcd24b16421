"""Repetition of announcements over `snapshot_seconds`, and of lost deletions at once.

Stage: under `pulsar.collector`, over `announced`, which knows what was announced.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator

from anabranch.collectors.announced import AnnouncedState
from anabranch.collectors.announcements import KafkaRecord, known_records
from schemas.codecs.known_layouts import FULL_EVERY

_STEP_SECONDS = 1.0
"""Between two looks at what is due."""


class Repeats:
    """Resync of what `announced` holds, through `announce`, every `seconds`.

    A layout is announced in full when it was not for `FULL_EVERY` rounds, else by its digest.
    """

    def __init__(
        self, announced: AnnouncedState, seconds: float, announce: Callable[[list[KafkaRecord]], None]
    ) -> None:
        self._announced, self._seconds, self._announce = announced, seconds, announce
        self._topics: deque[str] = deque()
        """The topic that was said longest ago first."""
        self._look_at = self._policies_at = 0.0

    def add(self, topic: str) -> None:
        """A topic whose layout was said for the first time."""
        self._topics.append(topic)

    def say(self, now: float, has_room: Callable[[], bool]) -> None:
        """Announce what is due at `now`, as long as there is room."""
        again, self._announced.again = self._announced.again, []
        self._announce(again)
        if now < self._look_at:
            return
        self._look_at = now + _STEP_SECONDS
        now_ms = time.time_ns() // 1_000_000
        if not self._policies_at:
            self._policies_at = now + self._seconds
        if now >= self._policies_at and has_room():
            self._policies_at = now + self._seconds
            self._announce(list(self._announced.repeat_policies(now_ms)))
        unchanged = []
        for topic in self._due(now_ms, has_room):
            by_digest = self._announced.known(topic, now_ms, int(self._seconds * 1_000 * FULL_EVERY))
            if by_digest is not None:
                unchanged.append(by_digest)
            self._announce(list(self._announced.repeats(topic, now_ms, with_layout=by_digest is None)))
        self._announce(list(known_records(unchanged, now_ms, self._announced.sender)))

    def _due(self, now_ms: int, has_room: Callable[[], bool]) -> Iterator[str]:
        """Topics that were not said for so long, as long as there is room."""
        for _ in range(len(self._topics)):
            topic = self._topics[0]
            if (announced := self._announced.topics.get(topic)) is None:
                self._topics.popleft()
                continue
            if now_ms - announced.announced_at < self._seconds * 1_000 or not has_room():
                return
            self._topics.rotate(-1)
            yield topic
