"""Load samples of the local run: the demand over every active segment, reported by its owner.

Pure. A broker reports in columns, its topics together. One topic of `BY_HAND` is reported by itself, as by somebody who
writes messages by hand: both forms stay in use.
"""

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

import numpy as np

from anabranch.local.demand import TopicDemand
from schemas.kafka.messages import VERSION, SegmentSample, SegmentStats, SegmentStatsColumns
from schemas.metadata import ScalableTopicMetadata

REPORTERS = 3
"""Brokers that share the segments of a topic."""
BY_HAND = 6
MAX_SAMPLES = 1_000
"""Of a message in columns: 64 to 128 KiB."""


def segment_stats(demand: TopicDemand, layout: ScalableTopicMetadata, t: float) -> list[SegmentStats]:
    """Return the samples of a topic's active segments at `t` (Unix seconds), one message a reporter."""
    active = [segment for segment in layout.segments.values() if segment.state == "ACTIVE"]
    rates = demand.rates(
        t, [segment.hash_range.start for segment in active], [segment.hash_range.end for segment in active]
    )
    rates = np.maximum(rates, 0.0).round(3)
    owned: dict[str, list[SegmentSample]] = {}
    for segment, (msg_in, bytes_in, msg_out, bytes_out) in zip(active, rates.tolist(), strict=True):
        owned.setdefault(_owner(demand.topic, segment.segment_id), []).append(
            SegmentSample(
                id=segment.segment_id,
                msg_rate_in=msg_in,
                bytes_rate_in=bytes_in,
                msg_rate_out=msg_out,
                bytes_rate_out=bytes_out,
            )
        )
    return [
        SegmentStats(v=VERSION, topic=demand.topic, reporter=reporter, sampled_at=int(t * 1000), segments=samples)
        for reporter, samples in sorted(owned.items())
    ]


def reported(
    demands: Sequence[TopicDemand], layouts: Mapping[str, ScalableTopicMetadata], t: float
) -> list[SegmentStats | SegmentStatsColumns]:
    """All messages of instant `t`, of the topics whose layout is known."""
    by_hand: list[SegmentStats] = []
    by_brokers: list[SegmentStats] = []
    for number, demand in enumerate(demands, 1):
        if demand.topic in layouts:
            stats = segment_stats(demand, layouts[demand.topic], t)
            (by_brokers if number % BY_HAND else by_hand).extend(stats)
    return [*by_hand, *in_columns(by_brokers)]


def in_columns(messages: Iterable[SegmentStats], most: int = MAX_SAMPLES) -> Iterator[SegmentStatsColumns]:
    """Yield samples of one instant in columns of at most `most`, by reporter, each topic once."""
    by_reporter = sorted(messages, key=lambda message: message.reporter)
    for reporter, its in groupby(by_reporter, lambda message: message.reporter):
        samples = [(message, sample) for message in its for sample in message.segments]
        for start in range(0, len(samples), most):
            yield _columns(reporter, samples[start : start + most])


def _columns(reporter: str, samples: Sequence[tuple[SegmentStats, SegmentSample]]) -> SegmentStatsColumns:
    topics = [(topic, len(list(its))) for topic, its in groupby(message.topic for message, _ in samples)]
    return SegmentStatsColumns(
        v=2,
        reporter=reporter,
        sampled_at=samples[0][0].sampled_at,
        topics=[topic for topic, _ in topics],
        counts=[count for _, count in topics],
        ids=[sample.id for _, sample in samples],
        msg_rate_in=[sample.msg_rate_in for _, sample in samples],
        bytes_rate_in=[sample.bytes_rate_in for _, sample in samples],
        msg_rate_out=[sample.msg_rate_out for _, sample in samples],
        bytes_rate_out=[sample.bytes_rate_out for _, sample in samples],
    )


def _owner(topic: str, segment: int) -> str:
    return f"broker-{1 + zlib.crc32(f'{topic}/{segment}'.encode()) % REPORTERS}"
