"""File of what a killed collector had announced: topics and their subscriptions.

Stage: beside `announced`. A collector that starts says everything anew, so it needs no memory for what is there. But a
topic or subscription that was deleted while no collector ran is in no answer of the cluster: only who knew it can say
that it is gone. The file is written in one step, seldom if it is large, and may be deleted at any time.
"""

import os
from pathlib import Path

from pydantic import Field

from anabranch.collectors.announced import AnnouncedState
from schemas.base import Name, TopicName, Wire
from schemas.kafka.messages import Sender, SubscriptionType
from schemas.metadata import ScalableTopicMetadata

MEMORY_FILE = "topics.json"
WRITE_SECONDS = 2.0
TOPICS_PER_SECOND = 300
"""Time between two writes: the longer of `WRITE_SECONDS` and this."""


class Memory(Wire):
    """Contents of the file."""

    url: str
    """The cluster: topics of another one are none of this."""
    sender: Sender
    topics: dict[TopicName, ScalableTopicMetadata] = Field(default_factory=dict)
    subscriptions: dict[TopicName, dict[Name, SubscriptionType]] = Field(default_factory=dict)
    """Those that were announced; files of older releases have none."""


def load_checkpoint(file: Path, url: str, now_ms: int) -> AnnouncedState:
    """A collector's beginning: its number is above those before it, and it knows which topics there were."""
    try:
        memory = Memory.model_validate_json(file.read_bytes(), by_alias=True, by_name=False)
    except (OSError, ValueError):
        return AnnouncedState(now_ms)
    # The number also when it was another cluster: the job may have heard of both.
    sender = max(now_ms, memory.sender + 1)
    if memory.url != url:
        return AnnouncedState(sender)
    return AnnouncedState(sender, before=dict(memory.topics), subscriptions=dict(memory.subscriptions))


def write_delay(announced: AnnouncedState) -> float:
    """Time from one write to the next, seconds."""
    return max(WRITE_SECONDS, len(announced.topics) / TOPICS_PER_SECOND)


def save_checkpoint(file: Path, url: str, announced: AnnouncedState) -> None:
    """Replaces the file in one step; raises `OSError`."""
    topics = {**announced.before, **{name: topic.layout for name, topic in announced.topics.items()}}
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_name(f"{file.name}.{os.getpid()}.new")
    subscriptions = {topic: types for topic, types in announced.subscriptions.items() if topic in announced.before}
    for name, topic in announced.topics.items():
        if topic.consumers:
            subscriptions[name] = {subscription: consumers.type for subscription, consumers in topic.consumers.items()}
    memory = Memory.model_construct(url=url, sender=announced.sender, topics=topics, subscriptions=subscriptions)
    scratch.write_text(memory.to_json())
    os.replace(scratch, file)
