"""Every reason for which a broker or a bundle is left alone, in the words that an answer has.

Stage: under the whole family. Run as `python -m decisions.bundles.gates`: the table of docs/bundles.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType


class BundleGate(Enum):
    """A gate's name on the wire."""

    SETTINGS = "settings"
    INTERNAL_ERROR = "internal-error"
    ENABLED = "balancer-enabled"
    BROKERS = "enough-brokers"
    LEADER = "leader"
    OVERLOADED = "broker-overloaded"
    ABOVE_AVERAGE = "above-average"
    MIN_THROUGHPUT = "min-throughput"
    LOWER_BOUNDARY = "lower-boundary"
    SOLE_BUNDLE = "more-than-one-bundle"
    RATE_DIFFERENCE = "rate-difference"
    THROUGHPUT_DIFFERENCE = "throughput-difference"
    MIN_MESSAGES = "min-unload-messages"
    PAIR_DIFFERENCE = "pair-difference"
    HIT_COUNT = "hit-count"
    DEVIATION = "deviation"
    RECENTLY_UNLOADED = "recently-unloaded"
    KNOWN = "bundle-known"
    HAS_TRAFFIC = "has-traffic"
    FITS = "fits-what-is-needed"
    STILL_NEEDED = "still-needed"
    BUNDLE_COUNT = "bundles-per-cycle"
    LOAD_DATA = "load-data"
    FRESH = "load-data-fresh"
    COOL_DOWN = "cool-down"
    UNBALANCED = "unbalanced"
    BROKERS_PER_CYCLE = "brokers-per-cycle"
    TOP_BUNDLES = "top-bundles"
    OWNER = "owner"
    EXCLUDED = "namespace-excluded"
    TRANSFERABLE = "transferable"
    ISOLATION = "isolation"
    ANTI_AFFINITY = "anti-affinity"
    TOPIC_CAP = "topic-cap"
    EVEN_BUNDLES = "even-bundles"
    CLASS_FILTER = "load-manager-class"
    VERSION = "version"
    DESTINATION = "destination"
    MOVES = "destination-differs"
    SPREAD = "spread"
    IDLE = "idle-broker"
    GAIN = "gain"
    MOVES_PER_CYCLE = "moves-per-cycle"
    SPLIT_NEEDED = "split-needed"
    TWO_TOPICS = "two-topics"
    MAX_BUNDLES = "max-bundles"
    SPLITS_PER_CYCLE = "splits-per-cycle"
    SPLITTABLE = "splittable"


SENTENCES: Mapping[BundleGate, str] = MappingProxyType(
    {
        BundleGate.SETTINGS: "The policies of the cluster or bundle are unknown or cannot be read: it is left "
        "as it is.",
        BundleGate.INTERNAL_ERROR: "The evaluation failed. This is a fault of the program: its log has the details.",
        BundleGate.ENABLED: "The balancer or its shedding is switched off.",
        BundleGate.BROKERS: "One broker alone has nobody to give to.",
        BundleGate.LEADER: "Only the leader does this.",
        BundleGate.OVERLOADED: "The broker's fullest resource is below the overload threshold.",
        BundleGate.ABOVE_AVERAGE: "The broker's averaged usage is not far enough above the cluster's.",
        BundleGate.MIN_THROUGHPUT: "What the broker would have to give is too little to be worth it.",
        BundleGate.LOWER_BOUNDARY: "No broker is far enough below the average, or none above it has bundles to give.",
        BundleGate.SOLE_BUNDLE: "The broker has a single bundle, or none.",
        BundleGate.RATE_DIFFERENCE: "The brokers' message rates are close enough.",
        BundleGate.THROUGHPUT_DIFFERENCE: "The brokers' throughputs are close enough.",
        BundleGate.MIN_MESSAGES: "What would move is less than is worth a move.",
        BundleGate.PAIR_DIFFERENCE: "The two brokers of the pair are close enough.",
        BundleGate.HIT_COUNT: "It has not been so for enough cycles in a row.",
        BundleGate.DEVIATION: "The most loaded broker is within the permitted deviation.",
        BundleGate.RECENTLY_UNLOADED: "The bundle was unloaded within the grace period, or waits for an outcome.",
        BundleGate.KNOWN: "The leader has no data of the bundle.",
        BundleGate.HAS_TRAFFIC: "The bundle has no traffic.",
        BundleGate.FITS: "The bundle is larger than what is still to be moved.",
        BundleGate.STILL_NEEDED: "What was picked before it is enough.",
        BundleGate.BUNDLE_COUNT: "As many bundles were picked as one cycle may move.",
        BundleGate.LOAD_DATA: "A live broker has no load data, or no broker has.",
        BundleGate.FRESH: "The broker's load data is too old.",
        BundleGate.COOL_DOWN: "A broker's load data is too close to its last unload.",
        BundleGate.UNBALANCED: "The spread of load is within the target, and no broker is over- or underloaded.",
        BundleGate.BROKERS_PER_CYCLE: "As many brokers gave as one cycle permits, or no receiver is left.",
        BundleGate.TOP_BUNDLES: "The broker's busiest bundles are not known, or it has one alone.",
        BundleGate.OWNER: "The broker does not own the bundle.",
        BundleGate.EXCLUDED: "The bundle's namespace is excluded from shedding.",
        BundleGate.TRANSFERABLE: "Policies or filters do not let the bundle go to that broker.",
        BundleGate.ISOLATION: "The namespace's isolation policy leaves no other broker.",
        BundleGate.ANTI_AFFINITY: "A move would not spread the anti-affinity group better.",
        BundleGate.TOPIC_CAP: "The broker has too many topics.",
        BundleGate.EVEN_BUNDLES: "The broker has more bundles of the namespace than others.",
        BundleGate.CLASS_FILTER: "The broker runs another load manager.",
        BundleGate.VERSION: "The broker runs an older version than others.",
        BundleGate.DESTINATION: "Placement found no broker.",
        BundleGate.MOVES: "Placement chose the broker that has the bundle already.",
        BundleGate.SPREAD: "The fullest and the emptiest broker are close enough.",
        BundleGate.IDLE: "No broker has so little to do that it is filled at once.",
        BundleGate.GAIN: "No destination makes the fuller of the two brokers so much emptier that it is worth a move.",
        BundleGate.MOVES_PER_CYCLE: "As many bundles move as one cycle permits.",
        BundleGate.SPLIT_NEEDED: "The bundle is within all limits.",
        BundleGate.TWO_TOPICS: "A bundle with fewer than two topics is not split.",
        BundleGate.MAX_BUNDLES: "The namespace has as many bundles as it may.",
        BundleGate.SPLITS_PER_CYCLE: "As many bundles are split as one cycle permits.",
        BundleGate.SPLITTABLE: "The range cannot be cut in two, or the algorithm found no boundary.",
    }
)
"""What it means when a gate does not pass."""


def gates_table() -> str:
    """The gates as a table in Markdown."""
    rows = "\n".join(f"| `{gate.value}` | {SENTENCES[gate]} |" for gate in BundleGate)
    return f"| gate | holds because |\n| --- | --- |\n{rows}\n"


if __name__ == "__main__":
    print(gates_table(), end="")
