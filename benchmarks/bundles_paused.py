"""A pause of ten minutes on real brokers while the load moves, beside a cluster without a pause.

Run as `python -m benchmarks.bundles_paused`; about 22 minutes, not part of `make bench`. Each of two clusters has three
brokers, all bundles on the first one, and an isolation policy with look-ahead patterns that covers one namespace. The
executor of one cluster is paused at once; one namespace is hot, and another from the fifth minute on. A bundle may move
again after GRACE_MINUTES: with the default of 30 the cluster without a pause cannot follow the load, as nearly all of
its bundles have moved in the first minute.

Who owns what is asked of each broker's own interface, without our client. Printed for both clusters: how decisions
ended, moves with their ages, moves of the isolated namespace, moves during the pause, the gates that `bundles explain`
names, and the deviation of the brokers' rates over the last three minutes.
"""

import json
import subprocess
import tempfile
import time
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import click

from anabranch.admin.bundles import BundleAdmin
from anabranch.admin.transport import Transport
from benchmarks.bundle_clusters import (
    HOT_RATE,
    NAMESPACES,
    RATE,
    TOPICS,
    BalanceWatch,
    balance_by_us,
    program,
    start_cluster,
)
from tests.harness.pulsar.cluster import BUNDLE_BROKERS, CLUSTER, MODULAR, PulsarCluster
from tests.waiting import wait_until

ISOLATED = "public/west"
POLICY = {
    # No broker is a primary, so Pulsar itself gives these bundles to any.
    "namespaces": ["public/w(?!arm).*"],
    "primary": ["gold-(?!0).*"],
    "secondary": ["127.*"],
    "auto_failover_policy": {
        "policy_type": "min_available",
        "parameters": {"min_limit": "1", "usage_threshold": "100"},
    },
}
PAUSE_MINUTES, GRACE_MINUTES = 10.0, 4
MOVES_AFTER_S, LAST_S, PLACED_S = 300, 180, 180


class OwnerWatch(BalanceWatch):
    """Owners as each broker says, with the instant of every change."""

    def __init__(self, cluster: PulsarCluster, transport: Transport) -> None:
        super().__init__(cluster, transport)
        self._brokers, self._seen = [broker.id for broker in cluster.brokers], dict[str, str]()
        self.changes = list[tuple[float, str, str, str]]()

    def owners(self) -> dict[str, str] | None:
        """Return broker by bundle, and note what has changed."""
        owners = dict[str, str]()
        for broker in self._brokers:
            url = f"http://{broker}/admin/v2/brokers/{CLUSTER}/{broker}/ownedNamespaces"
            try:
                with urllib.request.urlopen(url, timeout=30) as answer:
                    owned = json.load(answer)
            except OSError:
                return None
            owners |= {bundle: broker for bundle in owned if bundle.rpartition("/")[0] in NAMESPACES}
        for bundle, owner in owners.items():
            if self._seen.get(bundle, owner) != owner:
                self.changes.append((time.time(), bundle, self._seen[bundle], owner))
        self._seen |= owners
        return owners


def pile_up(watch: OwnerWatch, bundles: BundleAdmin, first: str) -> bool:
    """Move every bundle to the first broker; return whether all are there."""
    owners = watch.owners() or {}
    for bundle, owner in owners.items():
        if owner != first:
            namespace, _, part = bundle.rpartition("/")
            bundles.unload(namespace, part, first)
    return len(owners) >= 2 * len(NAMESPACES) and set(owners.values()) == {first}


def run(minutes: float, settled: float) -> dict[str, Any]:
    """Pause a cluster's executor for some minutes, let it settle, and report what was seen."""
    folder = Path(tempfile.mkdtemp(prefix="bundles-paused-"))
    with ExitStack() as stack:
        settings = BUNDLE_BROKERS | {"loadManagerClassName": MODULAR, "loadBalancerSheddingEnabled": False}
        cluster, transport, load = start_cluster(folder, settings, stack)
        path = f"/admin/v2/clusters/{CLUSTER}/namespaceIsolationPolicies/look-ahead"
        made = transport.exchange("POST", path, body=json.dumps(POLICY))
        for namespace in NAMESPACES:
            stack.enter_context(program([*load, namespace, str(TOPICS), str(RATE)]))
        watch, bundles, first = OwnerWatch(cluster, transport), BundleAdmin(transport), cluster.brokers[0].id
        wait_until(lambda: pile_up(watch, bundles, first), PLACED_S, every_s=2)
        watch.changes.clear()
        grace = {"loadBalancerSheddingGracePeriodMinutes": str(GRACE_MINUTES)}
        ours = balance_by_us(folder, transport, stack, {"gainShedderHitCount": "2"} | grace)
        click.echo(f"pause of {minutes:g} minutes: logs in {folder}; the policy: {made}", err=True)

        def ask(*arguments: str) -> str:
            done = subprocess.run([*ours, *arguments], capture_output=True, text=True, timeout=120)
            return done.stdout if done.returncode == 0 else done.stderr

        watch.start()
        stack.callback(watch.end)
        if minutes:
            click.echo(ask("decisions", "pause", "all", "--reason", "benchmark"), err=True)
        began = time.time()
        end = began + (PAUSE_MINUTES + settled) * 60
        with program([*load, NAMESPACES[0], str(TOPICS), str(HOT_RATE)]):
            time.sleep(MOVES_AFTER_S)
        with program([*load, NAMESPACES[1], str(TOPICS), str(HOT_RATE)]):
            time.sleep(max(0.0, began + PAUSE_MINUTES * 60 - time.time()))
            text, resumed = ask("bundles", "explain", CLUSTER), time.time()
            if minutes:
                click.echo(ask("decisions", "resume", "all", "--reason", "benchmark"), err=True)
            time.sleep(max(0.0, end - time.time()))
        columns = "bundle, destination, status, error, decided_at, ended_at, calls"
        moves = ask("sql", f"SELECT {columns} FROM bundle_moves", "--output", "json")
        spreads = [spread for instant, spread in watch.spreads if instant > time.monotonic() - LAST_S]
        (folder / "explain.txt").write_text(text + ask("bundles", "explain", CLUSTER))
    (folder / "moves.jsonl").write_text(moves)
    (folder / "owners.json").write_text(json.dumps([began, resumed, watch.changes, watch.spreads]))
    rows = [json.loads(line) for line in moves.splitlines()]
    return summary(minutes, rows, watch, (began, resumed)) | {
        "deviation": round(fmean(spreads), 3) if spreads else None,
        "gates": sorted({line.strip()[:150] for line in text.splitlines() if " settings " in line}),
        "folder": str(folder),
    }


def summary(
    minutes: float, rows: list[dict[str, Any]], watch: OwnerWatch, pause: tuple[float, float]
) -> dict[str, Any]:
    """Compare what brokers said with the decisions on record."""
    ages = list[float]()
    unexplained = list[str]()
    for instant, bundle, _, owner in watch.changes:
        decided = [
            at
            for row in rows
            if row["bundle"] == bundle and row["destination"] == owner and row["status"] == "applied"
            if (at := datetime.fromisoformat(row["decided_at"]).timestamp()) <= instant
        ]
        if decided:
            ages.append(round(instant - max(decided), 1))
        else:
            unexplained.append(f"{bundle} to {owner}")
    return {
        "pauseMinutes": minutes,
        "ends": dict(Counter(f"{row['status']} {(row['error'] or '')[:60]}".strip() for row in rows)),
        "moves": len(watch.changes),
        "movesWhilePaused": sum(pause[0] < instant < pause[1] for instant, *_ in watch.changes) if minutes else None,
        "movesOfIsolated": sum(bundle.startswith(f"{ISOLATED}/") for _, bundle, *_ in watch.changes),
        "decisionsOnIsolated": sum(row["bundle"].startswith(f"{ISOLATED}/") for row in rows),
        "oldestApplied": max(ages, default=None),
        "unexplained": unexplained,
        "unservedSeconds": round(watch.unserved_s, 1),
    }


@click.command()
@click.option("--settled", default=7.0, show_default=True, help="Minutes after the pause.")
@click.option("--beside/--alone", default=True, help="With the same cluster without a pause, at the same time.")
def main(settled: float, beside: bool) -> None:
    """Pause one cluster's executor, and not the other's."""
    with ThreadPoolExecutor(2) as pool:
        for row in pool.map(
            lambda minutes: run(minutes, settled), (PAUSE_MINUTES, 0.0) if beside else (PAUSE_MINUTES,)
        ):
            click.echo(json.dumps(row, indent=1))


if __name__ == "__main__":
    main()
