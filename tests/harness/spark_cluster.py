"""Standalone Spark cluster on loopback: a master and workers from the pyspark package.

Stage: beside the local run, to try out and test what runs on a cluster. `python -m tests.harness.spark_cluster
[FOLDER]` runs one until Ctrl-C and prints its URL for `spark-submit --master`. Every process that the workers start
ends with them.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pyspark

from anabranch.local.processes import end_session, tethered
from runtime.java_home import SetupError, find_java

_START_SECONDS = 60
_STOP_SECONDS = 10
_OTHER_SPARK = re.compile(r"(SPARK|PYSPARK)_\w+|HADOOP_(HOME|CONF_DIR)")
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = re.compile(r"Successfully registered with master")


class StandaloneCluster:
    """One master and its workers. Ends at the latest with the thread that started it (Linux)."""

    def __init__(self, folder: Path, workers: int = 2, cores: int = 1, memory: str = "1g") -> None:
        """`folder` holds logs and the executors' work; each worker offers `cores` and `memory` (`512m`, `1g`)."""
        self.folder, self.workers, self._cores, self._memory = Path(folder).resolve(), workers, cores, memory
        self.url = ""
        """`spark://host:port`, known once it has started."""
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start the cluster and wait until every worker has registered.

        Raises `SetupError` with the end of the log.
        """
        find_java()
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            master = self._run("master", "master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
            self.url = self._wait_for(_MASTER, "master", master)
            for number in range(self.workers):
                name = f"worker-{number}"
                offered = ("--cores", str(self._cores), "--memory", self._memory, "--work-dir", str(self.folder / name))
                worker = self._run(
                    name, "worker.Worker", "--host", "127.0.0.1", "--webui-port", "0", *offered, self.url
                )
                self._wait_for(_REGISTERED, name, worker)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the workers, their executors and the master; nothing of them is left."""
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
        for process in reversed(self._processes):
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
            end_session(process.pid)
            process.wait()
        self._processes.clear()

    def _run(self, name: str, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        home = Path(pyspark.__file__).parent
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{main}", *arguments]
        log = self._log(name)
        log.unlink(missing_ok=True)
        with open(log, "ab") as output:
            process = subprocess.Popen(
                tethered(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=daemon_environment(os.environ, home),
                cwd=self.folder,
            )
        self._processes.append(process)
        return process

    def _wait_for(self, words: re.Pattern[str], name: str, process: subprocess.Popen[bytes]) -> str:
        """The last group of the first match in the log of a daemon."""
        log, deadline = self._log(name), time.monotonic() + _START_SECONDS
        while (found := words.search(log.read_text(errors="replace"))) is None:
            if process.poll() is not None or time.monotonic() > deadline:
                raise SetupError(
                    f"the {name} did not start; the end of {log}: {log.read_text(errors='replace')[-800:]}"
                )
            time.sleep(0.05)
        return found.group(found.lastindex or 0)

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"


def daemon_environment(variables: Mapping[str, str], home: Path) -> dict[str, str]:
    """Return the environment of master and workers: pyspark's Spark on loopback.

    Settings of another Spark in the shell are left out.
    """
    kept = {name: value for name, value in variables.items() if not _OTHER_SPARK.fullmatch(name)}
    return kept | {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "128m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }


def main() -> None:
    """Run a cluster until told to stop."""
    stop = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: stop.set())
    cluster = StandaloneCluster(Path(sys.argv[1] if len(sys.argv) > 1 else "var/cluster"))
    try:
        cluster.start()
    except SetupError as error:
        sys.exit(str(error))
    try:
        print(cluster.url, flush=True)
        stop.wait()
    finally:
        cluster.stop()


if __name__ == "__main__":
    main()
