"""Time averages of a bundle and of a broker.

Source: `TimeAverageMessageData`, `BundleData`, `TimeAverageBrokerData`. The plain mean until the samples reach their
cap; from then on every sample weighs one part in the cap.
"""

from collections.abc import Iterable, Mapping

from schemas.base import build_model
from schemas.bundles import BundleData, NamespaceBundleStats, TimeAverageBrokerData, TimeAverageMessageData, TopicLoad

SHORT_SAMPLES, LONG_SAMPLES = 10, 1000


def _seeded_average(cap: int) -> TimeAverageMessageData:
    return TimeAverageMessageData(
        max_samples=cap,
        num_samples=0,
        msg_rate_in=50.0,
        msg_rate_out=50.0,
        msg_throughput_in=50_000.0,
        msg_throughput_out=50_000.0,
    )


DEFAULT_BUNDLE = BundleData(
    short_term_data=_seeded_average(SHORT_SAMPLES), long_term_data=_seeded_average(LONG_SAMPLES)
)
"""A bundle of which nothing is known: 50 messages and 50 kB a second each way, replaced by the first sample."""


def total_throughput(load: TopicLoad) -> float:
    """Bytes per second, in and out."""
    return load.msg_throughput_in + load.msg_throughput_out


def message_rate(load: TopicLoad) -> float:
    """Messages per second, in and out."""
    return load.msg_rate_in + load.msg_rate_out


def add_sample(average: TimeAverageMessageData, sample: TopicLoad, default_cap: int) -> TimeAverageMessageData:
    """The average with one more sample."""
    cap = average.max_samples or default_cap
    n = min(average.num_samples + 1, cap)

    def moved(old: float, new: float) -> float:
        mean, (low, high) = ((n - 1) * old + new) / n, (old, new) if old <= new else (new, old)
        return low if mean < low else high if mean > high else mean

    values = {
        "msg_rate_in": moved(average.msg_rate_in, sample.msg_rate_in),
        "msg_rate_out": moved(average.msg_rate_out, sample.msg_rate_out),
        "msg_throughput_in": moved(average.msg_throughput_in, sample.msg_throughput_in),
        "msg_throughput_out": moved(average.msg_throughput_out, sample.msg_throughput_out),
        "max_samples": cap,
        "num_samples": n,
    }
    return build_model(TimeAverageMessageData, values)


def add_bundle_sample(data: BundleData | None, sample: NamespaceBundleStats) -> BundleData:
    """A bundle's data with one more report of it."""
    data = data or DEFAULT_BUNDLE
    short = add_sample(data.short_term_data, sample, SHORT_SAMPLES)
    long = add_sample(data.long_term_data, sample, LONG_SAMPLES)
    return build_model(BundleData, {"short_term_data": short, "long_term_data": long, "topics": sample.topics})


def broker_average(bundles: Iterable[str], averages: Mapping[str, BundleData]) -> TimeAverageBrokerData:
    """A broker's long-term rates: its bundles summed, an unknown bundle with the default."""
    rates = [averages.get(bundle, DEFAULT_BUNDLE).long_term_data for bundle in bundles]
    return TimeAverageBrokerData.model_construct(
        long_term_msg_rate_in=sum(rate.msg_rate_in for rate in rates),
        long_term_msg_rate_out=sum(rate.msg_rate_out for rate in rates),
    )
