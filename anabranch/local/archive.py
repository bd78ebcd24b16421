"""JDK class data sharing archive of the classes that Spark's JVM loads at every start.

`streaming.job.session` hands the archive to the JVM, which checks it against its own version and class path and ignores
it when they differ; the next set-up then makes it again. Saves about 5 of 25 s until the first batch is committed. Run
as `python -m anabranch.local.archive HOME JARS FILE` it is the process whose classes are archived.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyspark

from runtime.java_home import find_java
from schemas.settings.root import Settings, load_settings, without_secrets
from streaming.job.session import class_archive, read_spark_conf, start_session

_TIMEOUT_S = 120
"""The archive saves 5 s a start, which is worth no longer wait on a busy machine."""


def ensure_archive(settings: Settings, say: Callable[[str], None]) -> None:
    """Make the archive for this JVM and these jars unless it exists; without it, Spark starts more slowly."""
    archive = class_archive(settings)
    stamp, made_from = archive.with_suffix(".from"), _made_from(archive)
    if stamp.is_file() and stamp.read_text() == made_from:
        return
    say("archiving the classes of Spark's JVM, for quicker starts (once; about 20 s) …")
    archive.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as work:
        part = Path(work) / archive.name
        interrupted = _run(
            [sys.executable, "-m", "anabranch.local.archive", str(settings.home), str(archive.parent), str(part)]
        )
        if part.is_file():
            part.rename(archive)
        elif interrupted:
            # The next start tries again.
            return
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


def _made_from(archive: Path) -> str:
    """Return a digest of the JVM's version and of every class path jar's path, size and age."""
    environment = without_secrets(os.environ)
    version = subprocess.run([find_java(), "-version"], capture_output=True, env=environment, check=True).stderr
    folders = (archive.parent / "spark", Path(pyspark.__file__).parent / "jars")
    jars = [f"{jar} {jar.stat().st_size} {jar.stat().st_mtime_ns}" for each in folders for jar in each.glob("*.jar")]
    return hashlib.sha256(version + "\n".join(sorted(jars)).encode()).hexdigest()


def _start_and_end(home: Path, jars: Path, archive: Path) -> None:
    settings = load_settings(home=home, environment={})
    settings = settings.model_copy(update={"local": settings.local.model_copy(update={"jars": str(jars)})})
    options = read_spark_conf(settings.path(settings.stream.spark_conf)).get("spark.driver.extraJavaOptions", "")
    spark = start_session(settings, {"spark.driver.extraJavaOptions": f"{options} -XX:ArchiveClassesAtExit={archive}"})
    spark.range(1).write.format("noop").mode("overwrite").save()
    gateway = spark.sparkContext._gateway
    spark.stop()
    process = gateway.proc
    # Spark's JVM ends when its standard input does, and writes the archive then.
    process.stdin.close()
    process.wait(_TIMEOUT_S)


if __name__ == "__main__":
    _start_and_end(*map(Path, sys.argv[1:4]))
