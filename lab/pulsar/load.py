"""Keyed load on a scalable topic of a Pulsar by its own V5 client, in a JVM, with an exact count of what came through.

Neighbours: `java/…/KeyedLoad.java` is the program.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab.java_home import find_java
from lab.processes import tethered

_FLAGS = [
    "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
    "-Dio.netty.tryReflectionSetAccessible=true", "--add-opens", "java.base/java.nio=ALL-UNNAMED",
    "--add-opens", "java.base/jdk.internal.misc=ALL-UNNAMED", "--add-opens", "java.base/java.lang=ALL-UNNAMED",
]  # fmt: skip
_FINISH_SECONDS = 90


class KeyedLoad:
    """Load that runs; `counts` is what it said last.

    `acknowledged` messages, distinct ones `received`, acknowledged ones that are `missing`; messages that came twice,
    because Pulsar `redelivered` one or the client `resent` it; `inversions` of the order of a key, sends that were
    `unanswered` for 20 s (another producer goes on then), the `segments` that messages came from, `errors`, and whether
    it has `finished`.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.counts: dict[str, Any] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def ended(self) -> bool:
        """Whether its process is gone."""
        return self._process.poll() is not None

    def finish(self) -> dict[str, Any]:
        """Stops to produce, and waits a minute at most until all that was acknowledged is received; the last counts."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._reader.join(_FINISH_SECONDS)
        return self.counts

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self.counts = json.loads(line)


@contextmanager
def keyed_load(
    jars: Path, service_url: str, topic: str, log: Path, rate: int, keys: int, in_flight: int, wave_seconds: float = 0
) -> Iterator[KeyedLoad]:
    """Load of `rate` messages a second over `keys` keys, with so many sends `in_flight`; killed when the block ends.
    With a wave the rate rises and falls once in `wave_seconds`.

    `jars` is the folder of `lab.setup.ensure_pulsar`; the client's log goes to `log`.
    """
    configuration = log.with_suffix(".log4j2.properties")
    configuration.write_text(_LOGGING)
    command = [
        find_java(), *_FLAGS, f"-Dlog4j2.configurationFile={configuration}", "-cp", f"{jars}/*",
        "anabranch.pulsar.KeyedLoad", service_url, topic, str(rate), str(keys), str(in_flight), str(wave_seconds),
    ]  # fmt: skip
    with (
        open(log, "ab") as errors,
        subprocess.Popen(
            tethered(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        try:
            yield KeyedLoad(process)
        finally:
            process.kill()


_LOGGING = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.target = SYSTEM_ERR
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %-5level %logger{36} - %msg%n%xEx{6}
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
"""
