"""Messages of a Pulsar cluster with bundles, and a bucket that runs its family."""

from __future__ import annotations

from engine.bundles.codec import unpack
from engine.bundles.family import BUNDLES, PART
from engine.families import FAMILIES
from engine.kernel.packed import Packed, StoredPart
from tests.engine.buckets import Bucket
from tests.engine.records import record

MIB = 1_048_576
NOW, MINUTE = 1_763_660_000_000, 60_000
BOTH = (*FAMILIES, BUNDLES)
EVENLY = "loadBalancerDistributeBundlesEvenlyEnabled"


def bundle(number, namespace="acme/shop"):
    return f"{namespace}/0x{number * 16:08x}_0x{number * 16 + 16:08x}"


def report(broker, loads, at, cluster="west", cpu=0.0, topics=5, **more):
    """A report of a modular broker: bundle to throughput (MiB/s), cpu in percent."""
    stats = {
        name: {"msgThroughputIn": load * MIB, "msgRateIn": load * 100, "topics": topics} for name, load in loads.items()
    }
    data = {"cpu": {"usage": float(cpu), "limit": 100.0}, "lastStats": stats, "lastUpdate": at}
    body = {"v": 1, "type": "local-broker-data", "cluster": cluster, "broker": broker, "data": data, "at": at}
    return record("broker-load", cluster, body | more)


def extensible(broker, loads, at, cluster="west", usage=0.0):
    """A report of a broker with the extensible manager."""
    top = [
        {"bundleName": name, "stats": {"msgThroughputIn": load * MIB, "msgRateIn": load, "topics": 5}}
        for name, load in sorted(loads.items(), key=lambda one: one[1])
    ]
    data = {
        "cpu": {"usage": usage * 100, "limit": 100.0},
        "weightedMaxEMA": usage,
        "updatedAt": at,
        "bundleCount": len(loads),
        "msgThroughputIn": sum(loads.values()) * MIB,
        "msgThroughputEMA": sum(loads.values()) * MIB,
    }
    body = {"v": 1, "type": "broker-load-data", "cluster": cluster, "broker": broker, "data": data, "at": at}
    return record("broker-load", cluster, body | {"topBundles": {"topBundlesLoadData": top}})


def policies(at, configuration=None, cluster="west", **more):
    body = {"v": 1, "type": "policies", "cluster": cluster, "at": at, "configuration": configuration or {}}
    return record("broker-events", cluster, body | more)


def live(at, *brokers, cluster="west"):
    body = {"v": 1, "type": "brokers", "cluster": cluster, "at": at, "brokers": {name: {} for name in brokers}}
    return record("broker-events", cluster, body)


def ownership(at, owners, namespace="acme/shop", cluster="west"):
    """Bundle to broker."""
    ranges = {name.rpartition("/")[2]: broker for name, broker in owners.items()}
    body = {"v": 1, "type": "ownership", "cluster": cluster, "namespace": namespace, "owners": ranges, "at": at}
    return record("broker-events", cluster, body)


def ended(decision, status="applied"):
    body = {
        "v": 1,
        "type": "outcome",
        "family": "bundles",
        "topic": decision["subject"],
        "status": status,
        "at": NOW,
        "decisionId": decision["decision_id"],
    }
    return record("control-events", decision["subject"], body)


def skewed(at, cluster="west"):
    """A hot broker and an idle one."""
    hot = {bundle(number): load for number, load in enumerate((50, 40, 30, 20, 10))}
    return [
        policies(at, {EVENLY: False}, cluster),
        report("broker-1:8080", hot, at, cluster, cpu=80),
        report("broker-2:8080", {bundle(9): 1.0}, at, cluster, cpu=5),
    ]


def balancing():
    """A bucket with the family."""
    return Bucket(families=BOTH)


def clusters_of(packed: Packed):
    """What is known of the clusters of a stored bucket."""
    return unpack(packed.parts.get(PART, StoredPart()))


def bundle_rows(output):
    """Decisions and holds of the family."""
    return [row for row in (*output.decisions, *output.holds) if row["family"] == "bundles"]
