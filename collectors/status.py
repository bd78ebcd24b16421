"""How a collector is doing: what it sees, what it cannot see and how late it is; for people, the doctor, Prometheus.

Stage: filled by the collector's loop a few times a minute, written to a file in one step. A status says when it was
made: one that is old belongs to a collector that does not run.
"""

from __future__ import annotations

import os
from pathlib import Path

from schemas.base import Wire

STATUS_FILE = "status.json"


class BrokerStatus(Wire):
    """One broker, as the collector sees it."""

    broker: str
    answers: bool
    trouble: str | None = None
    """Why it does not, or what was wrong with its last answer."""
    segments: int = 0
    """In its last answer."""
    refused: int = 0
    """Segments in it whose rates are none."""
    refresh_seconds: float
    """Between two computations of its rates."""
    load_age_seconds: float | None = None
    """Since its load was read last; absent: never."""
    lag_seconds: float | None = None
    """From the last computation until it was read, at most."""
    answer_seconds: float | None = None
    """How much of that the broker's answer took."""


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
    segments_known: int
    """Active segments of those."""
    segments_seen: int
    """Of these, those whose rates some broker has said lately."""
    unseen: list[str]
    """Some of the others, each `topic/id`: no broker that answers serves them."""
    consumers_age_seconds: float
    """Since the topic was looked at whose consumers wait longest for it."""
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
    """What is wrong at the moment, a sentence each."""

    @property
    def coverage(self) -> float:
        """Segments seen of segments known, 0 to 1."""
        return self.segments_seen / self.segments_known if self.segments_known else 1.0

    @property
    def is_complete(self) -> bool:
        """Whether the cluster could be read: every broker answers, and nothing is wrong."""
        return bool(self.brokers) and all(one.answers for one in self.brokers) and not self.troubles


def write_status(file: Path, status: CollectorStatus) -> None:
    """Replaces the file in one step; raises `OSError`."""
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_name(f"{file.name}.{os.getpid()}.new")
    scratch.write_text(status.to_json() + "\n")
    os.replace(scratch, file)


def read_status(file: Path) -> CollectorStatus | None:
    """What is in the file; None when there is none, or it holds something else."""
    try:
        return CollectorStatus.model_validate_json(file.read_bytes(), by_alias=True, by_name=False)
    except (OSError, ValueError):
        return None


def describe(status: CollectorStatus) -> str:
    """The status in a few lines for people."""
    lines = [
        f"{status.topics} topics, {status.segments_seen} of {status.segments_known} segments seen "
        f"({status.coverage:.0%}), {status.samples} samples and {status.events} events sent"
    ]
    for one in status.brokers:
        told = f"{one.segments} segments" if one.answers else (one.trouble or "has not answered yet")
        lines.append(f"broker {one.broker}: {told}")
    if status.unseen:
        rest = status.segments_known - status.segments_seen - len(status.unseen)
        lines.append(
            f"not seen (no broker that answers serves them): {', '.join(status.unseen)}"
            + (f" and {rest} more" if rest > 0 else "")
        )
    return "\n".join([*lines, *status.troubles])
