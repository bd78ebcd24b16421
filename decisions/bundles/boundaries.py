"""Boundaries at which a bundle is split: Pulsar's four algorithms, in the space of 32-bit hashes.

Source: `NamespaceBundleSplitAlgorithm`. A topic's hash is the CRC-32 of its full name.
"""

import itertools
import re
import zlib
from collections.abc import Mapping, Sequence

from decisions.bundles.configuration import Configuration
from decisions.bundles.numbers import MIB
from schemas.bundles import HashedTopicLoad

_RANGE = re.compile(r"/0x([0-9a-fA-F]{8})_0x([0-9a-fA-F]{8})\Z")
LAST_HASH = 0xFFFFFFFF
ALGORITHMS = (
    "range_equally_divide",
    "topic_count_equally_divide",
    "specified_positions_divide",
    "specified_positions_divide_force",
    "flow_or_qps_equally_divide",
)


def bundle_range(bundle: str) -> tuple[int, int]:
    """The first hash of a bundle and the one after its last (at most 0xffffffff). Raises `ValueError`."""
    if (match := _RANGE.search(bundle)) is None:
        raise ValueError("its name does not end in a range like 0x00000000_0x80000000")
    return int(match.group(1), 16), int(match.group(2), 16)


def topic_hash(topic: str, load: HashedTopicLoad | None = None) -> int:
    """A topic's place in the space of hashes; what the snapshot says goes first."""
    if load is not None and load.hash is not None:
        return load.hash
    return zlib.crc32(topic.encode("utf-8", "surrogatepass"))


def split_boundaries(
    bundle: str,
    algorithm: str,
    topics: Mapping[str, HashedTopicLoad] | None,
    positions: Sequence[int],
    conf: Configuration,
) -> list[int] | None:
    """Return the cuts strictly inside the bundle, or None. Raises `ValueError` for a bad request."""
    lower, upper = bundle_range(bundle)
    if algorithm not in ALGORITHMS:
        raise ValueError(f"{algorithm[:80]!r} is none of {', '.join(ALGORITHMS)}")
    if algorithm == "range_equally_divide":
        return _cuts_inside([lower + (upper - lower) // 2], lower, upper)
    force = algorithm.endswith("force")
    if algorithm.startswith("specified") and not positions:
        raise ValueError("specified_positions_divide needs positions")
    if topics is None and not force:
        raise ValueError(f"{algorithm} needs the bundle's topics")
    last = upper + (upper == LAST_HASH)
    loads = {topic: load for topic, load in (topics or {}).items() if lower <= topic_hash(topic, load) < last}
    if len(loads) <= 1 and not force:
        return None
    if algorithm.startswith("specified"):
        return sorted({position for position in positions if lower < position < upper}) or None
    if algorithm.startswith("topic_count"):
        hashes = sorted(topic_hash(topic, load) for topic, load in loads.items())
        first, second = hashes[max(len(hashes) // 2 - 1, 0)], hashes[len(hashes) // 2]
        return _cuts_inside([first + (second - first) // 2], lower, upper)
    return _by_load(loads, lower, upper, conf)


def _cuts_inside(cuts: list[int], lower: int, upper: int) -> list[int]:
    for cut in cuts:
        if not lower < cut < upper:
            raise ValueError(f"the boundary 0x{cut:08x} is not inside 0x{lower:08x}_0x{upper:08x}")
    return cuts


def _by_load(topics: Mapping[str, HashedTopicLoad], lower: int, upper: int, conf: Configuration) -> list[int] | None:
    """A cut whenever the load since the last one would pass the bundle's limit."""
    most_rate = conf.number("loadBalancerNamespaceBundleMaxMsgRate")
    most_bytes = conf.number("loadBalancerNamespaceBundleMaxBandwidthMbytes") * MIB
    slack = 1 + conf.number("flowOrQpsDifferenceThresholdPercentage") / 100
    loads = dict[int, tuple[float, float]]()
    for topic, load in topics.items():
        rate, size = load.msg_rate_in + load.msg_rate_out, load.msg_throughput_in + load.msg_throughput_out
        if rate > 0 or size > 0:
            loads[topic_hash(topic, load)] = (rate, size)
    total_rate, total_bytes = sum(rates[0] for rates in loads.values()), sum(rates[1] for rates in loads.values())
    if len(loads) < 2 or (total_rate < most_rate * slack and total_bytes < most_bytes * slack):
        return None
    hashes = sorted(loads)
    rate, size = loads[hashes[0]]
    cuts = list[int]()
    for before, here in itertools.pairwise(hashes):
        next_rate, next_bytes = loads[here]
        if rate > most_rate or rate + next_rate > most_rate or size > most_bytes or size + next_bytes > most_bytes:
            cuts.append(before + (here - before) // 2 + 1)
            rate, size = next_rate, next_bytes
        else:
            rate, size = rate + next_rate, size + next_bytes
    return _cuts_inside(cuts, lower, upper) or None
