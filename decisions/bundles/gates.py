"""Every reason for which a broker or a bundle is left alone, in the words that an answer has.

Stage: under the whole family. Run as `python -m decisions.bundles.gates`: the table of docs/bundles.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType


class Gate(Enum):
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


SENTENCES: Mapping[Gate, str] = MappingProxyType(
    {
        Gate.SETTINGS: "The policies of the cluster or bundle are unknown or cannot be read: it is left as it is.",
        Gate.INTERNAL_ERROR: "The evaluation failed. This is a fault of the program: its log has the details.",
        Gate.ENABLED: "The balancer or its shedding is switched off.",
        Gate.BROKERS: "One broker alone has nobody to give to.",
        Gate.LEADER: "Only the leader does this.",
        Gate.OVERLOADED: "The broker's fullest resource is below the overload threshold.",
        Gate.ABOVE_AVERAGE: "The broker's averaged usage is not far enough above the cluster's.",
        Gate.MIN_THROUGHPUT: "What the broker would have to give is too little to be worth it.",
        Gate.LOWER_BOUNDARY: "No broker is far enough below the average, or none above it has bundles to give.",
        Gate.SOLE_BUNDLE: "The broker has a single bundle, or none.",
        Gate.RATE_DIFFERENCE: "The brokers' message rates are close enough.",
        Gate.THROUGHPUT_DIFFERENCE: "The brokers' throughputs are close enough.",
        Gate.MIN_MESSAGES: "What would move is less than is worth a move.",
        Gate.PAIR_DIFFERENCE: "The two brokers of the pair are close enough.",
        Gate.HIT_COUNT: "It has not been so for enough cycles in a row.",
        Gate.DEVIATION: "The most loaded broker is within the permitted deviation.",
        Gate.RECENTLY_UNLOADED: "The bundle was unloaded within the grace period.",
        Gate.KNOWN: "The leader has no data of the bundle.",
        Gate.HAS_TRAFFIC: "The bundle has no traffic.",
        Gate.FITS: "The bundle is larger than what is still to be moved.",
        Gate.STILL_NEEDED: "What was picked before it is enough.",
        Gate.BUNDLE_COUNT: "As many bundles were picked as one cycle may move.",
        Gate.LOAD_DATA: "A live broker has no load data, or no broker has.",
        Gate.FRESH: "The broker's load data is too old.",
        Gate.COOL_DOWN: "A broker's load data is too close to its last unload.",
        Gate.UNBALANCED: "The spread of load is within the target, and no broker is over- or underloaded.",
        Gate.BROKERS_PER_CYCLE: "As many brokers gave as one cycle permits, or no receiver is left.",
        Gate.TOP_BUNDLES: "The broker's busiest bundles are not known, or it has one alone.",
        Gate.OWNER: "The broker does not own the bundle.",
        Gate.EXCLUDED: "The bundle's namespace is excluded from shedding.",
        Gate.TRANSFERABLE: "Policies or filters do not let the bundle go to that broker.",
        Gate.ISOLATION: "The namespace's isolation policy leaves no other broker.",
        Gate.ANTI_AFFINITY: "A move would not spread the anti-affinity group better.",
        Gate.TOPIC_CAP: "The broker has too many topics.",
        Gate.EVEN_BUNDLES: "The broker has more bundles of the namespace than others.",
        Gate.CLASS_FILTER: "The broker runs another load manager.",
        Gate.VERSION: "The broker runs an older version than others.",
        Gate.DESTINATION: "Placement found no broker.",
        Gate.MOVES: "Placement chose the broker that has the bundle already.",
        Gate.SPREAD: "The fullest and the emptiest broker are close enough.",
        Gate.IDLE: "No broker has so little to do that it is filled at once.",
        Gate.GAIN: "No destination makes the fuller of the two brokers so much emptier that it is worth a move.",
        Gate.MOVES_PER_CYCLE: "As many bundles move as one cycle permits.",
        Gate.SPLIT_NEEDED: "The bundle is within all limits.",
        Gate.TWO_TOPICS: "A bundle with fewer than two topics is not split.",
        Gate.MAX_BUNDLES: "The namespace has as many bundles as it may.",
        Gate.SPLITS_PER_CYCLE: "As many bundles are split as one cycle permits.",
        Gate.SPLITTABLE: "The range cannot be cut in two, or the algorithm found no boundary.",
    }
)
"""What it means when a gate does not pass."""


def table() -> str:
    """The gates as a table in Markdown."""
    rows = "\n".join(f"| `{gate.value}` | {SENTENCES[gate]} |" for gate in Gate)
    return f"| gate | holds because |\n| --- | --- |\n{rows}\n"


if __name__ == "__main__":
    print(table(), end="")
