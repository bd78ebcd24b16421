"""Status of a collector, for people, the doctor and Prometheus: coverage, faults and delays.

Stage: filled by the loops of `pulsar.collector` and `kafka.collector` a few times a minute, written to a file in one
step; `metrics` shows it to Prometheus. An old status belongs to a collector that does not run.
"""

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from schemas.base import Wire

log = logging.getLogger(__name__)

STATUS_FILE = "status.json"
SEGMENTS_FILE = "segments.json"
"""Rates and lags of segments, written by the collector of Kafka."""


class BrokerStatus(Wire):
    """One broker, as the collector sees it."""

    broker: str
    answers: bool
    trouble: str | None = None
    """Why it does not answer, or what was wrong with its last answer."""
    segments: int = 0
    """In its last answer."""
    refused: int = 0
    """Segments in it whose rates are none."""
    refresh_seconds: float
    """Time between two computations of its rates."""
    load_age_seconds: float | None = None
    """Time since its load was read last; absent: never."""
    lag_seconds: float | None = None
    """Longest time from the last computation of its rates until they were read."""
    answer_seconds: float | None = None
    """Part of the lag that the broker's answer took."""
    unchanged_seconds: float | None = None
    """Time since its rates last changed."""
    stuck: bool = False
    """True if it has stopped computing its rates: they show traffic and do not change."""


class CollectorStatus(Wire):
    """One collector."""

    url: str
    at: int
    """When this was made, ms since 1970."""
    stale_after_seconds: float
    """An older status belongs to a collector that does not run."""
    brokers: list[BrokerStatus]
    topics: int
    """Topics whose layout is known."""
    topics_listed: int
    topics_unread: int = 0
    """Topics that are listed, and whose layout was never read."""
    namespaces_unlisted: int = 0
    """Namespaces whose topics were never listed."""
    consumers_unread: int = 0
    """Topics whose consumers were never read."""
    segments_known: int
    """Active segments of those."""
    segments_seen: int
    """Of these, those whose rates a broker has reported lately."""
    unseen: list[str]
    """Some of the others, each `topic/id`: no broker that answers serves them."""
    consumers_age_seconds: float
    """Time since the oldest reading of a topic's consumers; since the topic is known if there was none."""
    used_consumers_age_seconds: float = 0.0
    """The same of topics that are used: a broker shows consumers or traffic, or consumers are counted."""
    layouts_age_seconds: float
    """The same of layouts."""
    samples: int
    """Samples that were handed to Kafka so far."""
    events: int
    """Announcements that were handed to Kafka so far."""
    waiting: int
    """Records that Kafka has not confirmed yet."""
    lost: int
    """Records with samples that were given up: Kafka has not taken them in time."""
    calls: int
    failed_calls: int
    troubles: list[str]
    """Current faults, a sentence each."""

    @property
    def coverage(self) -> float:
        """Segments seen of all segments, 0 to 1; a topic whose layout was never read counts as one not seen."""
        segments = self.segments_known + self.topics_unread
        return self.segments_seen / segments if segments else 1.0

    @property
    def is_complete(self) -> bool:
        """Return whether the cluster was read completely: all brokers answer, nothing is unread or wrong."""
        unread = self.topics_unread + self.namespaces_unlisted + self.consumers_unread
        return (
            bool(self.brokers) and all(broker.answers for broker in self.brokers) and not self.troubles and not unread
        )

    @property
    def is_delivered(self) -> bool:
        """Return whether samples of all segments were sent, and Kafka has confirmed every record."""
        return self.segments_seen >= self.segments_known and not self.waiting and not self.lost

    @property
    def unread(self) -> str:
        """Return a description of what was never read; empty if nothing."""
        counts = (
            (self.namespaces_unlisted, "the topics of {:,} namespaces"),
            (self.topics_unread, "the layouts of {:,} topics"),
            (self.consumers_unread, "the consumers of {:,} topics"),
        )
        return ", ".join(words.format(count) for count, words in counts if count)


def write_status(file: Path, status: CollectorStatus) -> None:
    """Replace the file in one step. Raises `OSError`."""
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_name(f"{file.name}.{os.getpid()}.new")
    scratch.write_text(status.to_json() + "\n")
    os.replace(scratch, file)


def read_status(file: Path) -> CollectorStatus | None:
    """Return the status in the file; None when there is no file, or no status in it."""
    try:
        return CollectorStatus.model_validate_json(file.read_bytes(), by_alias=True, by_name=False)
    except (OSError, ValueError):
        return None


def describe_status(status: CollectorStatus) -> str:
    """Return the status in a few lines for people."""
    lines = [
        f"{status.topics:,} of {status.topics + status.topics_unread:,} topics, {status.segments_seen:,} of "
        f"{status.segments_known:,} segments seen ({format_percent(status.coverage)}), {status.samples:,} samples and "
        f"{status.events:,} events sent"
    ]
    if status.unread:
        lines.append(f"not read yet: {status.unread}")
    for broker in status.brokers:
        same = f", the same rates for {broker.unchanged_seconds or 0:.0f} s" if broker.stuck else ""
        state = f"{broker.segments} segments{same}" if broker.answers else (broker.trouble or "has not answered yet")
        lines.append(f"broker {broker.broker}: {state}")
    if status.unseen:
        unlisted = status.segments_known - status.segments_seen - len(status.unseen)
        lines.append(
            f"not seen (no broker that answers serves them): {', '.join(status.unseen)}"
            + (f" and {unlisted} more" if unlisted > 0 else "")
        )
    return "\n".join([*lines, *status.troubles])


def format_percent(share: float) -> str:
    """Return a share in percent; less than 100 % unless it is whole."""
    return "100%" if share >= 1.0 else f"{min(share, 0.999):.1%}"


class Troubles:
    """Current read failures, a sentence each, by what they are about: a kind of call and what was asked."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], str] = {}

    def __contains__(self, about: tuple[str, str]) -> bool:
        return about in self._known

    def __iter__(self) -> Iterator[str]:
        return iter(self._known.values())

    def keep(self, concerns: Callable[[str, str], bool]) -> None:
        """Drop the failures whose kind and key `concerns` rejects: their subject is gone."""
        for about in [about for about in self._known if not concerns(*about)]:
            del self._known[about]

    def note(self, about: tuple[str, str], trouble: str | None) -> None:
        """Record a failure, or None if reading works; log its beginning and its end."""
        before = self._known.get(about)
        if trouble is None:
            if self._known.pop(about, None) is not None:
                log.info("%s %s can be read again", *about)
            return
        self._known[about] = trouble
        if before is None:
            log.warning("%s", trouble)
