"""Count the requests of idle processes to an object store: `python -m tests.harness.idle_requests --seconds 60`.

Executor, page and alerts run on a lake of their own each, in a store that records requests, with a Kafka that has
nothing to say. docs/deploy.md has the figures.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from confluent_kafka import Producer

from anabranch.local.broker import free_ports
from anabranch.local.processes import tethered
from tests.lake.object_store import ObjectStore

HOME = Path(__file__).resolve().parents[2]
PARTS = {"executor": ("serve", "executor"), "page": ("web",), "alerts": ("serve", "alerts")}
START_SECONDS = 40
AS_THE_CHART = {"ANABRANCH_EXECUTOR__POLL_MS": "5000", "ANABRANCH_EXECUTOR__LEASE_SECONDS": "75"}
"""Settings of `deploy/helm` for a lake in an object store."""


def count_requests(seconds: float) -> dict[str, Counter[str]]:
    """Return the requests of each part in some seconds, by method."""
    owner = Producer({"test.mock.num.brokers": "1", "bootstrap.servers": "unused:1", "log_level": 0})
    brokers = ",".join(f"{broker.host}:{broker.port}" for broker in owner.list_topics(timeout=10).brokers.values())
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory())
        stores = {}
        for part, command in PARTS.items():
            store = stores[part] = ObjectStore()
            stack.callback(store.close)
            environment = {
                **os.environ,
                **store.environment,
                "ANABRANCH_CONTROLLER_URL": f"http://127.0.0.1:{free_ports(1)[0]}",
                **AS_THE_CHART,
                "ANABRANCH_KAFKA_BOOTSTRAP": brokers,
                "ANABRANCH_LAKE__PATH": "s3://bucket/lake",
                "ANABRANCH_LOCAL__FOLDER": folder,
                "ANABRANCH_WEB__PORT": str(free_ports(1)[0]),
            }
            program = [sys.executable, "-m", "anabranch"]
            subprocess.run([*program, "lake", "create"], cwd=HOME, env=environment, check=True, capture_output=True)
            process = subprocess.Popen(
                tethered([*program, *command]), cwd=HOME, env=environment, stdout=sys.stderr, stderr=sys.stderr
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)
        time.sleep(START_SECONDS)
        for store in stores.values():
            store.requests()
        time.sleep(seconds)
        return {part: Counter(request.method for request in store.requests()) for part, store in stores.items()}


def main() -> None:
    """Print a table of requests a minute."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    seconds = parser.parse_args().seconds
    methods = ("HEAD", "GET", "LIST", "PUT")
    print(f"| process | {' | '.join(methods)} |\n| --- |{' --- |' * len(methods)}")
    for part, counts in count_requests(seconds).items():
        print(f"| {part} | {' | '.join(str(round(counts[method] * 60 / seconds)) for method in methods)} |")


if __name__ == "__main__":
    main()
