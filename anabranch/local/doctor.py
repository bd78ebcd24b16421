"""`anabranch doctor`: check that this machine and set-up are fit for a run, with advice if not.

Changes nothing; in an object store it makes a table of its own and deletes it.
"""

import importlib.metadata
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from deltalake.exceptions import DeltaError

from anabranch.admin.answers import Response
from anabranch.admin.transport import Transport
from anabranch.auth.tokens import TokensError, read_tokens
from anabranch.collectors.status import STATUS_FILE, read_status
from anabranch.local.broker import check_port_is_free, is_serving
from anabranch.local.setup import LOCALFS_JAR, localfs_is_current, read_checksums, wrong_jars
from anabranch.local.supervisor import leftovers, lock_owner
from decisions.autoscale.policy import read_cluster_policy
from lake.files import is_remote
from lake.store_check import check_store
from lake.tables import open_table
from runtime.java_home import SetupError, find_java, java_version
from schemas.settings.exposure import PARTS, exposures
from schemas.settings.root import Settings, SettingsError, load_settings
from schemas.tables.rows import TABLES

MIN_MEMORY_MB = 4_000
HEALTH_SECONDS = 10.0
"""Time for a controller to say how it is: more than it takes to find its store silent."""


@dataclass(frozen=True)
class CheckResult:
    """One check: whether it passed, what was found, and what to do if not."""

    check: str
    ok: bool
    found: str
    remedy: str = ""


def examine(home: Path | None, files: list[Path]) -> list[CheckResult]:
    """All checks, in the order in which a new machine would fail them."""
    findings = [_python(), _guard("java", _java), _guard("packages", _packages)]
    try:
        settings = load_settings(files, home)
    except SettingsError as error:
        return [
            *findings,
            CheckResult("settings", False, str(error), "correct the file; conf/anabranch.toml describes every key"),
        ]
    findings.append(CheckResult("settings", True, ", ".join(map(str, [settings.path("conf/anabranch.toml"), *files]))))
    for check in (
        _policy,
        _tokens,
        _spark_conf,
        _jars,
        _disk,
        _memory,
        _ports,
        _local_run,
        _transport,
        _kafka,
        _lake,
        _collector,
    ):
        findings += _guarded(check, settings)
    return findings


def _guard(name: str, check: Callable[[], CheckResult]) -> CheckResult:
    try:
        return check()
    except SetupError as error:
        problem, _, remedy = str(error).partition(": ")
        return CheckResult(name, False, problem, remedy)


def _guarded(check: Callable[[Settings], Iterator[CheckResult]], settings: Settings) -> list[CheckResult]:
    name = check.__name__.strip("_").replace("_", " ")
    try:
        return list(check(settings))
    # Any error of a check is its finding: the doctor itself never fails.
    except Exception as error:
        message = str(error).strip().partition("\n")[0]
        return [CheckResult(name, False, f"{type(error).__name__}: {message}", "see what was found")]


def _python() -> CheckResult:
    version = sys.version.split()[0]
    return CheckResult(
        "python", sys.version_info >= (3, 10), version, "Python 3.10 or newer is needed: set PYTHON for make"
    )


def _java() -> CheckResult:
    java = find_java()
    return CheckResult("java", True, f"{java_version(java)} ({java})")


def _packages() -> CheckResult:
    lock = Path(__file__).resolve().parents[2] / "requirements.lock"
    if not lock.is_file():
        return CheckResult("packages", True, "no lock file here: installed as a package")
    wrong = wrong_packages(lock.read_text())
    return CheckResult("packages", not wrong, "; ".join(wrong) or "as locked", "make clean setup")


def wrong_packages(lock: str) -> list[str]:
    """Differences between a lock file (its text) and what is installed, a sentence each."""
    pinned: dict[str, set[str]] = {}
    conditional = set()
    for name, version, marker in re.findall(r"^([A-Za-z0-9._-]+)==([^ \\;]+) *(;?)", lock, re.MULTILINE):
        pinned.setdefault(name, set()).add(version)
        if marker:
            conditional.add(name)
    wrong = []
    for name, versions in pinned.items():
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            # What only some machines need may be missing on this one.
            if name not in conditional:
                wrong.append(f"{name} is missing")
            continue
        if installed not in versions:
            wrong.append(f"{name} {installed} instead of {' or '.join(sorted(versions))}")
    return wrong


def _policy(settings: Settings) -> Iterator[CheckResult]:
    file = settings.path(settings.policy.cluster)
    try:
        read_cluster_policy(settings.policy.profile, file.read_text())
    except (OSError, ValueError) as error:
        yield CheckResult("policy", False, f"{file}: {error}", "correct the file, or [policy] cluster")
    else:
        yield CheckResult("policy", True, str(file))


def _tokens(settings: Settings) -> Iterator[CheckResult]:
    if not settings.controller.tokens_file:
        return
    try:
        tokens = read_tokens(settings.path(settings.controller.tokens_file))
    except TokensError as error:
        yield CheckResult("tokens", False, str(error), "correct the file, or [controller] tokens_file")
    else:
        yield CheckResult("tokens", True, f"{len(tokens)} in {settings.controller.tokens_file}")


def _spark_conf(settings: Settings) -> Iterator[CheckResult]:
    file = settings.path(settings.stream.spark_conf)
    readable = file.is_file() and os.access(file, os.R_OK)
    yield CheckResult("spark settings", readable, str(file), "there is no such file: correct [stream] spark_conf")


def _jars(settings: Settings) -> Iterator[CheckResult]:
    wanted = ["spark", "kafka", "zookeeper"]
    if (settings.path(settings.local.jars) / "pulsar").is_dir():
        # Fetched only when somebody asks for them.
        wanted.append("pulsar")
    for name in wanted:
        expected = read_checksums(settings.path(f"conf/jars/{name}.sha256"))
        folder = settings.path(settings.local.jars) / name
        wrong = wrong_jars(folder, expected)
        if name == "spark" and not localfs_is_current(folder / LOCALFS_JAR):
            wrong.append(f"{LOCALFS_JAR} is missing or not of the sources in anabranch/local/java")
        state = "; ".join(wrong[:3]) if wrong else f"{len(expected)} with the right SHA-256"
        if not folder.is_dir():
            state = f"{len(expected)} are not fetched yet"
        yield CheckResult(
            f"jars for {name}",
            not wrong,
            state,
            f"`anabranch local setup{' --pulsar' * (name == 'pulsar')}` fetches them again (in a clone: make setup)",
        )


def _disk(settings: Settings) -> Iterator[CheckResult]:
    folder = settings.path(settings.local.folder)
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free // 1_000_000
    wanted = settings.local.free_disk_mb
    yield CheckResult(
        "disk",
        free >= wanted,
        f"{free:,} MB free, {wanted:,} wanted",
        "make room, or `anabranch local reset` (make reset)",
    )
    yield CheckResult(
        "writable", os.access(existing, os.W_OK), str(existing), "give this user the right to write there"
    )


def _memory(_: Settings) -> Iterator[CheckResult]:
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 1_000_000
    except (ValueError, OSError):
        return
    yield CheckResult(
        "memory", total >= MIN_MEMORY_MB, f"{total:,} MB", f"{MIN_MEMORY_MB:,} MB is the minimum for a local run"
    )
    yield CheckResult("cores", True, str(os.cpu_count()))


def _ports(settings: Settings) -> Iterator[CheckResult]:
    running = lock_owner(settings.path(settings.local.folder))
    for server, port in (("Kafka", settings.local.broker_port), ("the controller", settings.controller.port)):
        name = f"port of {server}"
        if port == 0:
            yield CheckResult(name, True, "a free one is chosen")
        elif running is not None:
            yield CheckResult(name, True, f"{port}, used by the local run")
        else:
            try:
                check_port_is_free(port, server)
            except SetupError as error:
                health = _controller_health(settings, port) if server == "the controller" else ""
                usage = str(error).partition(":")[0]
                remedy = f"unless it is {server} of this deployment, stop that process, or set 0"
                if health:
                    usage = f"{port}, used by a controller that says {health}"
                    remedy = "its log says why, and /healthz with a token"
                yield CheckResult(name, health == "ok", usage, remedy)
            else:
                yield CheckResult(name, True, f"{port} is free")


def _controller_health(settings: Settings, port: int) -> str:
    """Return `ok` or `failing` as a controller of ours at the port says; empty: there is none."""
    url = settings.controller.url
    if urlsplit(url).port != port:
        url = f"http://127.0.0.1:{port}"
    transport = Transport(
        url, None, user_agent="anabranch-doctor", timeout_seconds=HEALTH_SECONDS, tls=settings.url_context()
    )
    with closing(transport):
        answer = transport.exchange("GET", "/healthz")
    match = re.match(rb'{"status":"(ok|failing)"', answer.body) if isinstance(answer, Response) else None
    return match[1].decode() if match else ""


def _local_run(settings: Settings) -> Iterator[CheckResult]:
    folder = settings.path(settings.local.folder)
    if (running := lock_owner(folder)) is not None:
        yield CheckResult("local run", True, f"alive, process {running}")
        return
    left = leftovers(folder / "processes.json")
    state = f"killed, and left sessions {', '.join(map(str, left))} behind" if left else "none is running"
    yield CheckResult(
        "local run", not left, state, "the next local run ends them, and so does `anabranch local reset` (make reset)"
    )


def _transport(settings: Settings) -> Iterator[CheckResult]:
    try:
        for files in (settings.listener_context, settings.url_context, settings.metadata_context):
            files()
        settings.kafka_connection()
    except SettingsError as error:
        yield CheckResult("transport", False, str(error), "correct the file, or the setting that names it")
        return
    lines = dict.fromkeys(line for part in PARTS for line in exposures(settings, part))
    yield CheckResult("transport", True, "; ".join(lines) or "encrypted, or on loopback")


def _kafka(settings: Settings) -> Iterator[CheckResult]:
    bootstrap = settings.kafka.bootstrap
    if is_serving(settings.kafka_connection()):
        yield CheckResult("Kafka", True, f"{bootstrap} answers")
    elif bootstrap.startswith(("127.", "localhost", "[::1]")):
        yield CheckResult("Kafka", True, f"no Kafka answers at {bootstrap}; a local run brings its own")
    else:
        yield CheckResult("Kafka", False, f"no Kafka answers at {bootstrap}", "start it, or correct [kafka] bootstrap")


def _lake(settings: Settings) -> Iterator[CheckResult]:
    existing = []
    for name, table in TABLES.items():
        try:
            if open_table(settings.lake_path, table) is not None:
                existing.append(name)
        except DeltaError as error:
            message = str(error).partition("\n")[0]
            remedy = (
                f"restore {name} from a copy; in a local run `anabranch local reset` (make reset) forgets all tables"
            )
            yield CheckResult("lake", False, f"{name} in {settings.lake_path} cannot be read: {message}", remedy)
            return
    yield CheckResult("lake", True, f"{len(existing)} of {len(TABLES)} tables in {settings.lake_path}")
    if is_remote(settings.lake_path):
        fault = check_store(settings.lake_path)
        evidence = fault or "puts, refuses a second put of one name, lists, deletes"
        yield CheckResult("object storage", not fault, evidence, "use a store with conditional puts (docs/deploy.md)")


def _collector(settings: Settings) -> Iterator[CheckResult]:
    """Check the health of the `[collect]` collector, if there was one."""
    file = settings.path(settings.collect.folder) / STATUS_FILE
    if (status := read_status(file)) is None:
        return
    age = time.time() - status.at / 1000
    if age > status.stale_after_seconds:
        state = f"the collector of {status.url} has not been heard of for {age:,.0f} s"
        yield CheckResult("collector", False, state, f"start `anabranch serve collector` again, or remove {file}")
        return
    late = max((broker.lag_seconds for broker in status.brokers if broker.lag_seconds is not None), default=0.0)
    yield CheckResult(
        "collector",
        True,
        f"{status.topics} topics of {status.url}; loads up to {late:.1f} s late; counts of consumers up to "
        f"{status.used_consumers_age_seconds:.1f} s old where there are consumers or traffic, else "
        f"{status.consumers_age_seconds:.1f} s",
    )
    silent = [broker for broker in status.brokers if not broker.answers]
    unseen = status.segments_known - status.segments_seen
    shown = ", ".join(status.unseen[:3])
    yield CheckResult(
        "collector's coverage",
        not (unseen and silent) and not status.unread,
        f"{status.segments_seen:,} of {status.segments_known:,} segments"
        + (f"; not read yet: {status.unread}" if status.unread else "")
        + (f"; no broker that answers serves {shown}" + (" and others" if unseen > 3 else "") if unseen else ""),
        "see why brokers do not answer, or wait until all is read (faster with more calls_per_second): segments "
        "that are unknown are neither split nor merged",
    )
    troubles = [*(f"{broker.broker}: {broker.trouble or 'no answer yet'}" for broker in silent), *status.troubles]
    yield CheckResult(
        "collector's view", not troubles, "; ".join(troubles[:3]) or "all that it asks for", "docs/pulsar.md"
    )
