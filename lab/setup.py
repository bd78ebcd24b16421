"""The jars: fetched once from closed lists by the Ivy inside pyspark, checked against SHA-256, kept under `.cache/`.

Stage: set-up. Needs Python and Java only. `conf/jars/NAME.xml` names every jar of a purpose, without resolving
dependencies; `conf/jars/NAME.sha256` says what must come, and what must still be there at every later start (0.05 s for
all of them). A folder of jars appears as a whole or not at all.
`ANABRANCH_IVY_SETTINGS` may name an Ivy settings file, for those who fetch from a mirror.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lab.java_home import SetupError, find_java
from schemas.settings import Settings

IVY_SETTINGS_VARIABLE = "ANABRANCH_IVY_SETTINGS"
LOCALFS_JAR = "anabranch-localfs.jar"
_SOURCES = Path(__file__).parent / "java"


@dataclass(frozen=True)
class Jars:
    """The folders of jars, one per purpose."""

    spark: Path
    kafka: Path
    zookeeper: Path


def ensure_jars(settings: Settings, say: Callable[[str], None] = lambda _: None) -> Jars:
    """The jars, fetched if they are not there or are not those of the lists; reports slow steps, a line each.

    Raises `SetupError` with what could not be fetched.
    """
    jars = Jars(*(_ensure_folder(settings, name, say) for name in ("spark", "kafka", "zookeeper")))
    if not localfs_is_current(jars.spark / LOCALFS_JAR):
        say("compiling the local file system that forks no processes (once) …")
        compile_localfs(jars.spark / LOCALFS_JAR)
    return jars


def ensure_admin_client(settings: Settings, say: Callable[[str], None] = lambda _: None) -> Path:
    """The folder of Pulsar's Java admin client, which only tests need; fetched and checked as the others."""
    return _ensure_folder(settings, "pulsar-admin", say)


def _ensure_folder(settings: Settings, name: str, say: Callable[[str], None]) -> Path:
    folder = settings.path(settings.local.jars) / name
    expected = read_checksums(settings.path(f"conf/jars/{name}.sha256"))
    wrong = wrong_jars(folder, expected)
    if wrong:
        why = f"{'; '.join(wrong[:3])}: all are fetched again" if folder.is_dir() else "once"
        say(f"fetching {len(expected)} jars for {name} ({why}) …")
        _fetch(settings.path(f"conf/jars/{name}.xml"), folder, expected)
    return folder


def read_checksums(file: Path) -> dict[str, str]:
    """File name to SHA-256 in hex, from a list as sha256sum writes it."""
    try:
        return {
            name: digest for digest, name in (line.split() for line in file.read_text().splitlines() if line.strip())
        }
    except (OSError, ValueError) as error:
        raise SetupError(f"cannot read the jar list {file}: {error}") from error


def wrong_jars(folder: Path, expected: dict[str, str]) -> list[str]:
    """What is wrong in a folder of jars, a line each: missing, changed, or not on the list."""
    found = {file.name for file in folder.glob("*.jar")} - {LOCALFS_JAR}
    problems = [f"{name} is missing" for name in sorted(expected.keys() - found)]
    problems += [f"{name} is not on the list" for name in sorted(found - expected.keys())]
    for name in sorted(expected.keys() & found):
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != expected[name]:
            problems.append(f"{name} has another SHA-256 than the list")
    return problems


def localfs_is_current(jar: Path) -> bool:
    """Whether the jar of `lab/java` was compiled from the sources as they are now."""
    try:
        with zipfile.ZipFile(jar) as archive:
            return archive.comment == _source_digest()
    except (OSError, zipfile.BadZipFile):
        return False


def _source_digest() -> bytes:
    texts = (source.read_bytes() for source in sorted(_SOURCES.rglob("*.java")))
    return hashlib.sha256(b"".join(texts)).hexdigest().encode()


def _fetch(ivy_file: Path, folder: Path, expected: dict[str, str]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}-") as work:
        got = Path(work) / "jars"
        got.mkdir()
        command = [find_java(), "-jar", str(_pyspark_jar("ivy")), "-ivy", str(ivy_file), "-cache", f"{work}/cache",
                   "-retrieve", f"{got}/[artifact]-[revision].[ext]"]  # fmt: skip
        if os.environ.get(IVY_SETTINGS_VARIABLE):
            command += ["-settings", os.environ[IVY_SETTINGS_VARIABLE]]
        run = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        problems = wrong_jars(got, expected)
        if problems:
            words = (run.stdout + run.stderr).splitlines()
            said = [line.strip() for line in words if "unresolved" in line or "ERROR" in line]
            raise SetupError(
                f"the jars of {ivy_file.name} could not be fetched: {'; '.join([*problems[:3], *said[:2]])}. Is this "
                f"machine online? {IVY_SETTINGS_VARIABLE} may name an Ivy settings file with a mirror; then try again"
            )
        shutil.rmtree(folder, ignore_errors=True)
        got.rename(folder)


def compile_localfs(target: Path) -> None:
    """Compiles `lab/java` into a jar, by the Janino compiler inside pyspark: a machine with a JRE has no javac."""
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

    jars = _pyspark_jar("janino").parent
    port, token, process = launch_gateway(
        jarpath=str(_pyspark_jar("py4j")), classpath=f"{jars}/*", java_path=find_java(), die_on_exit=True,
        redirect_stdout=None, redirect_stderr=None, enable_auth=True, return_proc=True,
    )  # fmt: skip
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True))
    try:
        with tempfile.TemporaryDirectory() as classes:
            file_class = gateway.jvm.java.io.File
            sources = sorted(_SOURCES.rglob("*.java"))
            files = gateway.new_array(file_class, len(sources))
            for number, source in enumerate(sources):
                files[number] = file_class(str(source))
            compiler = gateway.jvm.org.codehaus.janino.CompilerFactory().newCompiler()
            compiler.setDestinationDirectory(file_class(classes), False)
            compiler.compile(files)
            made = target.with_suffix(".part")
            with zipfile.ZipFile(made, "w") as archive:
                archive.comment = _source_digest()
                for file in sorted(Path(classes).rglob("*.class")):
                    archive.write(file, file.relative_to(classes))
            made.rename(target)
    finally:
        gateway.shutdown()
        process.stdin.close()
        process.wait(20)


def _pyspark_jar(name: str) -> Path:
    import pyspark

    found = sorted((Path(pyspark.__file__).parent / "jars").glob(f"{name}-[0-9]*.jar"))
    if not found:
        raise SetupError(
            f"pyspark's own {name} jar is missing: the virtual environment is damaged, install it again (in a clone: "
            "make clean setup)"
        )
    return found[0]
