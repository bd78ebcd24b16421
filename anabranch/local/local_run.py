"""Local run: broker, controller, job, executor and traffic as supervised processes.

Stage: `anabranch run --local`. Chooses the ports, writes them into a settings file for all parts, starts the parts in
the order of their dependencies, and stops them in reverse order.
"""

import contextlib
import logging
import os
import re
import shutil
import ssl
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from deltalake.exceptions import DeltaError

from anabranch.admin.answers import Response
from anabranch.admin.transport import Transport
from anabranch.local.archive import ensure_archive
from anabranch.local.broker import EmbeddedBroker, check_port_is_free, create_topics, free_ports, is_serving
from anabranch.local.offsets import unread_messages
from anabranch.local.processes import PartSpec, PartState
from anabranch.local.pulsar.standalone import StandalonePulsar
from anabranch.local.pulsar.traffic import make_topic, traffic_command
from anabranch.local.report import build_report
from anabranch.local.run_file import RUN_FILE, write_run_file
from anabranch.local.setup import check_client_package, ensure_jars, ensure_pulsar
from anabranch.local.supervisor import Supervisor
from lake.tables import create_lake, read_columns
from runtime.java_home import SetupError
from schemas.kafka.connection import KafkaConnection
from schemas.kafka.topics import BUNDLE_TOPICS, KAFKA_TOPICS
from schemas.settings.root import Settings, load_settings, without_secrets
from schemas.tables.rows import BATCHES

log = logging.getLogger(__name__)

READY_SECONDS = 90
FIRST_BATCH_SECONDS = 300
FLAPPING = 5
"""After this many deaths in a row a part counts as not running, even if it is up at the moment."""
RESTART_DELAY_SECONDS = 0.5
"""Delay before a part that died restarts; doubled at each successive death."""
RESTART_MAX_DELAY_SECONDS = 30.0
BROKER_HEAP = "256m"
CLIENTS_STOP_SECONDS = 90.0
"""Time for real consumers to read what was produced."""
PULSAR_BROKER_HEAP = "192m"
"""Heap of Kafka beside Pulsar."""
_COMMANDS = {"job": ("serve", "stream"), "page": ("serve", "web"), "traffic": ("local", "traffic")}
"""Commands of the parts whose names are not those of `anabranch serve`."""
_OTHER_SPARK = re.compile(r"(SPARK|PYSPARK)_\w+|HADOOP_(HOME|CONF_DIR)")
"""Variables of a shell that is set up for another Spark than the one in this virtual environment."""
_OTHER_METADATA = frozenset(
    {
        "ANABRANCH_CONTROLLER_METADATA",
        "ANABRANCH_CONTROLLER_METADATA_AUTH",
        "ANABRANCH_CONTROLLER_NODE_URL",
        "ANABRANCH_BOOKIES_METADATA",
        "ANABRANCH_BOOKIES_METADATA_AUTH",
    }
)
"""The same of another cluster's metadata store."""


@dataclass
class LocalRun:
    """One local run; use `start`, then `watch`, then `finish`, on one thread."""

    settings: Settings
    files: Sequence[Path]
    """Settings files that were laid over the first."""
    without: Sequence[str] = ()
    """Parts that are not started."""
    log_level: str = "info"
    log_format: str | None = None
    """Of the parts' logs, `text` or `json`; None: as their settings say."""
    say: Callable[[str], None] = lambda _: None
    stop: threading.Event = field(default_factory=threading.Event)
    """When set, the run ends cleanly."""
    at_once: threading.Event = field(default_factory=threading.Event)
    """When also set, it does not wait for anything."""
    pulsar: bool = False
    """With a real Pulsar, the collector and load by Pulsar's client, instead of our controller and made-up traffic."""
    shadow: bool = False
    """Pulsar's own scaler acts, and the executor only looks."""

    def __post_init__(self) -> None:
        self.folder = self.settings.path(self.settings.local.folder)
        self.started_at = datetime.now(timezone.utc)
        self.unhealthy_at_end: list[PartState] = []
        """Parts that were not running when the run was told to end."""
        self._is_up = False
        self._supervisor: Supervisor | None = None

    def states(self) -> list[PartState]:
        """The parts as they are; empty before `start`."""
        return self._supervisor.states() if self._supervisor else []

    def start(self) -> None:
        """Start everything. Raises `SetupError` with the part that does not start, and the remedy."""
        local, controller = self.settings.local, self.settings.controller
        self._check_disk()
        self._check_state()
        clients = not self.pulsar and self.settings.traffic.load == "clients"
        if clients:
            check_client_package()
        jars = ensure_jars(self.settings, self.say)
        pulsar_jars = ensure_pulsar(self.settings, self.say) if self.pulsar else None
        for name in ("kafka", *(["spark"] if "job" not in self.without else [])):
            ensure_archive(self.settings, name, self.say)
        self._supervisor = supervisor = Supervisor(self.folder, RESTART_DELAY_SECONDS, RESTART_MAX_DELAY_SECONDS)
        broker = EmbeddedBroker(
            self.folder / "kafka", jars.kafka, PULSAR_BROKER_HEAP if self.pulsar else BROKER_HEAP, local.broker_port
        )
        if controller.port:
            check_port_is_free(controller.port, "the controller")
        port = controller.port or free_ports(1)[0]
        url = f"http://127.0.0.1:{port}"
        pulsar = None
        if pulsar_jars is not None:
            scaler = {"scalableTopicAutoScaleEnabled": self.shadow}
            pulsar = StandalonePulsar(self.folder / "pulsar", pulsar_jars, web_port=port, settings=scaler)
        page_port = port_of_page(self.settings.web.port, self.say)
        url_of_page = f"http://127.0.0.1:{page_port}"
        run_file = write_run_file(
            self.settings, broker.bootstrap, port, page_port, pulsar=self.pulsar, shadow=self.shadow
        )
        self.settings = load_settings([*self.files, run_file], self.settings.home, {})
        environment = part_environment(os.environ, broker.bootstrap, url)
        quiet = without_secrets(environment)

        def part(
            name: str, rank: int, is_ready: Callable[[], bool] = lambda: True, stop_seconds: float = 15, *more: str
        ) -> PartSpec:
            # The job calls nobody that asks for a token.
            variables = quiet if name == "job" else environment
            return PartSpec(name, self._part_command(name, run_file, *more), rank, is_ready, variables, stop_seconds)

        # What happens before the job looks cannot be compared with another run, or with another scaler.
        waits = self.shadow or self.settings.traffic.from_start
        job = part("job", 2, self._has_batches if waits else lambda: True, 60)
        if pulsar is None:
            server = part("controller", 1, lambda: _answers(url))
            collector = [part("collector", 2, lambda: True, 15, "kafka")] if clients else []
            stop_seconds = CLIENTS_STOP_SECONDS if clients else 15
            clients_and_alerts = [part("traffic", 3, lambda: True, stop_seconds)]
            if self.settings.traffic.demand == "story":
                clients_and_alerts.append(part("alerts", 3))
        else:
            server = PartSpec("pulsar", pulsar.prepare, 1, pulsar.serves, quiet, stop_seconds=30)
            collector = [part("collector", 2, lambda: True, 15, "pulsar")]
            load = traffic_command(pulsar, self.folder)
            clients_and_alerts = [PartSpec("traffic", lambda: load, 3, environment=quiet, stop_seconds=90)]
        page = PartSpec(
            "page",
            self._part_command("page", run_file),
            3,
            lambda: _answers(url_of_page),
            environment,
            address=url_of_page,
        )
        kafka = PartSpec(
            "kafka",
            broker.prepare,
            0,
            lambda: is_serving(broker.connection),
            without_secrets(os.environ),
            stop_seconds=20,
        )
        launched: list[PartSpec] = []

        def launch(*specs: PartSpec) -> None:
            for spec in specs:
                if spec.name not in self.without and not self.stop.is_set():
                    self.say(f"starting {spec.name} …")
                    supervisor.launch(spec)
                    launched.append(spec)

        def wait(*specs: PartSpec) -> None:
            for spec in specs:
                if spec in launched:
                    seconds = FIRST_BATCH_SECONDS if spec is job else READY_SECONDS
                    supervisor.wait_for(spec.name, seconds, self.stop)

        # The page comes first, as people wait for it. Servers start beside one another; the others need Kafka's topics.
        self._make_tables()
        launch(page, kafka, server)
        wait(page)
        if page in launched and not self.stop.is_set():
            self.say(f"to look at: {url_of_page}")
        wait(kafka)
        if self.stop.is_set():
            return
        self._make_topics(broker.connection)
        launch(job)
        wait(*([job] if waits else []), server)
        if pulsar is not None and not self.stop.is_set():
            make_topic(url)
        launch(part("executor", 2), *collector, *clients_and_alerts)
        wait(*launched)
        self._is_up = not self.stop.is_set()

    def watch(self) -> None:
        """Keep the parts running until `stop` is set."""
        if self._supervisor:
            self._supervisor.run(self.stop)

    def finish(self, report: bool = False) -> dict[str, Any] | None:
        """Stop everything and return the report if asked for. Nothing is left running, even after an error."""
        if (supervisor := self._supervisor) is None:
            return None
        lived = supervisor.states()
        self.unhealthy_at_end = [state for state in lived if not _is_healthy(state)]
        built = None
        try:
            supervisor.stop(("traffic",), self.at_once)
            if report and self._is_up and not self.at_once.is_set():
                supervisor.stop(("collector",), self.at_once)
                self._drain(supervisor)
                executor_stopped_at = datetime.now(timezone.utc)
                supervisor.stop(("executor",), self.at_once)
                # It repeats now and then what it knows, which the job would not come to read.
                supervisor.stop(("controller",), self.at_once)
                self._drain(supervisor)
                supervisor.stop(("job",), self.at_once)
                built = build_report(
                    self.settings,
                    lived,
                    self.started_at,
                    datetime.now(timezone.utc),
                    supervisor.events,
                    executor_stopped_at,
                )
        finally:
            supervisor.stop(None, self.at_once)
        return built

    def _drain(self, supervisor: Supervisor, seconds: float = 60.0) -> None:
        """Let the job read what is in Kafka, so that the report's counts can be compared with Kafka's."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.at_once.is_set():
            supervisor.look()
            if not any(state.name == "job" and state.state != "stopped" for state in supervisor.states()):
                return
            if unread_messages(self.settings) == 0:
                return
            time.sleep(0.2)

    def _has_batches(self) -> bool:
        """Return True if this run's job has written a batch."""
        batches = read_columns(self.settings.lake_path, BATCHES, ("committed_at",))["committed_at"].to_pylist()
        return max(batches, default=self.started_at) > self.started_at

    def _part_command(self, name: str, run_file: Path, *more: str) -> Callable[[], Sequence[str]]:
        options = [argument for file in (*self.files, run_file) for argument in ("--config", str(file))]
        command = [
            sys.executable,
            "-m",
            "anabranch",
            "--home",
            str(self.settings.home),
            *options,
            "--log-level",
            self.log_level,
            *(("--log-format", self.log_format) if self.log_format else ()),
            *_COMMANDS.get(name, ("serve", name)),
            *more,
        ]
        return lambda: command

    def _make_topics(self, kafka: KafkaConnection) -> None:
        try:
            create_topics(kafka, (*KAFKA_TOPICS, *(BUNDLE_TOPICS if self.settings.bundles.enabled else ())))
        except KafkaException as error:
            raise SetupError(
                f"the topics cannot be made ({error}); see {self.folder}/log/kafka.log, `anabranch local reset`"
                " (make reset) starts afresh"
            ) from error

    def _make_tables(self) -> None:
        try:
            create_lake(self.settings.lake_path)
        except (OSError, DeltaError) as error:
            cause = str(error).partition("\n")[0]
            raise SetupError(
                f"the tables in {self.settings.lake_path} cannot be made or read ({cause}): set [lake] path to another "
                "folder, or `anabranch local reset` (make reset) forgets them"
            ) from error

    def _check_state(self) -> None:
        checkpoint = self.settings.path(self.settings.stream.checkpoint)
        if (checkpoint / "offsets").is_dir() and not (self.folder / "kafka" / "data").is_dir():
            raise SetupError(
                f"{checkpoint} belongs to broker data that is gone from {self.folder}: `anabranch local reset`"
                " (make reset) forgets both"
            )

        file = self.folder / RUN_FILE
        former = load_settings([file], self.settings.home, {}).traffic.load if file.is_file() else None
        if not self.pulsar and former not in (None, self.settings.traffic.load):
            raise SetupError(
                f"{self.folder} has the state of a run with --demand {former}, its segments are of another kind: "
                f"`anabranch -c {file} local reset` forgets it"
            )

    def _check_disk(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.folder).free // 1_000_000
        if free < self.settings.local.free_disk_mb:
            raise SetupError(
                f"{free} MB free in {self.folder}, the local run wants {self.settings.local.free_disk_mb}: make room, "
                "`anabranch local reset` (make reset) forgets earlier runs, or lower [local] free_disk_mb"
            )


def part_environment(shell: Mapping[str, str], bootstrap: str, url: str) -> dict[str, str]:
    """Return a part's environment: the shell's, without settings of another cluster or Spark."""
    inherited = {
        name: value
        for name, value in shell.items()
        if not _OTHER_SPARK.fullmatch(name) and not name.startswith("ANABRANCH_KAFKA_") and name not in _OTHER_METADATA
    }
    return {**inherited, "ANABRANCH_KAFKA_BOOTSTRAP": bootstrap, "ANABRANCH_CONTROLLER_URL": url}


def port_of_page(wanted: int, say: Callable[[str], None]) -> int:
    """Return the configured port, or a free one, saying why, if it is taken: several local runs may be at work."""
    if wanted:
        try:
            check_port_is_free(wanted, "the page")
        except SetupError as error:
            say(f"{str(error).partition(':')[0]}: it gets a free one")
        else:
            return wanted
    return free_ports(1)[0]


def _is_healthy(state: PartState) -> bool:
    """Return True if a part runs or was just started, False after many attempts."""
    if state.state == "starting":
        in_time = (datetime.now(timezone.utc) - state.since).total_seconds() < READY_SECONDS
    else:
        in_time = state.state == "up"
    return in_time and state.deaths_in_a_row < FLAPPING


def _answers(url: str) -> bool:
    # Plain HTTP: reading the system's certificates takes longer than the rest, at every look at every starting part.
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    transport = Transport(url, None, user_agent="anabranch-run", timeout_seconds=1, tls=tls)
    with contextlib.closing(transport) as server:
        answer = server.exchange("GET", "/healthz")
        return isinstance(answer, Response) and answer.status == 200
