"""Traffic of a local run with Pulsar: one topic, with load by Pulsar's own client in waves.

Stage: `python -m anabranch.local.pulsar.traffic SERVICE_URL JARS FOLDER`, a part of `anabranch.local.local_run`. The
topic gets a policy with low thresholds, which the collector reads, so that a laptop's load splits and merges it. The
client's counts (nothing lost, nothing twice) are in `FOLDER/load.json`, and in the log when it ends.
"""

import json
import logging
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from anabranch.admin.answers import Answered, Fault, Refused
from anabranch.admin.topics import ScalableTopics
from anabranch.admin.transport import Transport
from anabranch.local.pulsar.load import KeyedDemand, KeyedLoad, keyed_load
from anabranch.local.pulsar.standalone import StandalonePulsar
from runtime.java_home import SetupError
from runtime.telemetry.health import call_on_signals
from schemas.metadata import AutoScalePolicyOverride

TOPIC = "topic://public/default/orders"
COUNTS_FILE = "load.json"
"""In the folder of the local run."""
PEAK_PER_SECOND = 600
WAVE_SECONDS = 90
KEYS = 200
IN_FLIGHT = 1
"""The client of 5.0.0-M1 keeps the order of a key, and sends nothing twice, only so."""
DEMAND = KeyedDemand(PEAK_PER_SECOND, KEYS, IN_FLIGHT, WAVE_SECONDS)
POLICY = AutoScalePolicyOverride(
    split_cooldown_seconds=4,
    merge_cooldown_seconds=12,
    merge_window_seconds=8,
    max_dag_depth=1_000_000,
    split_msg_rate_in_threshold=100.0,
    merge_msg_rate_in_threshold=30.0,
    max_segments=8,
)

log = logging.getLogger(__name__)


def traffic_command(pulsar: StandalonePulsar, folder: Path) -> Sequence[str]:
    """Return the command that runs the traffic of this Pulsar."""
    words = (pulsar.service_url, str(pulsar.jars), str(folder))
    return [sys.executable, "-m", "anabranch.local.pulsar.traffic", *words]


def make_topic(admin_url: str) -> None:
    """The topic with its policy, unless it is there; raises `SetupError`.

    Before there is a collector: one that reads the topic without its policy hears of that half a minute later.
    """
    topics = ScalableTopics(Transport(admin_url, None, user_agent="anabranch-lab", timeout_seconds=30))
    fault = _make(topics)
    topics.close()
    if fault is not None:
        raise SetupError(f"{TOPIC} cannot be made: {fault}")


def _make(topics: ScalableTopics) -> Fault | None:
    reply = topics.create_topic(TOPIC, 1, {})
    if not isinstance(reply, Answered) and not (isinstance(reply, Refused) and reply.status == 409):
        return reply
    policy_reply = topics.set_policy(TOPIC, POLICY)
    return None if isinstance(policy_reply, Answered) else policy_reply


def main(service_url: str, jars: Path, folder: Path) -> None:
    """Load until SIGTERM or SIGINT; ends with an error when the client ends by itself."""
    stop = threading.Event()
    call_on_signals(stop.set)
    client_log = folder / "log" / "load.log"
    with keyed_load(jars, service_url, TOPIC, client_log, DEMAND) as load:
        while not stop.wait(1):
            if load.ended:
                sys.exit(f"the client has ended; see {client_log}")
            _write(folder, load)
        load.finish()
        _write(folder, load)
        log.info("what Pulsar's client sent and received: %s", json.dumps(load.counts))


def _write(folder: Path, load: KeyedLoad) -> None:
    part = folder / "load.part"
    part.write_text(json.dumps(load.counts))
    part.replace(folder / COUNTS_FILE)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
