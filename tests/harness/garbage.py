"""Messages that no well-behaved reporter sends: one maker for each way to be wrong.

Tests of the stream and the recorded run mix them in. Each kind names the dead-letter reason that it must end with; None
means odd but acceptable, or only stale.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from schemas.kafka.messages import MAX_CLOCK_AHEAD_MS, MAX_SAMPLES_PER_MESSAGE, MAX_VALUE_BYTES, RejectReason, Source

_RATES = {"msgRateIn": 120.0, "bytesRateIn": 120_000.0, "msgRateOut": 240.0, "bytesRateOut": 240_000.0}


@dataclass(frozen=True)
class Garbage:
    """A bad message, ready to be produced, and what must become of it."""

    kind: str
    source: Source
    key: bytes | None
    value: bytes | None
    expected: RejectReason | None
    """Reason of the one dead letter; None = no dead letter."""
    of_a_sample: bool
    """Whether that is of one sample, and the others of the message are good."""


@dataclass(frozen=True)
class _Kind:
    name: str
    expected: RejectReason | None
    make: Callable[[str, int, Random], bytes | None]
    source: Source = "segment-stats"
    key: Callable[[str], bytes | None] = str.encode
    of_a_sample: bool = False


def _sample(topic: str, now_ms: int) -> dict[str, Any]:
    return {"v": 1, "topic": topic, "reporter": "garbage", "sampledAt": now_ms, "segments": [{"id": 0, **_RATES}]}


def _stats(**changed: Any) -> Callable[[str, int, Random], bytes]:
    return lambda topic, now_ms, _: json.dumps({**_sample(topic, now_ms), **changed}).encode()


def _rate(text: str) -> Callable[[str, int, Random], bytes]:
    return lambda topic, now_ms, _: (
        json.dumps({**_sample(topic, now_ms), "segments": [{"id": 0, **_RATES, "msgRateIn": "HERE"}]})
        .replace('"HERE"', text)
        .encode()
    )


def _columns(now_ms: int, **changed: Any) -> bytes:
    rates = {name: [120.0, 120.0] for name in _RATES}
    return json.dumps({"v": 2, "reporter": "garbage", "sampledAt": now_ms, "ids": [0, 1], **rates, **changed}).encode()


def _in_columns(name: str, expected: RejectReason | None, late_ms: int = 0, **changed: Any) -> _Kind:
    """A message in columns that is bad as a whole, or none."""

    def make(topic: str, now_ms: int, _: Random) -> bytes:
        return _columns(now_ms - late_ms, **{"topics": [topic], "counts": [2], **changed})

    return _Kind(name, expected, make, key=lambda _: b"garbage")


def _of_columns(name: str, **changed: Any) -> _Kind:
    """A message in columns with one bad sample; the other one is late."""
    return replace(_in_columns(name, RejectReason.INVALID, 3_600_000, **changed), of_a_sample=True)


def _text(value: bytes | None) -> Callable[[str, int, Random], bytes | None]:
    return lambda _topic, _now_ms, _random: value


def _torn_layout(topic: str, now_ms: int, _: Random) -> bytes:
    half = {"segmentId": 0, "hashRange": {"start": 0, "end": 0x7FFE}, "state": "ACTIVE"}
    upper = {"segmentId": 1, "hashRange": {"start": 0x8000, "end": 0xFFFF}, "state": "ACTIVE"}
    layout = {"epoch": 10**6, "nextSegmentId": 2, "segments": {"0": half, "1": upper}}
    event = {"v": 1, "type": "layout", "topic": topic, "cause": "snapshot", "layout": layout, "at": now_ms}
    return json.dumps(event).encode()


def _cut_off(topic: str, now_ms: int, random: Random) -> bytes:
    whole = json.dumps(_sample(topic, now_ms)).encode()
    return whole[: random.randrange(1, len(whole) - 1)]


def _noise(_topic: str, _now_ms: int, random: Random) -> bytes:
    return b"\x00\xff" + random.randbytes(random.randrange(400))


def _too_large(topic: str, now_ms: int, _: Random) -> bytes:
    return json.dumps({**_sample(topic, now_ms), "padding": "x" * MAX_VALUE_BYTES}).encode()


def _from_the_future(topic: str, now_ms: int, _: Random) -> bytes:
    return json.dumps(_sample(topic, now_ms + 4 * MAX_CLOCK_AHEAD_MS)).encode()


def _out_of_order(topic: str, now_ms: int, _: Random) -> bytes:
    return json.dumps(_sample(topic, now_ms - 3_600_000)).encode()


def _repeated_key(topic: str, now_ms: int, _: Random) -> bytes:
    return json.dumps(_sample(topic, now_ms - 3_600_000)).replace('"v": 1', '"v": 1, "v": 1').encode()


def _consumer(**changed: Any) -> Callable[[str, int, Random], bytes]:
    def make(topic: str, now_ms: int, _: Random) -> bytes:
        event = {
            "v": 1,
            "topic": topic,
            "subscription": "garbage",
            "type": "QUEUE",
            "event": "snapshot",
            "consumers": 0,
            "at": now_ms,
        }
        return json.dumps({**event, **changed}).encode()

    return make


def _no_key(_topic: str) -> bytes | None:
    return None


def _other_key(topic: str) -> bytes | None:
    return topic.encode() + b"-of-another"


def _every_topic(_topic: str) -> bytes | None:
    return b"*"


_INVALID, _NOT_JSON = RejectReason.INVALID, RejectReason.NOT_JSON

_KINDS = (
    _Kind("no value", RejectReason.NO_VALUE, _text(None)),
    _Kind("empty value", _NOT_JSON, _text(b"")),
    _Kind("binary noise", _NOT_JSON, _noise),
    _Kind("cut off", _NOT_JSON, _cut_off),
    _Kind("trailing garbage", _NOT_JSON, lambda *given: _stats()(*given) + b" and more"),
    _Kind("nested without end", _NOT_JSON, _text(b"[" * 50_000)),
    _Kind("invalid UTF-8", _NOT_JSON, lambda *given: _stats()(*given).replace(b"garbage", b"garb\xffge")),
    _Kind("an array", _INVALID, _text(b"[]")),
    _Kind("null", _INVALID, _text(b"null")),
    _Kind("too large", RejectReason.TOO_LARGE, _too_large),
    _Kind("unknown version", RejectReason.UNKNOWN_VERSION, _stats(v=3)),
    _Kind("version is a text", RejectReason.UNKNOWN_VERSION, _stats(v="1")),
    _Kind("rate is NaN", _INVALID, _rate("NaN")),
    _Kind("rate is infinite", _INVALID, _rate("1e400")),
    _Kind("rate is negative", _INVALID, _rate("-1.0")),
    _Kind("rate is a text", _INVALID, _rate('"12"')),
    _Kind("rate is null", _INVALID, _rate("null")),
    _Kind("rate is missing", _INVALID, _stats(segments=[{"id": 0}])),
    _Kind("segment id is a fraction", _INVALID, _stats(segments=[{"id": 1.5, **_RATES}])),
    _Kind("segment id overflows", _INVALID, _stats(segments=[{"id": 2**70, **_RATES}])),
    _Kind("segment twice", _INVALID, _stats(segments=[{"id": 0, **_RATES}] * 2)),
    _Kind("no topic's name", _INVALID, _stats(topic="orders")),
    _Kind("key of another topic", RejectReason.WRONG_KEY, _stats(), key=_other_key),
    _Kind("no key", RejectReason.WRONG_KEY, _stats(), key=_no_key),
    _Kind("from the future", RejectReason.FROM_THE_FUTURE, _from_the_future),
    _Kind("out of order", None, _out_of_order),
    _in_columns("columns of different lengths", _INVALID, msgRateIn=[1.0]),
    _in_columns("counts that do not add up", _INVALID, counts=[3]),
    _in_columns("columns from the future", RejectReason.FROM_THE_FUTURE, -4 * MAX_CLOCK_AHEAD_MS),
    _in_columns("columns of another reporter", RejectReason.WRONG_KEY, reporter="another"),
    _in_columns(
        "too many samples", _INVALID, 0, **dict.fromkeys(("ids", *_RATES), [0] * (MAX_SAMPLES_PER_MESSAGE + 1))
    ),
    _in_columns("columns out of order", None, 3_600_000),
    _of_columns("one rate is NaN", msgRateIn=[1.0, float("nan")]),
    _of_columns("one rate is negative", bytesRateOut=[-1.0, 1.0]),
    _of_columns("one rate is a text", msgRateOut=["12", 1.0]),
    _of_columns("one segment twice", ids=[1, 1]),
    _of_columns("one segment id overflows", ids=[2**63, 1]),
    _of_columns("one topic has no topic's name", topics=["orders", "topic://acme/shop/garbage"], counts=[1, 1]),
    _Kind("repeated JSON key", None, _repeated_key),
    _Kind("negative consumers", _INVALID, _consumer(consumers=-1), "consumer-events"),
    _Kind("unknown subscription type", _INVALID, _consumer(type="BROADCAST"), "consumer-events"),
    _Kind("consumer event of version 7", RejectReason.UNKNOWN_VERSION, _consumer(v=7), "consumer-events"),
    _Kind("unknown field", None, _consumer(colour="blue"), "consumer-events"),
    _Kind(
        "unknown type", RejectReason.UNKNOWN_TYPE, _text(b'{"v":1,"type":"nap","at":1}'), "control-events", _every_topic
    ),
    _Kind("no type", RejectReason.UNKNOWN_TYPE, _text(b'{"v":1,"at":1}'), "control-events", _every_topic),
    _Kind("torn layout", RejectReason.BAD_LAYOUT, _torn_layout, "control-events"),
)

KINDS = tuple(kind.name for kind in _KINDS)
"""The names of all kinds."""


def make_garbage(topic: str, now_ms: int, random: Random, kind: str | None = None) -> Garbage:
    """Make a bad message about `topic`, of the named kind or of a random one.

    `now_ms`: milliseconds since 1970.
    """
    chosen = random.choice(_KINDS) if kind is None else next(item for item in _KINDS if item.name == kind)
    return Garbage(
        kind=chosen.name,
        source=chosen.source,
        key=chosen.key(topic),
        value=chosen.make(topic, now_ms, random),
        expected=chosen.expected,
        of_a_sample=chosen.of_a_sample,
    )
