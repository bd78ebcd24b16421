"""Demand on record, in a file of JSON lines or in the lake: what ranges of the key space carried, and who consumed.

Stage: one of the demands of the loop. A line says what a range of hashes carries from its time on, until another line
of hashes in it; demand within a range is taken to be even. So loads of segments that were recorded under one layout can
be added up under any other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import numpy as np
from pydantic import ValidationError, model_validator

from decisions.topic.layout import HASH_SPACE
from ledger.simulate.demand import SLICES, STEP_MS, Consumers, Sliced, below_of
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
    """The demand of all topics that lines are about."""

    def __init__(
        self, lines: Iterable[RangeLine | ConsumersLine], initial: Mapping[str, int] | None = None,
        step_ms: int = STEP_MS,
    ) -> None:  # fmt: skip
        """`initial`: segments that topics begin with, one if not said. Raises `DemandError` when there is no rate in
        any line. All of it is kept in memory."""
        self._lines = sorted(lines, key=lambda line: line.at)
        if not any(isinstance(line, RangeLine) for line in self._lines):
            raise DemandError("there is no line with a rate in it")
        self.topics = sorted({line.topic for line in self._lines})
        self._places = {name: place for place, name in enumerate(self.topics)}
        self.initial = [max(1, (initial or {}).get(name, 1)) for name in self.topics]
        self.began_at, self.step_ms = self._lines[0].at, step_ms
        self.steps = (self._lines[-1].at - self.began_at) // step_ms + 1
        self._density = np.zeros((len(self.topics), SLICES, 4))
        self._next = 0
        self._changed: list[Consumers] = []

    @classmethod
    def read(cls, lines: Iterable[str | bytes]) -> RecordedDemand:
        """The demand of a file of JSON lines; raises `DemandError`."""
        return cls([_read(number, line) for number, line in enumerate(lines, 1) if line.strip()])

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
