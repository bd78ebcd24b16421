"""Proof of the clients under load: real processes, splits and merges all the time, and kill -9 of every party in turn.

Run as `python -m tests.client.proof [--minutes 2] [--rate 3000] [--three-brokers] [--folder FOLDER]`. Three producers
write, and five consumers of each kind read, while segments split and merge. Every few seconds a producer, a consumer,
the controller or the broker is killed with SIGKILL and started again, or a consumer is stopped for a while. At the end
producers flush, consumers read everything, and `proof_check` judges the records of all processes. With three brokers
one of them is killed at a time, and connections to all are cut.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

import click
import httpx

from anabranch.local.broker import EmbeddedBroker, free_ports
from anabranch.local.setup import ensure_jars
from runtime.java_home import SetupError
from schemas.settings.root import load_settings
from tests.client.proof_check import KINDS, Checker, Verdict
from tests.client.proof_record import Record
from tests.client.scalable_topic import ScalableTopic
from tests.client.three_brokers import FLUSHING, ThreeBrokers
from tests.controller.processes import ROOT, ControllerProcess

Brokers = EmbeddedBroker | ThreeBrokers
NAME = "topic://acme/proof/orders"
SUBSCRIPTIONS = {"stream": "STREAM", "queue": "QUEUE", "checkpoint": "CHECKPOINT"}
KAFKA = {
    "producer": {"linger.ms": 20},
    **{kind: {"fetch.min.bytes": 131_072, "fetch.wait.max.ms": 200} for kind in KINDS},
}
"""Settings of the clients: fewer requests, as all of them and the broker share a machine."""
MAX_SEGMENTS = 6
STALL_SECONDS = 10.0
READ_SECONDS, FAULTY_READ_SECONDS = 600.0, 60.0
"""Longest time for the consumers to read what is left at the end; after a fault, those of the other kinds."""


class OneBroker(EmbeddedBroker):
    """A broker that may hold gigabytes when it is killed."""

    START_SECONDS = 240.0

    def extra_properties(self) -> str:
        return FLUSHING


class Proof:
    """All processes of a run."""

    def __init__(self, folder: Path, broker: Brokers, rate: int, consumers: int, chance: random.Random) -> None:
        self.folder, self.broker, self.rate, self.chance = folder, broker, rate, chance
        self.controller = ControllerProcess(folder, "kafka", broker.bootstrap)
        # Not one that the system gives to outgoing connections: it has to be free at every start.
        (self.controller.port,) = free_ports(1)
        self._life = ExitStack()
        self.processes: dict[tuple[str, str], subprocess.Popen[bytes]] = {}
        self.lives: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        """Splits, merges and disturbances so far."""
        self.began = time.monotonic()
        self.produced_seconds = 0.0
        self.faults: list[str] = []
        """Phases that did not end as they should."""
        self.names = {
            "producer": ["p0", "p1", "p2"],
            **{kind: [f"{kind}-{n}" for n in range(consumers)] for kind in KINDS},
        }
        self.checker = Checker(
            {kind: [Record(self.record(kind, name)) for name in names] for kind, names in self.names.items()}
        )

    def start_controller(self) -> None:
        """Start the controller where it was before."""
        client, _ = self._life.enter_context(self.controller.life())
        self.topic = ScalableTopic(NAME, client, self.broker.bootstrap)

    def start(self, kind: str, name: str) -> None:
        """Start a process, again if it was killed."""
        order = {
            "kind": kind,
            "name": name,
            "number": self.names[kind].index(name),
            "life": self.lives[name],
            "rate": self.rate / 3,
            "topic": NAME,
            "subscription": f"of-{kind}",
            "record": str(self.record(kind, name)),
            "config": {**self.topic.config(), "log_level": 0, **KAFKA[kind]},
        }
        self.lives[name] += 1
        command = [sys.executable, "-m", "tests.client.proof_worker", json.dumps(order)]
        with open(self.folder / "workers.log", "ab") as log:
            self.processes[kind, name] = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)

    def record(self, kind: str, name: str) -> Path:
        """Return the file of a process's record; its lives share it."""
        return self.folder / f"{kind}.{name}.rows"

    def attempt(self, phase: str, run: Callable[[], object]) -> None:
        """Run a phase; one that fails is a fault of the whole, which goes on to its verdict."""
        began = time.monotonic()
        try:
            run()
        except (AssertionError, OSError, SetupError, httpx.HTTPError, subprocess.TimeoutExpired) as error:
            self.faults.append(f"{phase}, after {time.monotonic() - began:.0f} s: {error!r}"[:1_000])
        print(f"{phase}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)

    def disturb(self, party: str) -> None:
        """Kill a party and start it again; `stall`: stop a consumer for a while."""
        self.done[party] += 1
        if party == "controller":
            self._life.close()
            self.start_controller()
        elif party == "broker":
            self.broker.kill()
            self.broker.start()
        elif party == "cut":
            assert isinstance(self.broker, ThreeBrokers)
            self.broker.cut()
        elif party == "stall":
            process = self.processes["stream", self.chance.choice(self.names["stream"])]
            process.send_signal(signal.SIGSTOP)
            time.sleep(STALL_SECONDS)
            process.send_signal(signal.SIGCONT)
        else:
            name = self.chance.choice(self.names[party])
            process = self.processes[party, name]
            process.kill()
            process.wait()
            self.start(party, name)

    def change(self) -> None:
        """Split or merge; the controller or the broker may be away."""
        try:
            self.done[self.topic.change(self.chance, MAX_SEGMENTS)] += 1
        except (httpx.HTTPError, AssertionError, RuntimeError):
            self.done["refused"] += 1

    def verdict(self) -> Verdict:
        """Judge the records, and how the phases ended."""
        self.checker.read()
        verdict = self.checker.verdict()
        verdict.faults[:0] = self.faults
        return verdict

    def follow(self) -> None:
        """Check what is settled meanwhile, and print how far everybody is."""
        self.checker.read(time.monotonic_ns() - int(2 * STALL_SECONDS * 1e9))
        seconds, produced = time.monotonic() - self.began, self.checker.recorded("producer")
        read = ", ".join(f"{kind} {self.checker.recorded(kind)}" for kind in KINDS)
        print(f"{seconds:.0f} s: {produced} acknowledged, recorded by {read}", file=sys.stderr, flush=True)

    def end(self, kind: str) -> None:
        """End the processes of a kind cleanly."""
        processes = [self.processes[kind, name] for name in self.names[kind]]
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(READ_SECONDS)

    def close(self) -> None:
        """End everything that is left."""
        for process in self.processes.values():
            process.kill()
            process.wait()
        self._life.close()


@contextmanager
def brokers(folder: Path, jars: Path, three: bool, seed: int) -> Iterator[Brokers]:
    """A broker, or three."""
    if three:
        cluster = ThreeBrokers(folder, jars, random.Random(seed))
        with closing(cluster):
            cluster.launch()
            yield cluster
    else:
        broker = OneBroker(folder / "kafka", jars, heap="512m")
        try:
            broker.start()
            yield broker
        finally:
            broker.kill()


@contextmanager
def running(folder: Path, broker: Brokers, rate: int, consumers: int, seed: int) -> Iterator[Proof]:
    """A controller, a topic and all processes."""
    proof = Proof(folder, broker, rate, consumers, random.Random(seed))
    try:
        proof.start_controller()
        proof.topic.create(2)
        for kind, type in SUBSCRIPTIONS.items():
            proof.topic.admin.put(f"{proof.topic.path}/subscriptions/of-{kind}?type={type}").raise_for_status()
        for kind, names in proof.names.items():
            for name in names:
                proof.start(kind, name)
        yield proof
    finally:
        proof.close()


def prove(proof: Proof, seconds: float, parties: list[str], pause: float = 1.0) -> Verdict:
    """Change and disturb for a time, let everything be read, and judge."""
    over = threading.Event()

    def change() -> None:
        while not over.wait(pause):
            proof.change()

    changing = threading.Thread(target=change)
    changing.start()
    try:
        for party in parties:
            time.sleep(seconds / len(parties))
            proof.attempt(party, partial(proof.disturb, party))
            proof.follow()
    finally:
        over.set()
        changing.join()
    proof.attempt("flush", partial(proof.end, "producer"))
    proof.produced_seconds = time.monotonic() - proof.began
    began = time.monotonic()
    while (verdict := proof.verdict()).is_unread:
        if time.monotonic() > began + (FAULTY_READ_SECONDS if verdict.faults else READ_SECONDS):
            break
        time.sleep(1)
    print(f"read what was left: {time.monotonic() - began:.1f} s", file=sys.stderr)
    return verdict


@click.command()
@click.option("--minutes", default=2.0, help="Time of load and disturbances.")
@click.option("--rate", default=3_000, help="Messages a second in all.")
@click.option("--consumers", default=5, help="Of each kind.")
@click.option("--seed", default=35)
@click.option("--three-brokers", is_flag=True, help="With three replicas, behind links that are cut.")
@click.option("--pause", default=1.0, help="Seconds between two splits or merges.")
@click.option("--folder", type=click.Path(path_type=Path), help="A new one for all records; kept.")
def main(
    minutes: float, rate: int, consumers: int, seed: int, three_brokers: bool, pause: float, folder: Path | None
) -> None:
    """Run, print what came out, and fail unless nothing was lost."""
    jars = ensure_jars(load_settings(environment={}), print).kafka
    chance = random.Random(seed)
    parties: list[str] = []
    while len(parties) < minutes * 60 / 12:
        everybody = ["producer", *KINDS, "controller", "broker", "stall", *(["cut"] if three_brokers else [])]
        parties += chance.sample(everybody, len(everybody))
    with ExitStack() as stack:
        if folder:
            folder.mkdir()
        home = folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(brokers(home, jars, three_brokers, seed))
        proof = stack.enter_context(running(home, broker, rate, consumers, seed))
        verdict = prove(proof, minutes * 60, parties, pause)
        print(f"{verdict.produced / proof.produced_seconds:.0f} messages a second over {proof.produced_seconds:.0f} s")
        print(", ".join(f"{name} {count}" for name, count in sorted(proof.done.items())))
        print(verdict)
    sys.exit(not verdict.is_right)


if __name__ == "__main__":
    main()
