"""Fetches the jars of a closed list by the Ivy inside pyspark, several at a time.

A list is dealt out to a few processes of Ivy: most of the time goes by waiting for the registry, and one Ivy asks for
one jar after the other. Each knows the jars by name only, so nothing is resolved.
"""

import os
import subprocess
import threading
import xml.etree.ElementTree as ET
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from runtime.java_home import SetupError, find_java
from schemas.settings.root import without_secrets

IVY_SETTINGS_VARIABLE = "ANABRANCH_IVY_SETTINGS"
_PROCESSES = 8
_JARS_A_PROCESS = 20
_SAY_EVERY = 50
_JVM = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
_MAVEN = "http://ant.apache.org/ivy/maven"


def fetch_jars(ivy_file: Path, into: Path, work: Path, say: Callable[[str], None]) -> list[str]:
    """Fetch the jars of `ivy_file` and return Ivy's error lines.

    Files are named `ARTIFACT-REVISION[-CLASSIFIER].jar`. `work` is an empty folder for Ivy's own files. The caller
    compares the contents of `into` with the expected list.
    """
    settings = Path(os.environ.get(IVY_SETTINGS_VARIABLE) or ivy_file.parent / "ivysettings.xml")
    parts = _deal(ivy_file, work)
    count = _Count(say)
    names = f"{into}/[artifact]-[revision](-[classifier]).[ext]"

    def fetch(part: Path) -> list[str]:
        command = [
            find_java(),
            *_JVM,
            "-jar",
            str(pyspark_jar("ivy")),
            "-ivy",
            str(part),
            "-cache",
            f"{part}.cache",
            "-settings",
            str(settings),
            "-retrieve",
            names,
        ]
        lines = []
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=without_secrets(os.environ),
        ) as ivy:
            assert ivy.stdout is not None
            for line in ivy.stdout:
                if "[SUCCESSFUL ]" in line:
                    count.one_more()
                elif "unresolved" in line or "ERROR" in line:
                    lines.append(line.strip())
        return lines

    with ThreadPoolExecutor(len(parts)) as pool:
        return [line for lines in pool.map(fetch, parts) for line in lines]


def _deal(ivy_file: Path, work: Path) -> list[Path]:
    """The list in parts, each a file of its own."""
    ET.register_namespace("m", _MAVEN)
    jars = len(ET.parse(ivy_file).findall("dependencies/dependency"))
    parts = max(1, min(_PROCESSES, jars // _JARS_A_PROCESS))
    files = []
    for part in range(parts):
        tree = ET.parse(ivy_file)
        of_all = tree.find("dependencies")
        assert of_all is not None
        for number, dependency in enumerate(list(of_all)):
            if number % parts != part:
                of_all.remove(dependency)
        files.append(work / f"part-{part}.xml")
        tree.write(files[-1])
    return files


class _Count:
    """Says how many jars have come, now and then."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._lock, self._come = say, threading.Lock(), 0

    def one_more(self) -> None:
        with self._lock:
            self._come += 1
            if self._come % _SAY_EVERY == 0:
                self._say(f"  {self._come} jars have come …")


def pyspark_jar(name: str) -> Path:
    """The jar of that name, whatever its version; raises `SetupError` when pyspark is damaged."""
    import pyspark

    if not (jars := sorted((Path(pyspark.__file__).parent / "jars").glob(f"{name}-[0-9]*.jar"))):
        raise SetupError(
            f"pyspark's own {name} jar is missing: the virtual environment is damaged, install it again (in a clone: "
            "make clean setup)"
        )
    return jars[0]
