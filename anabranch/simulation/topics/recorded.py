"""Recorded demand, from JSON lines or the lake: loads of ranges of the key space, and consumers.

Stage: one of the sources of a simulation. A line gives the load of a range of hashes from its time on, until another
line of hashes in it; demand within a range is assumed to be even. So loads of segments that were recorded under one
layout can be added up under any other.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

import numpy as np
from pydantic import ValidationError, model_validator

from anabranch.simulation.topics.timeline import STEP_MS, ConsumersFrom, Ints, Timeline, Window
from decisions.topic.layout import HASH_SPACE, SegmentLayout
from schemas.base import Count, Hash, Millis, Name, Rate, TopicName, Wire
from schemas.kafka.messages import SubscriptionType


class DemandError(ValueError):
    """Invalid file of demand; the message names the line and its fault."""


class RangeLine(Wire):
    """Load of a range of hashes from an instant on; one line of the file.

    `{"topic":…,"at":ms,"start":0,"end":65535,"msgRateIn":…,"bytesRateIn":…,"msgRateOut":…,"bytesRateOut":…}`
    """

    topic: TopicName
    at: Millis
    start: Hash = 0
    end: Hash = HASH_SPACE - 1
    msg_rate_in: Rate
    bytes_rate_in: Rate = 0.0
    msg_rate_out: Rate = 0.0
    bytes_rate_out: Rate = 0.0

    @model_validator(mode="after")
    def _in_order(self) -> "RangeLine":
        if self.start > self.end:
            raise ValueError("start has to be at or before end")
        return self


class ConsumersLine(Wire):
    """Consumers of a subscription from an instant on; one line of the file.

    `{"topic":…,"at":ms,"subscription":"billing","type":"STREAM","consumers":3}`
    """

    topic: TopicName
    at: Millis
    subscription: Name
    type: SubscriptionType = "STREAM"
    consumers: Count


class RecordedDemand:
    """Demand of all topics in some lines."""

    def __init__(
        self,
        lines: Iterable[RangeLine | ConsumersLine],
        initial: Mapping[str, int] | None = None,
        step_ms: int = STEP_MS,
    ) -> None:
        """`initial`: first segments (default 1); all is in memory. Raises `DemandError` without a rate."""
        ordered = sorted(lines, key=lambda line: line.at)
        if not any(isinstance(line, RangeLine) for line in ordered):
            raise DemandError("there is no line with a rate in it")
        self.topics = sorted({line.topic for line in ordered})
        self._initial = [max(1, (initial or {}).get(name, 1)) for name in self.topics]
        self.began_at, self.step_ms = ordered[0].at, step_ms
        self.steps = (ordered[-1].at - self.began_at) // step_ms + 1
        self._lines: dict[str, list[RangeLine | ConsumersLine]] = {name: [] for name in self.topics}
        for line in ordered:
            self._lines[line.topic].append(line)

    @classmethod
    def read(cls, lines: Iterable[str | bytes]) -> "RecordedDemand":
        """Return the demand of a file of JSON lines. Raises `DemandError`."""
        return cls([_read(number, line) for number, line in enumerate(lines, 1) if line.strip()])

    def layouts(self, indices: range) -> list[SegmentLayout]:
        """See `Source`."""
        return [SegmentLayout.create(self._initial[index], self.began_at) for index in indices]

    def windows(self, indices: range) -> Iterator[Window]:
        """See `Source`; each window is a day."""
        topics = [_Topic(self._lines[self.topics[index]]) for index in indices]
        length = max(1, _WINDOW_MS // self.step_ms) * self.step_ms
        until = self.began_at + self.steps * self.step_ms
        for begin in range(self.began_at, until, length):
            end = min(begin + length, until)
            yield Window(begin, end, [topic.timeline(begin, end) for topic in topics])


_WINDOW_MS = 86_400_000


class _Topic:
    """Lines of a topic, read once in order."""

    def __init__(self, lines: Sequence[RangeLine | ConsumersLine]) -> None:
        self._lines, self._next = lines, 0
        bounds = {0, HASH_SPACE}
        for line in lines:
            if isinstance(line, RangeLine):
                bounds |= {line.start, line.end + 1}
        self._edges: Ints = np.array(sorted(bounds), np.int64)
        self._widths = np.diff(self._edges)[:, None]
        self._density = np.zeros((len(self._edges) - 1, 4))
        """Rates per hash of each slice; each is as wide as no line's range parts it."""

    def timeline(self, begin: int, end: int) -> Timeline:
        """Return the next window."""
        first = self._next
        while self._next < len(self._lines) and self._lines[self._next].at < end:
            self._next += 1
        profiles, instants, consumers = [self._density * self._widths], [begin], []
        for instant, lines in groupby(self._lines[first : self._next], key=lambda line: line.at):
            is_changed = False
            for line in lines:
                if isinstance(line, ConsumersLine):
                    consumers.append(ConsumersFrom(line.at, line.subscription, line.type, line.consumers))
                    continue
                is_changed = True
                covered = slice(*np.searchsorted(self._edges, [line.start, line.end + 1]).tolist())
                rates = (line.msg_rate_in, line.bytes_rate_in, line.msg_rate_out, line.bytes_rate_out)
                self._density[covered] = np.array(rates) / (line.end - line.start + 1)
            if is_changed and instant == begin:
                profiles[0] = self._density * self._widths
            elif is_changed:
                profiles.append(self._density * self._widths)
                instants.append(instant)
        which = np.arange(len(instants))
        return Timeline(self._edges, np.stack(profiles), np.array(instants), which, consumers=consumers)


def _read(number: int, line: str | bytes) -> RangeLine | ConsumersLine:
    try:
        kind: type[RangeLine] | type[ConsumersLine] = ConsumersLine if "subscription" in json.loads(line) else RangeLine
        return kind.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "line"
        raise DemandError(f"line {number}: {where}: {first['msg']}") from error
    except (ValueError, TypeError) as error:
        raise DemandError(f"line {number}: no JSON object: {error}") from error
