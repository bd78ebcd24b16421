"""Lives of the topics that had one name, told apart as by the job (`engine.autoscale.incarnations`).

Pure.

Stage: under `own`, the backtest, the demand of a lake and the live view. Announcements arrive late and are repeated. A
late one of an earlier life says nothing about the known one. It is recognised by `topicCreatedAt`; where announcements
lack it, as with Pulsar's own, by its time and by the segments of its layout.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from decisions.topic.layout import LayoutError, SegmentLayout
from decisions.topic.lineage import compare_lives
from decisions.topic.segment import Segment
from schemas.kafka.messages import LayoutEvent


class LifeOf(Enum):
    """Life of an announcement relative to the known one."""

    EARLIER = "one that has ended"
    THIS = "the known one, or the first"
    LATER = "one that begins with the announcement"


@dataclass
class NameLives:
    """The known life of a name, and the end of the one before it; instants are milliseconds since 1970."""

    segments: Mapping[int, Segment] = field(default_factory=dict)
    """Of the newest layout; empty: none is known."""
    created_at: int | None = None
    """Start of the known life, if announced."""
    deleted_at: int | None = None
    """End of the life before, by the clock of whoever announced it; None: none has ended."""
    ended_created_at: int | None = None
    """Start of the life before, if announced."""

    def follow_layout(self, segments: Mapping[int, Segment], created_at: int | None, said_at: int) -> LifeOf:
        """Apply the announcement of a layout, and return its life."""
        life = LifeOf.EARLIER if self.is_earlier(created_at, said_at) else self._compare(segments, created_at)
        if life is not LifeOf.EARLIER:
            if life is LifeOf.LATER or created_at is not None:
                self.created_at = created_at
            self.segments = segments
        return life

    def follow_deletion(self, segments: Mapping[int, Segment], created_at: int | None, said_at: int) -> bool:
        """Apply the announcement of a deletion; return False for one that is late or repeated."""
        is_repeated = created_at is None and self.deleted_at is not None and said_at <= self.deleted_at
        if is_repeated or self.is_earlier(created_at, said_at):
            return False
        if self._compare(segments, created_at) is LifeOf.EARLIER:
            return False
        self.deleted_at = said_at
        self.ended_created_at = self.created_at if created_at is None else created_at
        self.segments, self.created_at = {}, None
        return True

    def follow_consumers(self, created_at: int | None, said_at: int) -> LifeOf:
        """Apply the announcement of a count of consumers, and return its life."""
        if not self.has_consumers(created_at, said_at):
            return LifeOf.EARLIER
        if created_at is None or created_at == self.created_at:
            return LifeOf.THIS
        is_later = self.created_at is not None
        self.segments, self.created_at = ({} if is_later else self.segments), created_at
        return LifeOf.LATER if is_later else LifeOf.THIS

    def is_earlier(self, created_at: int | None, said_at: int) -> bool:
        """Return whether an announcement is of a life before the known one, judged by instants alone."""
        if created_at is None:
            begins = (self.deleted_at, self.created_at)
            return any(begin is not None and said_at < begin for begin in begins)
        ended_at = self.deleted_at if self.ended_created_at is None else self.ended_created_at
        is_of_ended = ended_at is not None and created_at <= ended_at
        return is_of_ended or (self.created_at is not None and created_at < self.created_at)

    def has_consumers(self, created_at: int | None, said_at: int) -> bool:
        """Return whether a count of consumers is of the known life."""
        is_of_ended = created_at is None and self.deleted_at is not None and said_at <= self.deleted_at
        return not is_of_ended and not self.is_earlier(created_at, said_at)

    def _compare(self, segments: Mapping[int, Segment], created_at: int | None) -> LifeOf:
        if created_at is not None and self.created_at is not None:
            return LifeOf.THIS if created_at == self.created_at else LifeOf.LATER
        return (LifeOf.THIS, LifeOf.LATER, LifeOf.EARLIER)[compare_lives(self.segments, segments)]


def read_layout(event: LayoutEvent) -> SegmentLayout | None:
    """Return the layout of an announcement; None: it breaks a rule of layouts."""
    try:
        return SegmentLayout.from_metadata(event.layout)
    except LayoutError:
        return None
