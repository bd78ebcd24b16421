"""`conf/anabranch.toml` as typed settings: unknown keys are errors, and later files win.

Every default that a person may change is in `conf/anabranch.toml`; the models here define type, unit and bounds.
Relative paths belong to a home. An installed package contains `conf/`; a file of `conf/` in the home wins over it
(`find_settings`). Environment variables win over files (`schemas.settings.environment`); secrets come from there only
(`_SECRETS`). Longer than other files: each section is a model, and all are checked at once.
"""

import os
import ssl
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import ErrorDetails

from schemas.kafka.connection import PASSWORD_VARIABLE, KafkaConnection
from schemas.metadata import Profile
from schemas.settings.bookies import BookieSettings
from schemas.settings.controller import ControllerSettings
from schemas.settings.environment import environment_keys, read_environment, type_parts, variable_of
from schemas.settings.former import FORMER, RENAMED, remove_former
from schemas.settings.kafka import KafkaSettings
from schemas.settings.processes import AlertSettings, CollectSettings, ExecutorSettings, MetricsSettings, WebSettings
from schemas.settings.retention import RetentionSettings
from schemas.settings.section import Port, Seconds, Section
from schemas.settings.section import SettingsError as SettingsError
from schemas.settings.trusted_home import check_trusted
from schemas.tls import TlsError, TlsFiles, client_context, listener_context

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HOME_VARIABLE = "ANABRANCH_HOME"
Source = tuple[str, Mapping[str, Any]]
"""A file or an environment variable, and the settings that it gives, by section."""
_NO_SECTIONS = ("home", "former_keys")
"""Fields of `Settings` that no file gives."""
OWN_FILE = "anabranch.toml"
"""Settings file in the home, read as if given by `--config`."""
PROJECT = Path(__file__).resolve().parents[2]
"""Folder with the packaged `conf/`: the project in a checkout, otherwise the packages' location."""


Heap = Annotated[str, Field(pattern=r"^[1-9][0-9]*[mg]$")]


class LakeSettings(Section):
    """The Delta tables."""

    path: str
    """Folder, or URL of an object store, of the Delta tables; the same for all processes of a cluster."""
    compact_minutes: Annotated[float, Field(ge=0, le=1440)]
    """Minutes between compactions by job and executor; 0: small files are left to `anabranch lake optimize`."""


class PolicySettings(Section):
    """The cluster's policy (PIP-483 "Policy resolution"), the same for the job and the controller.

    The job decides by it, the controller refuses overrides that contradict it.
    """

    profile: Profile
    """Defaults of policies: `default` adds guards to the PIP, `pip-483` has none, `pulsar-5.0` decides as Pulsar."""
    cluster: str
    """TOML file with the cluster's policy, which overrides the profile; the same for job and controller."""


class StreamSettings(Section):
    """The Spark job, `anabranch serve stream`."""

    checkpoint: str
    """Folder or URL of the job's state and Kafka offsets; on a Spark cluster every node must reach it."""
    buckets: Annotated[int, Field(ge=1, le=65_536)]
    """Number of parts of the state, 8 to 64 per state partition (docs/operations.md); fixed for a checkpoint."""
    tick_seconds: Seconds
    """Seconds between two evaluations of every topic (PIP-483: 60); fewer react sooner and cost more CPU."""
    change_threshold: Annotated[float, Field(gt=0, le=10)]
    """Relative change of a rate, as a fraction, from which it is recorded (PIP-483: 0.25); higher stores less."""
    max_stats_per_batch: Annotated[int, Field(ge=1)]
    """Most segment-stats messages in one micro-batch; lower it if workers run out of memory."""
    batch_seconds: Seconds
    """Target seconds per micro-batch while there is a backlog; more catches up faster but delays events."""
    max_events_per_batch: Annotated[int, Field(ge=1)]
    """Most consumer and control events in one micro-batch; lower it if workers run out of memory."""
    spark_conf: str
    """File of Spark settings (memory, cores, state partitions) in spark-defaults format."""
    metrics_port: Port
    """Port of the job's metrics and probes, at [metrics] host; 0: none."""


class BundleSettings(Section):
    """Pulsar's brokers and bundles (docs/bundles.md)."""

    enabled: bool
    """Decide on Pulsar's bundles too (docs/bundles.md); once true, it stays true for the checkpoint's lifetime."""
    load_reports: Literal["rest", "published"]
    """Load for `serve collector bundles`: `rest` asks brokers, `published` reads their reports and load-data topics."""


class LogSettings(Section):
    """Log lines of all processes, on stderr; of the JVM too."""

    format: Literal["text", "json"]
    """Format of log lines: `text` for people, `json` (one object per line) for log systems."""


class LocalSettings(Section):
    """The local run, `anabranch run --local`: everything on one machine, in separate processes."""

    folder: str
    """Folder of a local run's data and logs, and of temporary files of every process on this machine."""
    jars: str
    """Folder of the jars that `anabranch local setup` fetches."""
    broker_port: Port
    """Port of the local run's Kafka broker; 0: a free one."""
    free_disk_mb: Annotated[int, Field(ge=0)]
    """Free disk space, MB, below which a local run does not start."""


class TrafficSettings(Section):
    """The generator: demand over the key space, which determines each segment's rates in any layout."""

    seed: int
    """Seed of the demand: the same seed gives the same demand."""
    topics: Annotated[int, Field(ge=0, le=100_000)]
    """Scalable topics to create and load."""
    namespace: str
    """`tenant/namespace` of the generated topics."""
    demand: Literal["waves", "story"]
    """`waves`: days, nights and bursts by the seed; `story`: the demonstration's five minutes, over and over."""
    load: Literal["generated", "clients"]
    """`generated`: samples as brokers would report them; `clients`: real producers and consumers, segments in Kafka."""
    report_seconds: Seconds
    """Seconds between two samples of every segment (PIP-483: 10)."""
    peak_msg_rate_in: Annotated[float, Field(gt=0)]
    """Messages in per second of the busiest topic at its peak, without bursts."""
    wave_seconds: Seconds
    """Seconds of one daily wave: 86400 as in production, fewer to see splits and merges soon."""
    burst_seconds: Seconds
    """Seconds of the intervals of which six in ten have one burst of a topic."""
    max_consumers: Annotated[int, Field(ge=0, le=1000)]
    """Most consumers of one subscription."""
    consumer_seconds: Seconds
    """Mean seconds between two changes of a topic's consumers."""
    from_start: bool
    """true: demand begins at the first start, the same in each fresh run; false: it follows the clock."""

    @property
    def counts_from_start(self) -> bool:
        """Tell if the demand counts its time from the generator's first start; a story always does."""
        return self.from_start or self.demand == "story"


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
    defaults, own = PROJECT / "conf" / "anabranch.toml", home / "conf" / "anabranch.toml"
    read = [
        defaults,
        *([own] if own.exists() and own != defaults else []),
        *(find_settings(file, home) for file in files),
    ]
    sources = [*((str(path), _read_file(path)) for path in read), *_read_variables(environment)]
    merged: dict[str, Any] = {}
    for _, values in sources:
        _lay_over(merged, deepcopy(values))
    former_keys = {
        *(f"{key} in {_find_source(key.split('.'), sources)}" for key in remove_former(merged)),
        *(name for name in _FORMER_VARIABLES if environment.get(name)),
    }
    for renamed, (section, key) in RENAMED.items():
        if renamed[1] in merged.get(renamed[0], {}):
            raise SettingsError(
                f"wrong settings in {_find_source(renamed, sources)}: [{renamed[0]}] {renamed[1]} is [{section}] {key} "
                "now: move it there"
            )
    try:
        return Settings.model_validate({**merged, "home": home, "former_keys": tuple(sorted(former_keys))})
    except ValidationError as error:
        problems: dict[str, list[str]] = {}
        for item in error.errors(include_url=False, include_input=False):
            problems.setdefault(_find_source(item["loc"], sources), []).append(_describe_problem(item))
        listed = "; in ".join(f"{source}: {'; '.join(texts)}" for source, texts in problems.items())
        raise SettingsError(f"wrong settings in {listed}") from error


def _read_file(path: Path) -> dict[str, Any]:
    """Return the sections of a file. Raises `SettingsError`, also for a secret or a key outside sections."""
    try:
        values: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read settings {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is no TOML: {error}") from error
    for name, value in values.items():
        if name in _NO_SECTIONS:
            hint = f", and give --home or {HOME_VARIABLE}" if name == "home" else ""
            raise SettingsError(f"wrong settings in {path}: {name} is no setting: remove it{hint}")
        if not isinstance(value, dict) and name in Settings.model_fields:
            raise SettingsError(f"wrong settings in {path}: {name} is a section: write its keys below [{name}]")
        if not isinstance(value, dict):
            hint = _nearest_key((name,)) or ": write it below its [section]"
            raise SettingsError(f"wrong settings in {path}: {name} is outside of all sections{hint}")
    for variable, section, key in _SECRETS:
        if key in values.get(section, {}):
            raise SettingsError(
                f"wrong settings in {path}: [{section}] {key} is a secret: set {variable} instead, and remove it here"
            )
    return values


def _read_variables(environment: Mapping[str, str]) -> Iterator[Source]:
    """Yield what each variable sets. Raises `SettingsError`, also for the variable of a renamed key."""
    for renamed, present in RENAMED.items():
        if environment.get(variable_of(renamed)):
            raise SettingsError(
                f"the environment variable {variable_of(renamed)} is {variable_of(present)} now: set that"
            )
    named = {variable: (section, key) for variable, section, key in (*_ENDPOINTS, *_SECRETS)}
    yield from (
        (variable, _nest(path, environment[variable])) for variable, path in named.items() if environment.get(variable)
    )
    for path, value in read_environment(environment, Settings, named.keys() | _FORMER_VARIABLES).items():
        yield variable_of(path), _nest(path, value)


def _nest(path: Sequence[str], value: Any) -> dict[str, Any]:
    for name in reversed(path):
        value = {name: value}
    return dict(value)


def _find_source(path: Sequence[str | int], sources: Sequence[Source]) -> str:
    """Return the file or variable that a key's value comes from; for a section, all but the defaults."""
    names = list(takewhile(lambda name: isinstance(name, str), path))
    for length in range(len(names), 0, -1):
        values = [(source, _value_at(tree, names[:length])) for source, tree in sources]
        setters = [(source, value) for source, value in values if value is not None]
        if setters and isinstance(setters[-1][1], dict):
            return ", ".join(source for source, _ in setters[1:] or setters)
        if setters:
            return setters[-1][0]
    return sources[0][0]


def _value_at(tree: Any, path: Sequence[str | int]) -> Any:
    for name in path:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


_EXPECTED = {
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("float_parsing", "float_type", "finite_number"), "must be a number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "must be true or false"),
    **dict.fromkeys(("tuple_type", "list_type"), 'must be a list, such as ["a", "b"]'),
    **dict.fromkeys(("model_type", "dict_type"), "must be a section with keys of its own"),
    **dict.fromkeys(("time_parsing", "time_type"), 'must be a time of day, such as "22:00"'),
    "string_type": 'must be text, in quotation marks: "…"',
    "string_pattern_mismatch": "has the wrong form",
    "literal_error": "must be {expected}",
    "greater_than": "must be more than {gt:.10g}",
    "greater_than_equal": "must be at least {ge:.10g}",
    "less_than_equal": "must be at most {le:.10g}",
    "missing": "is missing",
    "too_short": "must have at least {min_length} element",
    "string_too_short": "must have at least {min_length} character",
    "string_too_long": "must have at most {max_length} characters",
}
"""Pydantic's types of errors in plain words."""


def _describe_problem(item: ErrorDetails) -> str:
    """Return a key and what is wrong with it, with the key's description or the key that may be meant."""
    kind, key = item["type"], ".".join(map(str, item["loc"]))
    if kind == "extra_forbidden":
        return f"{key}: unknown key{_nearest_key(item['loc']) or ' (anabranch config schema describes all)'}"
    if kind not in _EXPECTED:
        return f"{key}: {item['msg'].removeprefix('Value error, ')}"
    description = _description_of(item["loc"]).removesuffix(".")
    return f"{key}: {_EXPECTED[kind].format(**item.get('ctx', {}))}" + (f" ({description})" if description else "")


def _description_of(path: Sequence[str | int]) -> str:
    """Return the description of the last name of a path that is a key."""
    model: type[BaseModel] | None = Settings
    description = ""
    for name in path:
        field = model.model_fields.get(str(name)) if model is not None else None
        if field is not None:
            description = field.description or ""
            parts = type_parts(field.annotation)
            model = next((part for part in parts if isinstance(part, type) and issubclass(part, BaseModel)), None)
    return description


def _nearest_key(path: Sequence[str | int]) -> str:
    """Return which key or section may be meant by one that is unknown, preferably one of the same name."""
    key = ".".join(map(str, path))
    keys = [keys for keys, _ in environment_keys(Settings)]
    known = {".".join(names[:length]) for names in keys for length in range(1, len(names) + 1)}
    same = [other for other in known if other.rpartition(".")[2] == str(path[-1])]
    nearest = get_close_matches(key, same, 1, 0) or get_close_matches(key, known, 1, 0.7)
    # A key of a list's element is not meant for the list.
    return f" (did you mean {nearest[0]}?)" if nearest and not key.startswith(f"{nearest[0]}.") else ""


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
_FORMER_VARIABLES = {variable_of(tuple(key.split("."))) for key in FORMER}
SECRET_VARIABLES = frozenset(variable for variable, _, _ in _SECRETS)


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a child process without secrets, which others could read there."""
    return {name: value for name, value in environment.items() if name not in SECRET_VARIABLES}


def _lay_over(base: dict[str, Any], over: Mapping[str, Any]) -> None:
    for key, value in over.items():
        if isinstance(value, Mapping) and isinstance(base.get(key), dict):
            _lay_over(base[key], value)
        else:
            base[key] = dict(value) if isinstance(value, Mapping) else value
