"""Local server: one process on loopback, run from verified jars in its own folder.

Stage: under `anabranch.local.broker`, `tests.harness.zookeeper` and `anabranch.local.pulsar.standalone`, which define
the command and the readiness check.
"""

import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from pathlib import Path

from anabranch.local.processes import tethered
from runtime.java_home import SetupError
from schemas.settings.root import without_secrets


class EmbeddedServer(ABC):
    """Server that may be stopped or killed, and restarted with its data on the same ports."""

    NAME: str
    """Name in messages."""
    LOG: str
    """Name of the log file in its folder."""
    START_SECONDS, STOP_SECONDS = 60.0, 20.0

    def __init__(self, folder: Path, jars: Path, heap: str) -> None:
        """`folder` holds data, configuration and log; `jars` is the folder of its jars, `heap` as the JVM has it."""
        self.folder, self._jars, self._heap = Path(folder).resolve(), Path(jars).resolve(), heap
        self.process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def prepare(self) -> list[str]:
        """Write the configuration and return the command that runs the server."""

    @abstractmethod
    def serves(self) -> bool:
        """Return True if the server answers clients now."""

    @property
    def log(self) -> Path:
        """Path of the log file."""
        return self.folder / self.LOG

    def start(self) -> None:
        """Start the server and wait until it serves.

        Raises `SetupError` with the end of its log if it does not. On Linux it ends with the calling thread.
        """
        self.launch()
        self.wait_until_serving()

    def launch(self) -> None:
        """Start the process without waiting until it serves."""
        command = self.prepare()
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                tethered(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self.folder,
                env=without_secrets(os.environ),
            )

    def wait_until_serving(self) -> None:
        """Wait until the server answers clients; raise `SetupError` if it does not."""
        deadline = time.monotonic() + self.START_SECONDS
        while not self.serves():
            if self.process is None or self.process.poll() is not None or time.monotonic() > deadline:
                words = self.log.read_text(errors="replace")[-800:]
                self.kill()
                raise SetupError(f"{self.NAME} did not start; the end of {self.log}: {words}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop the server cleanly, or with SIGKILL if that takes too long."""
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(self.STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """End the server with SIGKILL."""
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
