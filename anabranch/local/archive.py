"""JDK class data sharing archives: of the classes that a JVM loads at every start.

The archive of a folder of jars, `kafka.jsa` beside `kafka`, is handed to each JVM that is started from it
(`runtime.java_home.archive_options`). It checks the archive against its own version and class path and ignores it when
they differ; the next set-up then makes it again. Saves about 5 of 25 s until Spark commits its first batch, 1.6 of
3.6 s of CPU at a start of Kafka, and 2.4 of 7.3 s at one of Pulsar. Run as
`python -m anabranch.local.archive NAME HOME JARS FILE` it is the process whose classes are archived.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from filelock import FileLock

from runtime.java_home import archive_of, find_java
from schemas.settings.root import Settings, load_settings, without_secrets

_TIMEOUT_S = 120
"""An archive saves seconds a start, which is worth no longer wait on a busy machine."""
_SECONDS = {"spark": 20, "kafka": 5, "pulsar": 15}
"""Time that it takes on a quiet machine, by the name of the jars' folder."""


def ensure_archive(settings: Settings, name: str, say: Callable[[str], None]) -> None:
    """Make the archive of `spark`, `kafka` or `pulsar` for this JVM and its jars unless it exists.

    Beside jars that only others may change, as in an image, starts stay as they are.
    """
    jars = settings.path(settings.local.jars) / name
    archive = archive_of(jars)
    stamp, made_from = archive.with_suffix(".from"), _made_from(jars)
    if _is_made(stamp, made_from) or not os.access(archive.parent, os.W_OK):
        return
    with FileLock(archive.with_suffix(".lock")):
        if not _is_made(stamp, made_from):
            _make_archive(settings, jars, stamp, made_from, say)


def _is_made(stamp: Path, made_from: str) -> bool:
    return stamp.is_file() and stamp.read_text() == made_from


def _make_archive(settings: Settings, jars: Path, stamp: Path, made_from: str, say: Callable[[str], None]) -> None:
    archive, name = archive_of(jars), jars.name
    say(f"archiving the classes of {name.capitalize()}'s JVM, for quicker starts (once; about {_SECONDS[name]} s) …")
    archive.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as work:
        part = Path(work) / archive.name
        if _run([sys.executable, "-m", "anabranch.local.archive", name, str(settings.home), str(jars), str(part)]):
            # The file may be cut off. The next start tries again.
            return
        if part.is_file():
            part.rename(archive)
        else:
            say("no archive was made: starts stay as they are")
    stamp.write_text(made_from)


def _run(command: list[str]) -> bool:
    """Run a command; return True if a signal (Ctrl-C) or the time limit ended it, not the JVM."""
    quiet = subprocess.DEVNULL
    with suppress(subprocess.TimeoutExpired):
        done = subprocess.run(
            command,
            stdin=quiet,
            stdout=quiet,
            stderr=quiet,
            env=without_secrets(os.environ),
            timeout=_TIMEOUT_S,
            check=False,
        )
        return done.returncode < 0
    return True


def _made_from(folder: Path) -> str:
    """Return a digest of the JVM's version and of every class path jar's path, size and age."""
    environment = without_secrets(os.environ)
    version = subprocess.run([find_java(), "-version"], capture_output=True, env=environment, check=True).stderr
    pyspark = find_spec("pyspark") if folder.name == "spark" else None
    packages = (pyspark and pyspark.submodule_search_locations) or ()
    folders = [folder, *(Path(package, "jars") for package in packages)]
    jars = [f"{jar} {jar.stat().st_size} {int(jar.stat().st_mtime)}" for each in folders for jar in each.glob("*.jar")]
    return hashlib.sha256(version + "\n".join(sorted(jars)).encode()).hexdigest()


def _run_spark(home: Path, jars: Path, archive: Path) -> None:
    from streaming.job.session import read_spark_conf, start_session

    settings = load_settings(home=home, environment={})
    settings = settings.model_copy(update={"local": settings.local.model_copy(update={"jars": str(jars.parent)})})
    options = read_spark_conf(settings.path(settings.stream.spark_conf)).get("spark.driver.extraJavaOptions", "")
    spark = start_session(settings, {"spark.driver.extraJavaOptions": f"{options} -XX:ArchiveClassesAtExit={archive}"})
    spark.range(1).write.format("noop").mode("overwrite").save()
    gateway = spark.sparkContext._gateway
    spark.stop()
    process = gateway.proc
    # Spark's JVM ends when its standard input does, and writes the archive then.
    process.stdin.close()
    process.wait(_TIMEOUT_S)


def _run_server(name: str, jars: Path, archive: Path) -> None:
    from anabranch.local.broker import EmbeddedBroker
    from anabranch.local.pulsar.standalone import StandalonePulsar

    os.environ["JAVA_TOOL_OPTIONS"] = f"-XX:ArchiveClassesAtExit={archive}"
    server = {"kafka": EmbeddedBroker, "pulsar": StandalonePulsar}[name](archive.parent / name, jars)
    server.STOP_SECONDS = _TIMEOUT_S
    server.start()
    server.stop()


if __name__ == "__main__":
    which, (at_home, its_jars, file) = sys.argv[1], map(Path, sys.argv[2:5])
    if which == "spark":
        _run_spark(at_home, its_jars, file)
    else:
        _run_server(which, its_jars, file)
