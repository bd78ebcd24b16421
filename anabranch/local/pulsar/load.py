"""Keyed load on a scalable Pulsar topic by its own V5 client in a JVM, with exact delivery counts.

By hand: `python -m anabranch.local.pulsar.load TOPIC`. A broker that wants a token gets that of
`ANABRANCH_CONTROLLER_TOKEN`. Stage: around the Java program `java/…/KeyedLoad.java`; under the traffic of
`anabranch run --pulsar` (`anabranch.local.pulsar.traffic`) and the tests.
"""

import json
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click

from anabranch.local.processes import tethered
from anabranch.local.setup import ensure_pulsar
from runtime.java_home import SetupError, find_java
from runtime.telemetry.health import call_on_signals
from schemas.settings.root import load_settings, without_secrets

_FLAGS = [
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "--add-opens",
    "java.base/java.nio=ALL-UNNAMED",
    "--add-opens",
    "java.base/jdk.internal.misc=ALL-UNNAMED",
    "--add-opens",
    "java.base/java.lang=ALL-UNNAMED",
]
_FINISH_SECONDS = 90
"""Longest wait for the program's end, of which it waits at most 60 s for messages (`DRAIN_SECONDS`)."""
_DUMP_SECONDS = 10
_TELL_SECONDS = 5


class KeyedLoad:
    """Running load; `counts` is the last line of the Java program.

    `acknowledged` messages, distinct ones `received`, acknowledged ones that are `missing`; messages that came twice,
    because Pulsar `redelivered` one or the client `resent` it; `inversions` of the order of a key, the `segments` that
    messages came from, `errors`, and whether it has `finished`.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.counts: dict[str, Any] = {}
        self._said: deque[str] = deque(maxlen=2_000)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def ended(self) -> bool:
        """True if the process has ended."""
        return self._process.poll() is not None

    def finish(self) -> dict[str, Any]:
        """Stop producing and return the last counts.

        The program waits up to a minute until all acknowledged messages are received. Not `finished` in the counts:
        it did not end in `_FINISH_SECONDS`.
        """
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._reader.join(_FINISH_SECONDS)
        return self.counts

    def threads(self) -> str:
        """Return a dump of the client's threads, for the message of a failure."""
        self._process.send_signal(signal.SIGQUIT)
        end = time.monotonic() + _DUMP_SECONDS
        while not any("JNI global refs" in line for line in self._said) and time.monotonic() < end and not self.ended:
            time.sleep(0.05)
        return "".join(self._said)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self.counts = json.loads(line)
            else:
                self._said.append(line)


class KeyedDemand(NamedTuple):
    """Messages that a load sends."""

    rate: int
    """Messages a second, over all keys."""
    keys: int
    in_flight: int
    """Sends that are pending at once, at most."""
    wave_seconds: float = 0
    """Period in which the rate rises and falls once; 0: it stays."""


@contextmanager
def keyed_load(jars: Path, service_url: str, topic: str, log: Path, demand: KeyedDemand) -> Iterator[KeyedLoad]:
    """Run a load on a topic until the block ends, with the jars of `ensure_pulsar`, logging to `log`."""
    configuration = log.with_suffix(".log4j2.properties")
    configuration.write_text(_LOGGING)
    command = [
        find_java(),
        *_FLAGS,
        f"-Dlog4j2.configurationFile={configuration}",
        "-cp",
        f"{jars}/*",
        "anabranch.pulsar.KeyedLoad",
        service_url,
        topic,
        str(demand.rate),
        str(demand.keys),
        str(demand.in_flight),
        str(demand.wave_seconds),
    ]
    with (
        open(log, "ab") as errors,
        subprocess.Popen(
            tethered(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=without_secrets(os.environ),
            text=True,
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


@click.command()
@click.argument("topic")
@click.option("--service-url", envvar="PULSAR_SERVICE_URL", default="pulsar://127.0.0.1:6650", show_default=True)
@click.option("--rate", type=click.IntRange(1), default=150, show_default=True, help="Messages a second.")
@click.option("--keys", type=click.IntRange(1), default=200, show_default=True)
@click.option(
    "--in-flight",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Sends at once; with more the client of 5.0.0-M1 does not keep the order of a key.",
)
@click.option(
    "--wave-seconds",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="The rate rises and falls once in so long; 0: it stays.",
)
@click.option("--for", "seconds", type=click.FloatRange(0), help="End after so many seconds instead of at Ctrl-C.")
def main(
    topic: str, service_url: str, rate: int, keys: int, in_flight: int, wave_seconds: float, seconds: float | None
) -> None:
    """Produce to TOPIC and consume it; count lost, duplicate and out-of-order messages of a key."""
    ended = threading.Event()
    call_on_signals(ended.set)
    try:
        jars = ensure_pulsar(load_settings(), lambda line: click.echo(line, err=True))
    except SetupError as error:
        raise click.ClickException(str(error)) from error
    log = Path("var/pulsar-load.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    due = None if seconds is None else time.monotonic() + seconds
    with keyed_load(jars, service_url, topic, log, KeyedDemand(rate, keys, in_flight, wave_seconds)) as load:
        while not ended.wait(_TELL_SECONDS) and not load.ended and (due is None or time.monotonic() < due):
            click.echo(json.dumps(load.counts))
        counts = load.finish()
        click.echo(json.dumps(counts))
    if not counts.get("finished"):
        raise click.ClickException(f"the client has ended before it was done; see {log}")


if __name__ == "__main__":
    main()
