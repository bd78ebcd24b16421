"""Engine cost of a cycle for clusters with bundles: 10,000 bundles on 200 brokers, without Spark.

Run as `python -m benchmarks.bundles [--quick]`: prints a table and writes benchmarks/bundles.json. The brokers are one
cluster, or fifty. At each minute every broker reports that all of its bundles have changed, so every report counts, and
the cycle comes. Seconds are those of the processor, the best of the minutes: `reports` is parsing and laying down,
`cycle` is the tick with its rows as bytes and what is stored; `restart` is decoding the stored state. A job on two
cores has two such processes.
"""

import gc
import json
import os
import time
from random import Random
from typing import Any

from benchmarks.engine import stored_after, stored_bytes
from benchmarks.record import print_row, publish, quick_command
from engine.families import bucket_engine
from engine.kernel.bucket import BucketEngine
from engine.kernel.packed import Packed
from engine.kernel.records import RawRecord
from engine.kernel.settings import EngineSettings

NOW, MINUTE = 1_763_660_000_000, 60_000
BROKERS, BUNDLES, POLICIES = 200, 10_000, 50
"""Every namespace is on one broker at first; a quarter of them have an isolation policy."""
SETTINGS = EngineSettings(0.25, MINUTE, bundles=True)
BALANCERS = {
    "threshold": {"loadBalancerLoadSheddingStrategy": "ThresholdShedder"},
    "average": {"loadBalancerLoadSheddingStrategy": "AvgShedder", "loadBalancerLoadPlacementStrategy": "AvgShedder"},
    "gain": {
        "loadBalancerLoadSheddingStrategy": "GainShedder",
        "loadBalancerLoadPlacementStrategy": "LeastProjectedUsage",
    },
}


@quick_command
def main(quick: bool) -> None:
    """Measures each number of clusters and balancer, prints, writes."""
    rows = []
    for clusters in (1, 50):
        for balancer in BALANCERS:
            rows.append(measure(clusters, balancer, 2 if quick else 8))
            print_row(rows[-1])
    report = {"brokers": BROKERS, "bundles": BUNDLES, "policies": POLICIES, "cores": os.cpu_count(), "rows": rows}
    publish("bundles", report, quick)


def measure(clusters: int, balancer: str, minutes: int) -> dict[str, Any]:
    """One bucket with all brokers, over some minutes."""
    engine, packed, random = bucket_engine(SETTINGS), Packed(), Random(7)
    spent: dict[str, list[float]] = {"reports": [], "cycle": [], "restart": []}
    decisions = 0
    for minute in range(minutes):
        now = NOW + minute * MINUTE
        records = [*_policies(clusters, balancer, now), *_ownership(clusters, now), *_reports(clusters, now, random)]
        packed, *_ = _batch(engine, packed, records, now, spent["reports"])
        packed, decided = _batch(engine, packed, [_record("control-events", "*", 0, _tick(now))], now, spent["cycle"])
        decisions += decided
    started = time.process_time()
    _batch(bucket_engine(SETTINGS), packed, [], NOW, [])
    spent["restart"].append(time.process_time() - started)
    seconds = {name: min(times) for name, times in spent.items()}
    about = {"clusters": clusters, "balancer": balancer, "seconds": seconds, "decisions": decisions}
    return {**about, "stored": stored_bytes(packed)}


def _batch(
    engine: BucketEngine, packed: Packed, records: list[RawRecord], now: int, spent: list[float]
) -> tuple[Packed, int]:
    gc.collect()
    gc.disable()
    started = time.process_time()
    written, output = engine.run(0, packed, records, now)
    output.bodies()
    spent.append(time.process_time() - started)
    gc.enable()
    return stored_after(packed, written), output.counts.decisions


def _reports(clusters: int, now: int, random: Random) -> list[RawRecord]:
    records = []
    for broker in range(BROKERS):
        name, cluster = f"broker-{broker}:8080", f"cluster-{broker % clusters}"
        weight = random.uniform(0.2, 2.0)
        stats = {
            f"tenant/namespace-{broker}/0x{number:08x}_0x{number + 1:08x}": {
                "msgRateIn": weight * random.uniform(50, 500),
                "msgRateOut": weight * random.uniform(50, 500),
                "msgThroughputIn": weight * random.uniform(5e4, 5e5),
                "msgThroughputOut": weight * 2e5,
                "producerCount": 3,
                "consumerCount": 5,
                "topics": 10,
                "cacheSize": 0,
            }
            for number in range(BUNDLES // BROKERS)
        }
        data = {"cpu": {"usage": min(95.0, weight * 45), "limit": 100.0}, "lastUpdate": now, "lastStats": stats}
        body = {"v": 1, "type": "local-broker-data", "cluster": cluster, "broker": name, "data": data, "at": now}
        records.append(_record("broker-load", cluster, broker, body))
    return records


def _policies(clusters: int, balancer: str, now: int) -> list[RawRecord]:
    isolated = {
        f"policy-{number}": {"namespaces": [f"tenant/namespace-{number}"], "primary": [f"broker-{number}[0-9]?:.*"]}
        for number in range(POLICIES)
    }
    return [
        _record(
            "broker-events",
            f"cluster-{number}",
            number,
            {
                "v": 1,
                "type": "policies",
                "cluster": f"cluster-{number}",
                "configuration": BALANCERS[balancer],
                "at": now,
                "isolationPolicies": isolated,
            },
        )
        for number in range(clusters)
    ]


def _ownership(clusters: int, now: int) -> list[RawRecord]:
    records = []
    for broker in range(BROKERS):
        owners = {f"0x{number:08x}_0x{number + 1:08x}": f"broker-{broker}:8080" for number in range(BUNDLES // BROKERS)}
        cluster = f"cluster-{broker % clusters}"
        records.append(
            _record(
                "broker-events",
                cluster,
                clusters + broker,
                {
                    "v": 1,
                    "type": "ownership",
                    "cluster": cluster,
                    "namespace": f"tenant/namespace-{broker}",
                    "owners": owners,
                    "at": now,
                },
            )
        )
    return records


def _tick(now: int) -> dict[str, Any]:
    return {"v": 1, "type": "tick", "at": now}


def _record(source: str, key: str, offset: int, body: dict[str, Any]) -> RawRecord:
    value = json.dumps(body, separators=(",", ":")).encode()
    return RawRecord(source, key.encode(), value, len(value), 0, offset, 0, True)


if __name__ == "__main__":
    main()
