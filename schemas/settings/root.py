"""`conf/anabranch.toml` as typed settings: unknown keys are errors, and later files win.

Every default that a person may change is in `conf/anabranch.toml`; the models here define type, unit and bounds.
Relative paths belong to a home. An installed package contains `conf/`; a file of `conf/` in the home wins over it
(`find_settings`). Environment variables win over files (`schemas.settings.environment`); secrets come from there only
(`_SECRETS`). Longer than other files: each section is a model, and all are checked at once.
"""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import ErrorDetails

from schemas.kafka.connection import PASSWORD_VARIABLE, KafkaConnection
from schemas.metadata import Profile
from schemas.settings.bookies import BookieSettings
from schemas.settings.brakes import BrakeSettings
from schemas.settings.collect import CollectSettings
from schemas.settings.controller import ControllerSettings
from schemas.settings.environment import environment_keys, read_environment, variable_of
from schemas.settings.former import FORMER, RENAMED, remove_former
from schemas.settings.kafka import KafkaSettings
from schemas.settings.metrics import MetricsSettings
from schemas.settings.retention import RetentionSettings
from schemas.settings.section import Port, Seconds, Section
from schemas.settings.section import SettingsError as SettingsError
from schemas.settings.trusted_home import check_trusted
from schemas.settings.web import WebSettings
from schemas.tls import TlsError, TlsFiles, client_context, listener_context

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HOME_VARIABLE = "ANABRANCH_HOME"
OWN_FILE = "anabranch.toml"
"""Settings file in the home, read as if given by `--config`."""
PROJECT = Path(__file__).resolve().parents[2]
"""Folder with the packaged `conf/`: the project in a checkout, otherwise the packages' location."""


Heap = Annotated[str, Field(pattern=r"^[1-9][0-9]*[mg]$")]


class LakeSettings(Section):
    path: str
    """Folder (or object-store URL) with one Delta table per folder."""
    compact_minutes: Annotated[float, Field(ge=0, le=1440)]
    """Minutes between two compaction passes of job and executor over days with many small files.

    0: left to `anabranch lake optimize`.
    """


class PolicySettings(Section):
    """The cluster's policy (PIP-483 "Policy resolution"), the same for the job and the controller.

    The job decides by it, the controller refuses overrides that contradict it.
    """

    profile: Profile
    """Defaults under every policy: `pip-483`, or `default`, which adds the guards."""
    cluster: str
    """TOML file with the cluster's policy, which overrides the profile's defaults."""


class StreamSettings(Section):
    checkpoint: str
    """Folder of the query's checkpoint."""
    buckets: Annotated[int, Field(ge=1, le=65_536)]
    """Hash buckets of topics, the keys of the state; fixed for the lifetime of a checkpoint."""
    tick_seconds: Seconds
    """Time between two evaluations of every topic, seconds (PIP-483: 60)."""
    change_threshold: Annotated[float, Field(gt=0, le=10)]
    """Smallest significant relative change of a rate, as a fraction (PIP-483: 0.25)."""
    max_stats_per_batch: Annotated[int, Field(ge=1)]
    """Maximum of segment-stats messages per micro-batch; usually fewer, limited by the batches' duration."""
    batch_seconds: Seconds
    """Intended duration of a micro-batch, seconds: an event that arrives during it waits for its end."""
    max_events_per_batch: Annotated[int, Field(ge=1)]
    """Maximum of consumer and control events per micro-batch."""
    spark_conf: str
    """File of Spark settings, in spark-defaults format."""
    metrics_port: Port
    """Port of the job's metrics and probes, at [metrics] host; 0 = none."""


class BundleSettings(Section):
    """Pulsar's bundles (docs/bundles.md)."""

    enabled: bool
    """Run the family `bundles` in the job.

    It reads two more Kafka topics, and cannot be disabled again on the same checkpoint.
    """
    load_reports: Literal["rest", "published"]
    """Source of load for `anabranch serve collector bundles`: `rest` calls brokers, `published` reads reports.

    Brokers publish reports in the metadata store at `[bookies] metadata` (modular load manager), or in the load-data
    topics, read through the brokers' WebSocket service (extensible load manager with TransferShedder).
    """


class LogSettings(Section):
    format: Literal["text", "json"]
    """`text` for people, or `json`: one object per line (anabranch/cli/logs.py). Lines of the JVM follow."""


STUCK_MARGIN_SECONDS = 600.0
"""Allowance for an executor that starts, and for clocks that differ."""


class ExecutorSettings(Section):
    mode: Literal["act", "approve", "observe"]
    """`act` applies decisions, `approve` only those approved by a person, `observe` only reports."""
    poll_ms: Annotated[int, Field(ge=10, le=60_000)]
    """Interval for polling the decisions table, milliseconds."""
    workers: Annotated[int, Field(ge=1, le=256)]
    """Topics handled concurrently."""
    request_timeout_seconds: Seconds
    """Timeout of a call to the controller, seconds."""
    give_up_seconds: Seconds
    """Time after which a decision that cannot be applied ends as `failed`, seconds, excluding time paused."""
    decision_max_age_seconds: Seconds
    """Age above which a decision is not begun in mode `act`, seconds.

    It ends as `superseded`, and the job decides again.
    """
    waiting_max_age_seconds: Seconds
    """Age above which a decision that is held back is not begun, seconds.

    Also applies to all decisions in mode `approve`, where people need time.
    """
    metrics_port: Port
    """Port of the executor's metrics and probes, at [metrics] host; 0 = none."""
    brakes: BrakeSettings
    shards: Annotated[int, Field(ge=1, le=64)]
    """Parts of the topics, each with one active executor; the same for all executors of a lake."""
    lease_seconds: Seconds
    """Silence after which other executors take over the shards of one, seconds."""

    @model_validator(mode="after")
    def _a_call_fits_into_the_lease(self) -> ExecutorSettings:
        # A call is begun only if its timeout ends within the lease, and a heartbeat is sent every sixth of the
        # lease.
        if self.lease_seconds < 2 * self.request_timeout_seconds:
            raise ValueError(
                f"lease_seconds ({self.lease_seconds:g}) is less than twice request_timeout_seconds "
                f"({self.request_timeout_seconds:g}): an executor would hardly ever be allowed to call; raise the "
                "former or lower the latter"
            )
        return self

    @model_validator(mode="after")
    def _a_decision_may_wait(self) -> ExecutorSettings:
        if self.waiting_max_age_seconds < self.decision_max_age_seconds:
            raise ValueError(
                f"waiting_max_age_seconds ({self.waiting_max_age_seconds:g}) is less than decision_max_age_seconds "
                f"({self.decision_max_age_seconds:g}): a decision that waits would expire before one that does not; "
                "raise the former or lower the latter"
            )
        return self

    @property
    def begin_max_age_seconds(self) -> float:
        """Age up to which a decision is begun."""
        return self.waiting_max_age_seconds if self.mode == "approve" else self.decision_max_age_seconds

    @property
    def stuck_seconds(self) -> float:
        """Age from which an open decision is stuck: no executor would apply it any more."""
        return self.waiting_max_age_seconds + self.give_up_seconds + STUCK_MARGIN_SECONDS

    @model_validator(mode="after")
    def _each_shard_has_a_part_of_the_limits(self) -> ExecutorSettings:
        for name in ("actions_per_minute", "actions_per_minute_per_namespace"):
            if 0 < getattr(self.brakes, name) < self.shards:
                raise ValueError(
                    f"brakes.{name} ({getattr(self.brakes, name)}) is less than shards ({self.shards}): each shard has "
                    "a part of it; raise the former or lower the latter"
                )
        return self


class AlertSettings(Section):
    rules: str
    """YAML file with the alert rules and their destinations."""
    ca: str
    """PEM file of the CAs for destinations' certificates; empty: those of the system."""
    metrics_port: Port
    """Port of the metrics and probes of `anabranch serve alerts`, at [metrics] host; 0 = none."""


class LocalSettings(Section):
    """The local run: everything on one machine, in separate processes."""

    folder: str
    """Folder of broker data, pid files and logs."""
    jars: str
    """Folder of the jars, filled once by the set-up."""
    broker_port: Port
    """Port of the embedded Kafka broker; 0 = a free one."""
    free_disk_mb: Annotated[int, Field(ge=0)]
    """Free disk below which the local run refuses to start, MB."""


class TrafficSettings(Section):
    """The generator: demand over the key space, which determines each segment's rates in any layout."""

    seed: int
    topics: Annotated[int, Field(ge=0, le=100_000)]
    """Scalable topics to create and load."""
    namespace: str
    """`tenant/namespace` of those topics."""
    report_seconds: Seconds
    """Time between two samples of every segment, seconds (PIP-483: 10)."""
    peak_msg_rate_in: Annotated[float, Field(gt=0)]
    """Messages in per second of one topic at its peak."""
    wave_seconds: Seconds
    """Period of the daily wave, seconds (86400 in the field, shorter in the demonstration)."""
    burst_seconds: Seconds
    """Mean time between two bursts of a topic, seconds."""
    max_consumers: Annotated[int, Field(ge=0, le=1000)]
    """Maximum of consumers of one subscription."""
    consumer_seconds: Seconds
    """Mean time between two changes of a topic's consumers, seconds."""
    from_start: bool
    """Count time from the generator's first start, so that each run has the same demand.

    Otherwise by the clock.
    """


class Settings(Section):
    """All settings, one section per part."""

    kafka: KafkaSettings
    lake: LakeSettings
    retention: RetentionSettings
    policy: PolicySettings
    stream: StreamSettings
    bundles: BundleSettings
    log: LogSettings
    metrics: MetricsSettings
    executor: ExecutorSettings
    controller: ControllerSettings
    collect: CollectSettings
    alerts: AlertSettings
    web: WebSettings
    bookies: BookieSettings
    local: LocalSettings
    traffic: TrafficSettings
    home: Path
    """Base folder of relative paths; not a key of the file."""
    former_keys: SkipJsonSchema[tuple[str, ...]] = ()
    """Keys and variables given that are no longer read; not a key of the file."""

    @property
    def former_warning(self) -> str | None:
        """One sentence that names the keys given that are no longer read; None: there are none."""
        return f"no longer read, remove from the settings: {', '.join(self.former_keys)}" if self.former_keys else None

    def path(self, value: str) -> Path:
        """Return an absolute local path; a file of `conf/` missing in the home is the packaged one."""
        return _find_file(self.home, Path(value))

    def cluster_policy_text(self) -> str:
        """Return the text of the cluster's policy file; raises `SettingsError` when it is unreadable."""
        file = self.path(self.policy.cluster)
        try:
            return file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"cannot read the cluster's policy {file}, [policy] cluster: {error}") from error

    def kafka_connection(self) -> KafkaConnection:
        """Return the connection to Kafka of every client; raises `SettingsError` for an unusable file."""
        return self.kafka.connection(self.path)

    def listener_context(self) -> ssl.SSLContext | None:
        """Return the TLS context of the controller's listener, or None. Raises `SettingsError`."""
        chosen = self.controller
        if not chosen.certificate:
            return None
        return self._context(listener_context, chosen.certificate, chosen.key, chosen.client_ca)

    def web_context(self) -> ssl.SSLContext | None:
        """Return the TLS context of the operators' page, or None. Raises `SettingsError` for unusable files."""
        chosen = self.web
        if not chosen.certificate:
            return None
        return self._context(listener_context, chosen.certificate, chosen.key, "", section="web")

    def url_context(self) -> ssl.SSLContext:
        """Return the TLS context for clients of the admin interface; raises `SettingsError`."""
        chosen = self.controller
        return self._context(client_context, chosen.url_certificate, chosen.url_key, chosen.url_ca)

    def oauth2_context(self) -> ssl.SSLContext:
        """Return the TLS context for the token provider; raises `SettingsError`."""
        return self._context(client_context, "", "", self.controller.oauth2_ca)

    def alerts_context(self) -> ssl.SSLContext:
        """Return the TLS context for alert destinations; raises `SettingsError`."""
        return self._context(client_context, "", "", self.alerts.ca, section="alerts")

    def metadata_context(self) -> ssl.SSLContext | None:
        """Return the TLS context for ZooKeeper, or None. Raises `SettingsError`."""
        chosen = self.controller
        if not chosen.zookeeper.is_encrypted:
            return None
        return self._context(client_context, chosen.metadata_certificate, chosen.metadata_key, chosen.metadata_ca)

    def bookies_context(self, is_encrypted: bool | None = None) -> ssl.SSLContext | None:
        """Return the TLS context for ZooKeeper of `[bookies] metadata`, or another; None without TLS.

        Raises `SettingsError`.
        """
        chosen = self.bookies
        if not (chosen.zookeeper.is_encrypted if is_encrypted is None else is_encrypted):
            return None
        files = chosen.metadata_certificate, chosen.metadata_key, chosen.metadata_ca
        return self._context(client_context, *files, section="bookies")

    def _context(
        self, make: Callable[[TlsFiles], ssl.SSLContext], *files: str, section: str = "controller"
    ) -> ssl.SSLContext:
        try:
            return make(TlsFiles(*(self.path(file) if file else None for file in files)))
        except TlsError as error:
            raise SettingsError(f"[{section}] TLS: {error}") from error

    @property
    def lake_path(self) -> str:
        """The lake: an absolute folder, or the URL as it stands."""
        return self.lake.path if "://" in self.lake.path else str(self.path(self.lake.path))


def default_home() -> Path:
    """Return the home to use when none is given.

    `ANABRANCH_HOME`, otherwise the nearest parent folder with `conf/anabranch.toml`, otherwise the project's in a
    checkout and the working directory for an installed package. Raises `SettingsError` for one that others could
    have written.
    """
    if HOME_VARIABLE in os.environ:
        return Path(os.environ[HOME_VARIABLE]).resolve()
    for folder in (Path.cwd(), *Path.cwd().parents):
        if (folder / "conf" / "anabranch.toml").is_file():
            break
    else:
        folder = PROJECT if (PROJECT / "pyproject.toml").is_file() else Path.cwd()
    # The project's own code is already running.
    if folder != PROJECT:
        check_trusted(folder, ("conf", "conf/anabranch.toml", OWN_FILE), HOME_VARIABLE)
    return folder


def find_settings(file: Path | str, home: Path) -> Path:
    """Return a settings file's absolute path: in the working directory, the home, or the packaged `conf/`."""
    return Path(file).resolve() if Path(file).is_file() else _find_file(home, Path(file))


def _find_file(home: Path, file: Path) -> Path:
    own, packaged = home / file, PROJECT / file
    is_packaged = not own.exists() and file.parts[:1] == ("conf",) and packaged.exists()
    return (packaged if is_packaged else own).resolve()


def load_settings(
    files: Sequence[Path | str] = (), home: Path | None = None, environment: Mapping[str, str] | None = None
) -> Settings:
    """Load the packaged `conf/anabranch.toml`, the home's, `files` in order, then the environment.

    Later values win, key by key; keys of older releases are left out (`Settings.former_keys`). Raises `SettingsError`
    for a missing file, invalid TOML, an unknown key, or a value out of bounds.
    """
    home = (home or default_home()).resolve()
    environment = os.environ if environment is None else environment
    merged: dict[str, Any] = {}
    defaults, own = PROJECT / "conf" / "anabranch.toml", home / "conf" / "anabranch.toml"
    read = [
        defaults,
        *([own] if own.exists() and own != defaults else []),
        *(find_settings(file, home) for file in files),
    ]
    for path in read:
        try:
            _lay_over(merged, tomllib.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise SettingsError(f"cannot read settings {path}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise SettingsError(f"{path} is no TOML: {error}") from error
    for variable, section, key in _SECRETS:
        if key in merged.get(section, {}):
            raise SettingsError(
                f"wrong settings in {_list_files(read)}: [{section}] {key} is a secret: set {variable} instead"
            )
    for variable, section, key in (*_ENDPOINTS, *_SECRETS):
        if environment.get(variable):
            merged.setdefault(section, {})[key] = environment[variable]
    further = {variable for variable, _, _ in (*_ENDPOINTS, *_SECRETS)}
    former = {variable_of(tuple(key.split("."))): key for key in FORMER}
    chosen = read_environment(environment, Settings, further | former.keys())
    former_keys = {*remove_former(merged), *(name for name in former if environment.get(name))}
    for (*sections, key), value in chosen.items():
        table = merged
        for section in sections:
            table = table.setdefault(section, {})
        table[key] = value
    origins = _list_files(read) + (", " + ", ".join(map(variable_of, chosen)) if chosen else "")
    for (section, key), now in RENAMED.items():
        if key in merged.get(section, {}):
            raise SettingsError(f"wrong settings in {_list_files(read)}: [{section}] {key} is {now} now")
    try:
        return Settings.model_validate({**merged, "home": home, "former_keys": tuple(sorted(former_keys))})
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}{_nearest_key(item)}"
            for item in error.errors(include_url=False, include_input=False)
        )
        raise SettingsError(f"wrong settings in {origins}: {problems}") from error


def _nearest_key(item: ErrorDetails) -> str:
    """Return which key may be meant by one that is not known."""
    if item["type"] != "extra_forbidden":
        return ""
    path = ".".join(str(part) for part in item["loc"])
    dotted_keys = [".".join(keys) for keys, _ in environment_keys(Settings)]
    nearest = get_close_matches(path, [*dotted_keys, *Settings.model_fields], 1, 0.7)
    return f" (did you mean {nearest[0]}?)" if nearest else ""


_ENDPOINTS = (
    ("ANABRANCH_KAFKA_BOOTSTRAP", "kafka", "bootstrap"),
    ("ANABRANCH_KAFKA_USERNAME", "kafka", "username"),
    ("ANABRANCH_CONTROLLER_URL", "controller", "url"),
    ("ANABRANCH_CONTROLLER_METADATA", "controller", "metadata"),
    ("ANABRANCH_CONTROLLER_NODE_URL", "controller", "node_url"),
    ("ANABRANCH_BOOKIES_METADATA", "bookies", "metadata"),
)
_SECRETS = (
    (PASSWORD_VARIABLE, "kafka", "password"),
    ("ANABRANCH_CONTROLLER_TOKEN", "controller", "token"),
    ("ANABRANCH_CONTROLLER_METADATA_AUTH", "controller", "metadata_auth"),
    ("ANABRANCH_BOOKIES_METADATA_AUTH", "bookies", "metadata_auth"),
)
"""Environment variables with the section and key that they set; no settings file may hold secrets."""
SECRET_VARIABLES = frozenset(variable for variable, _, _ in _SECRETS)


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a child process without our secrets.

    Others of the account may read a process' environment.
    """
    return {name: value for name, value in environment.items() if name not in SECRET_VARIABLES}


def _list_files(files: Sequence[Path]) -> str:
    return ", ".join(map(str, files))


def _lay_over(base: dict[str, Any], over: Mapping[str, Any]) -> None:
    for key, value in over.items():
        if isinstance(value, Mapping) and isinstance(base.get(key), dict):
            _lay_over(base[key], value)
        else:
            base[key] = dict(value) if isinstance(value, Mapping) else value
