"""Every reason for which a broker or a bundle is left alone, in the words that an answer has.

Stage: under the whole family. Run as `python -m decisions.bundles.gates`: the table of docs/bundles.md.
"""

from decisions.kernel.readings import NamedReason


class BundleGate(NamedReason):
    """A gate: its name on the wire, and what it means when it does not pass."""

    SETTINGS = "settings", "The policies of the cluster or bundle are unknown or cannot be read: it is left as it is."
    INTERNAL_ERROR = "internal-error", "The evaluation failed. This is a fault of the program: its log has the details."
    ENABLED = "balancer-enabled", "The balancer or its shedding is switched off."
    BROKERS = "enough-brokers", "One broker alone has nobody to give to."
    LEADER = "leader", "Only the leader does this."
    OVERLOADED = "broker-overloaded", "The broker's fullest resource is below the overload threshold."
    ABOVE_AVERAGE = "above-average", "The broker's averaged usage is not far enough above the cluster's."
    MIN_THROUGHPUT = "min-throughput", "What the broker would have to give is too little to be worth it."
    LOWER_BOUNDARY = (
        "lower-boundary",
        "No broker is far enough below the average, or none above it has bundles to give.",
    )
    SOLE_BUNDLE = "more-than-one-bundle", "The broker has a single bundle, or none."
    RATE_DIFFERENCE = "rate-difference", "The brokers' message rates are close enough."
    THROUGHPUT_DIFFERENCE = "throughput-difference", "The brokers' throughputs are close enough."
    MIN_MESSAGES = "min-unload-messages", "What would move is less than is worth a move."
    PAIR_DIFFERENCE = "pair-difference", "The two brokers of the pair are close enough."
    HIT_COUNT = "hit-count", "It has not been so for enough cycles in a row."
    DEVIATION = "deviation", "The most loaded broker is within the permitted deviation."
    RECENTLY_UNLOADED = "recently-unloaded", "The bundle was unloaded within the grace period, or waits for an outcome."
    KNOWN = "bundle-known", "The leader has no data of the bundle."
    HAS_TRAFFIC = "has-traffic", "The bundle has no traffic."
    FITS = "fits-what-is-needed", "The bundle is larger than what is still to be moved."
    STILL_NEEDED = "still-needed", "What was picked before it is enough."
    BUNDLE_COUNT = "bundles-per-cycle", "As many bundles were picked as one cycle may move."
    LOAD_DATA = "load-data", "A live broker has no load data, or no broker has."
    FRESH = "load-data-fresh", "The broker's load data is too old."
    COOL_DOWN = "cool-down", "A broker's load data is too close to its last unload."
    UNBALANCED = "unbalanced", "The spread of load is within the target, and no broker is over- or underloaded."
    BROKERS_PER_CYCLE = "brokers-per-cycle", "As many brokers gave as one cycle permits, or no receiver is left."
    TOP_BUNDLES = "top-bundles", "The broker's busiest bundles are not known, or it has one alone."
    OWNER = "owner", "The broker does not own the bundle."
    EXCLUDED = "namespace-excluded", "The bundle's namespace is excluded from shedding."
    TRANSFERABLE = "transferable", "Policies or filters do not let the bundle go to that broker."
    ISOLATION = "isolation", "The namespace's isolation policy leaves no other broker."
    ANTI_AFFINITY = "anti-affinity", "A move would not spread the anti-affinity group better."
    TOPIC_CAP = "topic-cap", "The broker has too many topics."
    EVEN_BUNDLES = "even-bundles", "The broker has more bundles of the namespace than others."
    CLASS_FILTER = "load-manager-class", "The broker runs another load manager."
    VERSION = "version", "The broker runs an older version than others."
    DESTINATION = "destination", "Placement found no broker."
    MOVES = "destination-differs", "Placement chose the broker that has the bundle already."
    SPREAD = "spread", "The fullest and the emptiest broker are close enough."
    IDLE = "idle-broker", "No broker has so little to do that it is filled at once."
    GAIN = "gain", "No destination makes the fuller of the two brokers so much emptier that it is worth a move."
    MOVES_PER_CYCLE = "moves-per-cycle", "As many bundles move as one cycle permits."
    SPLIT_NEEDED = "split-needed", "The bundle is within all limits."
    TWO_TOPICS = "two-topics", "A bundle with fewer than two topics is not split."
    MAX_BUNDLES = "max-bundles", "The namespace has as many bundles as it may."
    SPLITS_PER_CYCLE = "splits-per-cycle", "As many bundles are split as one cycle permits."
    SPLITTABLE = "splittable", "The range cannot be cut in two, or the algorithm found no boundary."


SENTENCES = {gate: gate.sentence for gate in BundleGate}


def gates_table() -> str:
    """The gates as a table in Markdown."""
    rows = "\n".join(f"| `{gate.value}` | {SENTENCES[gate]} |" for gate in BundleGate)
    return f"| gate | holds because |\n| --- | --- |\n{rows}\n"


if __name__ == "__main__":
    print(gates_table(), end="")
