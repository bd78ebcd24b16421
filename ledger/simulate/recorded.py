"""Demand read from a file of JSON lines: what ranges of the key space carried, and who consumed.

Stage: one of the demands of the loop. A line says what a range of hashes carries from its time on, until another line
of hashes in it; demand within a range is taken to be even. So loads of segments that were recorded under one layout can
be added up under any other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import numpy as np
from pydantic import ValidationError, model_validator

from decisions.topic.layout import HASH_SPACE
from ledger.simulate.demand import SLICES, Consumers, Sliced, below_of
from schemas.base import Count, Hash, Millis, Name, Rate, TopicName, Wire
from schemas.messages import SubscriptionType


class DemandError(ValueError):
    """A file is no demand; the message says which line, and what is wrong with it."""


class RangeLine(Wire):
    """`{"topic":…,"at":ms,"start":0,"end":65535,"msgRateIn":…,"bytesRateIn":…,"msgRateOut":…,"bytesRateOut":…}`."""

    topic: TopicName
    at: Millis
    start: Hash = 0
    end: Hash = HASH_SPACE - 1
    msg_rate_in: Rate
    bytes_rate_in: Rate = 0.0
    msg_rate_out: Rate = 0.0
    bytes_rate_out: Rate = 0.0

    @model_validator(mode="after")
    def _in_order(self) -> RangeLine:
        if self.start > self.end:
            raise ValueError("start has to be at or before end")
        return self


class ConsumersLine(Wire):
    """`{"topic":…,"at":ms,"subscription":"billing","type":"STREAM","consumers":3}`."""

    topic: TopicName
    at: Millis
    subscription: Name
    type: SubscriptionType = "STREAM"
    consumers: Count


class RecordedDemand:
    """The demand of all topics of a file."""

    def __init__(self, lines: Iterable[str | bytes], step_ms: int = 10_000) -> None:
        """Raises `DemandError`. All of it is kept in memory."""
        found: list[tuple[int, int, RangeLine | ConsumersLine]] = []
        for number, line in enumerate(lines, 1):
            if line.strip():
                read = _read(number, line)
                found.append((read.at, number, read))
        if not any(isinstance(line, RangeLine) for *_, line in found):
            raise DemandError("there is no line with a rate in it")
        found.sort(key=lambda one: one[:2])
        self._lines = [line for *_, line in found]
        self.topics = sorted({line.topic for line in self._lines})
        self._places = {name: place for place, name in enumerate(self.topics)}
        self.initial = [1] * len(self.topics)
        self.began_at, self.step_ms = found[0][0], step_ms
        self.steps = (found[-1][0] - self.began_at) // step_ms + 1
        self._density = np.zeros((len(self.topics), SLICES, 4))
        self._next = 0
        self._changed: list[Consumers] = []

    def advance(self, step: int) -> Sliced:
        """See `Demand`."""
        until = self.began_at + step * self.step_ms
        self._changed = []
        while self._next < len(self._lines) and self._lines[self._next].at <= until:
            line = self._lines[self._next]
            self._next += 1
            topic = self._places[line.topic]
            if isinstance(line, ConsumersLine):
                self._changed.append(Consumers(topic, line.subscription, line.type, line.consumers))
            else:
                self._set(topic, line)
        return Sliced(below_of(self._density))

    def consumers(self, step: int) -> Iterable[Consumers]:
        """See `Demand`."""
        return self._changed

    def _set(self, topic: int, line: RangeLine) -> None:
        """Replaces what a range carries; of a slice that it covers in part, that part."""
        width = HASH_SPACE // SLICES
        first, last = line.start // width, line.end // width
        edges = np.arange(first, last + 1) * width
        covered = np.minimum(edges + width, line.end + 1) - np.maximum(edges, line.start)
        rates = np.array([line.msg_rate_in, line.bytes_rate_in, line.msg_rate_out, line.bytes_rate_out])
        new = covered[:, None] / (line.end - line.start + 1) * rates[None, :]
        cells = self._density[topic, first : last + 1]
        cells *= (1 - covered / width)[:, None]
        cells += new


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
