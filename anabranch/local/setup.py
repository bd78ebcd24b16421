"""Jars: fetched once from closed lists by pyspark's Ivy, checked by SHA-256, cached in `.cache/`.

Needs Python and Java only. `conf/jars/NAME.xml` names every jar of a purpose, without resolving dependencies;
`conf/jars/NAME.sha256` says what must come, and what must still be there at every later start (0.05 s for those of the
local run). A folder of jars appears as a whole or not at all. Those of a real Pulsar are fetched when something asks
for one. `ANABRANCH_IVY_SETTINGS` may name an Ivy settings file, for those who fetch from a mirror.
"""

import hashlib
import importlib.util
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from anabranch.local.compiling import compile_java, is_current
from anabranch.local.fetching import IVY_SETTINGS_VARIABLE, fetch_jars
from runtime.java_home import SetupError
from schemas.settings.root import Settings

LOCALFS_JAR = "anabranch-localfs.jar"
PULSAR_PROGRAMS_JAR = "anabranch-pulsar.jar"
_SOURCES = Path(__file__).parent / "java"
_PULSAR_SOURCES = Path(__file__).parent / "pulsar" / "java"
_OURS = {LOCALFS_JAR, PULSAR_PROGRAMS_JAR}


@dataclass(frozen=True)
class Jars:
    """The folders of jars, one per purpose."""

    spark: Path
    kafka: Path
    zookeeper: Path


def ensure_jars(settings: Settings, say: Callable[[str], None] = lambda _: None) -> Jars:
    """Return the jars, after fetching them if any is missing or not on the lists.

    Reports each slow step in a line.

    Raises `SetupError` with what could not be fetched.
    """
    jars = Jars(*(ensure_jar_folder(settings, name, say) for name in ("spark", "kafka", "zookeeper")))
    if not localfs_is_current(jars.spark / LOCALFS_JAR):
        say("compiling the local file system that forks no processes (once) …")
        compile_localfs(jars.spark / LOCALFS_JAR)
    return jars


def ensure_pulsar(settings: Settings, say: Callable[[str], None] = lambda _: None) -> Path:
    """Return the folder of a Pulsar 5, its V5 client and our programs, fetched at the first call (220 MB)."""
    folder = ensure_jar_folder(settings, "pulsar", say)
    programs = folder / PULSAR_PROGRAMS_JAR
    if is_current(programs, _PULSAR_SOURCES):
        return folder
    with FileLock(folder.with_suffix(".lock")):
        if not is_current(programs, _PULSAR_SOURCES):
            say("compiling the programs that talk to Pulsar's own classes (once) …")
            compile_java(_PULSAR_SOURCES, programs, sorted(set(folder.glob("*.jar")) - {programs}))
    return folder


def ensure_jar_folder(settings: Settings, name: str, say: Callable[[str], None]) -> Path:
    """Return the folder of the jars that `conf/jars/NAME.xml` lists, fetched and checked if need be."""
    folder = settings.path(settings.local.jars) / name
    expected = read_checksums(settings.path(f"conf/jars/{name}.sha256"))
    if wrong_jars(folder, expected):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_suffix(".lock")):
            # Another process may have fetched them meanwhile.
            if wrong := wrong_jars(folder, expected):
                why = f"{'; '.join(wrong[:3])}: all are fetched again" if folder.is_dir() else "once"
                say(f"fetching {len(expected)} jars for {name} ({why}) …")
                _fetch(settings.path(f"conf/jars/{name}.xml"), folder, expected, say)
    return folder


def read_checksums(file: Path) -> dict[str, str]:
    """Return SHA-256 in hex by file name, from a list as sha256sum writes it."""
    try:
        return {
            name: digest for digest, name in (line.split() for line in file.read_text().splitlines() if line.strip())
        }
    except (OSError, ValueError) as error:
        raise SetupError(f"cannot read the jar list {file}: {error}") from error


def wrong_jars(folder: Path, expected: dict[str, str]) -> list[str]:
    """Return the problems of a folder of jars: each missing, changed, or not on the list."""
    present = {file.name for file in folder.glob("*.jar")} - _OURS
    problems = [f"{name} is missing" for name in sorted(expected.keys() - present)]
    problems += [f"{name} is not on the list" for name in sorted(present - expected.keys())]
    for name in sorted(expected.keys() & present):
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != expected[name]:
            problems.append(f"{name} has another SHA-256 than the list")
    return problems


def localfs_is_current(jar: Path) -> bool:
    """Return True if the jar of `anabranch/local/java` was compiled from the present sources."""
    return is_current(jar, _SOURCES)


def compile_localfs(target: Path) -> None:
    """Compile `anabranch/local/java` into a jar."""
    compile_java(_SOURCES, target)


def _fetch(ivy_file: Path, folder: Path, expected: dict[str, str], say: Callable[[str], None]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}-") as work:
        got = Path(work) / "jars"
        got.mkdir()
        lines = fetch_jars(ivy_file, got, Path(work), say)
        if problems := wrong_jars(got, expected):
            raise SetupError(
                f"the jars of {ivy_file.name} could not be fetched: {'; '.join([*problems[:3], *lines[:2]])}. Is this "
                f"machine online? {IVY_SETTINGS_VARIABLE} may name an Ivy settings file with a mirror; then try again"
            )
        shutil.rmtree(folder, ignore_errors=True)
        got.rename(folder)


def has_client_package() -> bool:
    """Return whether the package of the clients is installed."""
    return importlib.util.find_spec("anabranch_client") is not None


def check_client_package() -> None:
    """Raise `SetupError` unless the package of the clients is installed."""
    if not has_client_package():
        raise SetupError("real producers and consumers need the package anabranch-client: pip install ./clients/python")
