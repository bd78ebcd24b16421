"""Finds a suitable Java, and says in one line what to do when there is none.

Neighbours: all that starts a JVM here: `anabranch.local.setup`, `anabranch.local.broker`, `anabranch.local.doctor`; and
the Makefile, which runs this file before any package is installed, so it needs the standard library only.
"""

import os
import re
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

MIN_JAVA = 17


class SetupError(RuntimeError):
    """Something that the system needs is missing or wrong; the message says what, and what to do."""


def find_java() -> str:
    """Return the `java` of `JAVA_HOME` or the path. Raises `SetupError` if it is missing or too old."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).is_file():
        where = f"JAVA_HOME is {home}, which holds no bin/java" if home else "there is no `java` on the path"
        raise SetupError(f"Java {MIN_JAVA} or newer is needed, and {where}: install a JRE, or set JAVA_HOME")
    version = java_version(java)
    if version < MIN_JAVA:
        raise SetupError(
            f"{java} is Java {version}, at least {MIN_JAVA} is needed: install a newer one, or set JAVA_HOME"
        )
    return java


@lru_cache
def java_version(java: str) -> int:
    """The major version of a `java` executable; raises `SetupError` when it does not run."""
    # As `without_secrets`, which needs packages: every secret has a name of ours.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANABRANCH_")}
    try:
        output = subprocess.run(
            [java, "-version"], capture_output=True, env=environment, text=True, timeout=60, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError) as error:
        raise SetupError(f"{java} does not run: {error}; install Java {MIN_JAVA}, or set JAVA_HOME") from error
    if (match := re.search(r'version "(?:1\.)?(\d+)', output)) is None:
        raise SetupError(
            f"cannot tell the version of {java} from {output.splitlines()[:1]}; set JAVA_HOME to another one"
        )
    return int(match.group(1))


def archive_of(jars: Path) -> Path:
    """Return the place of the class archive of a folder of jars (`anabranch.local.archive`)."""
    return jars.with_name(f"{jars.name}.jsa")


def archive_options(jars: Path) -> list[str]:
    """Return the JVM options that use the archive of a folder of jars; none without one."""
    archive = archive_of(jars)
    # The JVM ignores an archive of another JVM or class path; operators need no message about it.
    silent = ["-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
    return [f"-XX:SharedArchiveFile={archive}", *silent] if archive.is_file() else []


if __name__ == "__main__":
    try:
        find_java()
    except SetupError as error:
        sys.exit(str(error))
