"""What a collector that was killed had said: the topics that it knew and whom it asked about them, in a file.

Stage: beside `said`. A collector that starts says everything anew, so it needs no memory for what is there. But a topic
that was deleted while no collector ran is in no answer of the cluster: only who knew it can say that it is gone. And
consumers are to be asked of the broker that was asked before (`pulsar.brokers` says why). The file is written in one
step, seldom if it is large, and may be deleted at any time.
"""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import Field

from collectors.said import Said
from schemas.base import TopicName, Wire
from schemas.messages import Sender
from schemas.metadata import ScalableTopicMetadata

MEMORY_FILE = "topics.json"
WRITE_SECONDS = 2.0
TOPICS_PER_SECOND = 300
"""Time between two writes: the longer of `WRITE_SECONDS` and this."""


class Memory(Wire):
    """What is in the file."""

    url: str
    """The cluster: topics of another one are none of this."""
    sender: Sender
    topics: dict[TopicName, ScalableTopicMetadata] = Field(default_factory=dict)
    consumers_at: dict[TopicName, str] = Field(default_factory=dict)
    """As in `Said`; files of older releases have none."""


def recall(file: Path, url: str, now_ms: int) -> Said:
    """A collector's beginning: its number is above those before it, and it knows which topics there were."""
    try:
        found = Memory.model_validate_json(file.read_bytes(), by_alias=True, by_name=False)
    except (OSError, ValueError):
        return Said(now_ms)
    # The number also when it was another cluster: the job may have heard of both.
    sender = max(now_ms, found.sender + 1)
    if found.url != url:
        return Said(sender)
    return Said(sender, before=dict(found.topics), consumers_at=dict(found.consumers_at))


def write_delay(said: Said) -> float:
    """Time from one write to the next, seconds."""
    return max(WRITE_SECONDS, len(said.topics) / TOPICS_PER_SECOND)


def remember(file: Path, url: str, said: Said) -> None:
    """Replaces the file in one step; raises `OSError`."""
    topics = {**said.before, **{name: topic.layout for name, topic in said.topics.items()}}
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_name(f"{file.name}.{os.getpid()}.new")
    known = {topic: broker for topic, broker in said.consumers_at.items() if topic in topics}
    scratch.write_text(Memory.model_construct(url=url, sender=said.sender, topics=topics, consumers_at=known).to_json())
    os.replace(scratch, file)
