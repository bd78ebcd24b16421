"""`python -m tests.harness.pulsar.bundled [FOLDER]`: three Pulsar 4.0.7 brokers with bundles until Ctrl-C.

Load is running, and all bundles are on the first broker at first, so that there is something to balance.
"""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from pathlib import Path

import click

from anabranch.admin.answers import Answered, Response
from anabranch.admin.bundles import BundleAdmin
from anabranch.admin.transport import Transport
from anabranch.local.setup import ensure_jar_folder, ensure_jars, ensure_pulsar
from runtime.java_home import SetupError, find_java
from schemas.settings.root import load_settings
from tests.harness.pulsar.cluster import BUNDLE_BROKERS, CLUSTER, EXTENSIBLE, MODULAR, PulsarBroker, PulsarCluster

NAMESPACE, BUNDLES, TOPICS, RATE = "public/shop", 16, 16, 20
_PATIENCE_S = 120
BY_RATES = {
    "loadBalancerLoadSheddingStrategy": "org.apache.pulsar.broker.loadbalance.impl.UniformLoadShedder",
    "minUnloadMessage": 1,
    "minUnloadMessageThroughput": 1,
    "maxUnloadPercentage": 0.5,
    "maxUnloadBundleNumPerShedding": 2,
    "loadBalancerDistributeBundlesEvenlyEnabled": False,
    "loadBalancerMsgThroughputMultiplierDifferenceShedderThreshold": 2,
    "loadBalancerMsgRateDifferenceShedderThreshold": 100,
}
"""Of the modular manager. Brokers of one machine all report the usage of the machine: only their rates tell them
apart."""


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=Path("var/bundled"))
@click.option("--extensible", is_flag=True, help="With the extensible load manager instead of the modular one.")
@click.option("--set", "lines", multiple=True, metavar="NAME=VALUE", help="A setting of broker.conf; may be repeated.")
def main(folder: Path, extensible: bool, lines: tuple[str, ...]) -> None:
    """Three brokers of Pulsar 4.0.7 on loopback, with load on sixteen bundles. Their own shedding is off.

    Takes 1.5 GB and, the first time, 540 MB of jars.
    """
    wrong = [line for line in lines if "=" not in line]
    if wrong:
        raise click.UsageError(f"--set {wrong[0]}: say NAME=VALUE")
    ended = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: ended.set())
    manager = {"loadManagerClassName": EXTENSIBLE} if extensible else {"loadManagerClassName": MODULAR, **BY_RATES}
    settings = BUNDLE_BROKERS | {"loadBalancerSheddingEnabled": False} | manager
    settings |= dict(line.split("=", 1) for line in lines)
    try:
        own = load_settings()
        jars, of_load = ensure_jar_folder(own, "pulsar-lts", _say), ensure_pulsar(own, _say)
        cluster = PulsarCluster(folder, jars, ensure_jars(own, _say).zookeeper, "256m", settings=settings)
        _say("starting ZooKeeper, a bookie and three brokers …")
        cluster.start(3)
    except SetupError as error:
        raise click.ClickException(str(error)) from error
    load = None
    try:
        transport = Transport(cluster.brokers[0].admin_url, None, user_agent="anabranch-lab", timeout_seconds=30)
        _make_namespace(transport)
        load = subprocess.Popen(
            [
                find_java(),
                "-Xmx128m",
                "-Djava.net.preferIPv4Stack=true",
                "-cp",
                f"{of_load}/*",
                "anabranch.pulsar.PlainLoad",
                cluster.brokers[0].service_url,
                NAMESPACE,
                str(TOPICS),
                str(RATE),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _say("waiting for load, and piling all bundles up on the first broker …")
        _pile_up(cluster, BundleAdmin(transport), ended)
        click.echo(f"export ANABRANCH_CONTROLLER_URL={cluster.brokers[0].admin_url}")
        _say(f"{TOPICS} topics of {NAMESPACE} take {TOPICS * RATE} messages a second; logs: {folder}; Ctrl-C ends it")
        while not ended.wait(1):
            for one in cluster.brokers:
                if not one.runs:
                    _say(f"{one.id} has ended: {one.log}")
                    ended.wait(30)
    finally:
        if load is not None:
            load.kill()
        cluster.stop()


def _make_namespace(transport: Transport) -> None:
    body = json.dumps({"bundles": {"numBundles": BUNDLES}})
    made = transport.exchange("PUT", f"/admin/v2/namespaces/{NAMESPACE}", body=body)
    if not isinstance(made, Response) or made.status not in (204, 409):
        raise click.ClickException(f"the namespace {NAMESPACE} cannot be made: {made}")


def _pile_up(cluster: PulsarCluster, bundles: BundleAdmin, ended: threading.Event) -> None:
    """Move every bundle to the first broker; repeats calls, as one in ten ends elsewhere."""
    first, *others = cluster.brokers
    deadline = time.monotonic() + _PATIENCE_S
    while not ended.wait(1):
        if time.monotonic() > deadline:
            _say("not all bundles are on the first broker; the balancer has less to do")
            return
        elsewhere = [bundle for broker in others for bundle in _owned(bundles, broker)]
        if not elsewhere and len(_owned(bundles, first)) >= BUNDLES // 2:
            return
        for bundle in elsewhere:
            bundles.unload(NAMESPACE, bundle.rpartition("/")[2], first.id)


def _owned(bundles: BundleAdmin, broker: PulsarBroker) -> list[str]:
    """Bundles of the namespace that a broker has."""
    reply = bundles.owned(CLUSTER, broker.id)
    return [one for one in reply.value if one.startswith(f"{NAMESPACE}/")] if isinstance(reply, Answered) else []


def _say(line: str) -> None:
    click.echo(line, err=True)


if __name__ == "__main__":
    main()
