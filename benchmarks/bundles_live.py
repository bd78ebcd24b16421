"""Profile `default` against Pulsar's own balancer: real three-broker clusters with a moving hot spot.

Run as `python -m benchmarks.bundles_live [--minutes 15]`; not part of `make bench`. Each load manager gets a cluster
for each balancer, and the same load. Ours goes the whole way: collector, Kafka, Spark job, executor in mode `act`.

Brokers of one machine all report the usage of the machine. Pulsar's modular manager therefore balances by rates
(UniformLoadShedder); for ours the collector puts a broker's share of the messages in the place of its CPU. The
extensible manager has no shedder by rates: its TransferShedder runs with its defaults, and sees no difference.

An unload is a bundle that has another owner than before, whoever moved it. `deviation` is the standard deviation of
the brokers' message rates by their mean, over the minutes after the first. Unserved seconds are those of bundles that
had an owner and have none, looked at twice a second.
"""

import json
import os
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean
from typing import Any

import click

from benchmarks.bundle_clusters import (
    BUNDLES,
    HOT_RATE,
    NAMESPACES,
    RATE,
    TOPICS,
    BalanceWatch,
    balance_by_us,
    program,
    start_cluster,
)
from benchmarks.record import write_report
from tests.harness.pulsar.bundled import BY_RATES
from tests.harness.pulsar.cluster import BUNDLE_BROKERS, EXTENSIBLE, MODULAR

MANAGERS = {"modular": MODULAR, "extensible": EXTENSIBLE}
BALANCERS = ("default", "pulsar")


class HotSpot(threading.Thread):
    """Load on one namespace after the other."""

    def __init__(self, load: Mapping[str, list[str]], seconds: float) -> None:
        super().__init__(daemon=True)
        self._load, self._seconds, self._ended = load, seconds, threading.Event()

    def run(self) -> None:
        """Go on until `end`."""
        while not self._ended.is_set():
            for namespace in NAMESPACES:
                with program(self._load[namespace]):
                    if self._ended.wait(self._seconds):
                        return

    def end(self) -> None:
        """Stop the load."""
        self._ended.set()
        self.join()


def measure(manager: str, balancer: str, minutes: float, folder: Path) -> dict[str, Any]:
    """Run one balancer on one cluster."""
    own = {"loadBalancerSheddingEnabled": balancer == "pulsar", "loadBalancerSheddingIntervalMinutes": 1}
    chosen = BUNDLE_BROKERS | {"loadManagerClassName": MANAGERS[manager]} | own
    if manager == "modular":
        chosen |= BY_RATES
    with ExitStack() as stack:
        cluster, transport, load = start_cluster(folder, chosen, stack)
        for namespace in NAMESPACES:
            stack.enter_context(program([*load, namespace, str(TOPICS), str(RATE)]))
        if balancer == "default":
            balance_by_us(folder, transport, stack)
        hot = HotSpot({entry: [*load, entry, str(TOPICS), str(HOT_RATE)] for entry in NAMESPACES}, minutes * 60 / 2)
        watch, began = BalanceWatch(cluster, transport), time.monotonic()
        for thread in (hot, watch):
            thread.start()
        time.sleep(minutes * 60)
        for thread in (watch, hot):
            thread.end()
    later = [spread for instant, spread in watch.spreads if instant > began + 60] or [
        spread for _, spread in watch.spreads
    ]
    return {
        "manager": manager,
        "balancer": balancer,
        "minutes": minutes,
        "unloads": watch.unloads,
        "deviation": round(fmean(later), 3) if later else None,
        "unservedSeconds": round(watch.unserved_s, 1),
        "load": [round(entry, 1) for entry in os.getloadavg()],
    }


@click.command()
@click.option("--minutes", default=15.0, show_default=True, help="Of each run; the hot spot moves after half of them.")
@click.option("--manager", "managers", multiple=True, type=click.Choice(list(MANAGERS)), default=tuple(MANAGERS))
@click.option("--balancer", "balancers", multiple=True, type=click.Choice(BALANCERS), default=BALANCERS)
@click.option("--write", is_flag=True, help="Write benchmarks/bundles_live.json.")
def main(minutes: float, managers: tuple[str, ...], balancers: tuple[str, ...], write: bool) -> None:
    """Run each balancer with each load manager, and print one table."""
    rows = []
    for manager in managers:
        for balancer in balancers:
            folder = Path(tempfile.mkdtemp(prefix="bundles-live-"))
            click.echo(f"{manager}, {balancer}: logs in {folder}", err=True)
            rows.append(measure(manager, balancer, minutes, folder))
            click.echo(json.dumps(rows[-1]), err=True)
            if write:
                # After each run: the next one may fail, and all take an hour.
                report = {"namespaces": len(NAMESPACES), "bundles": BUNDLES, "rows": rows}
                write_report("bundles_live", report)
    click.echo(f"{'manager':<11} {'balancer':<9} {'minutes':>7} {'unloads':>7} {'deviation':>9} {'unserved s':>10}")
    for row in rows:
        click.echo(
            f"{row['manager']:<11} {row['balancer']:<9} {row['minutes']:>7g} {row['unloads']:>7} "
            f"{row['deviation']!s:>9} {row['unservedSeconds']:>10}"
        )


if __name__ == "__main__":
    main()
