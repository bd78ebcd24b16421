"""Java programs over BookKeeper's public client: the sidecar of `anabranch.bookkeeper` and a test writer.

Stage: under the commands and the tests. Compiled once into a folder beside the jars of Pulsar, which have BookKeeper.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from anabranch.local.compiling import compile_java, is_current
from anabranch.local.processes import tethered
from anabranch.local.pulsar.jvm import command
from anabranch.local.setup import ensure_pulsar
from schemas.settings.root import Settings, without_secrets

_ROOT = Path(__file__).parents[3]
_SOURCES = {
    "anabranch-hands.jar": _ROOT / "anabranch" / "bookkeeper" / "java",
    "anabranch-ledger-writer.jar": Path(__file__).parent / "java",
}
_FLAGS = ("-Djava.net.preferIPv4Stack=true",)


@dataclass(frozen=True)
class BookKeeperPrograms:
    """Jars and commands of the BookKeeper programs."""

    jars: Path
    """Those of Pulsar."""
    ours: Path

    def hands(self, folder: Path, concurrency: int = 16, heap: str = "192m") -> list[str]:
        """The command of the hands; its log is configured in `folder`."""
        return self._run(folder, heap, "anabranch.cli.bookies.clusters.Hands", str(concurrency))

    def writer(self, folder: Path) -> list[str]:
        """The command of the writer of ledgers."""
        return self._run(folder, "128m", "anabranch.cli.bookies.clusters.LedgerWriter")

    def _run(self, folder: Path, heap: str, main: str, *arguments: str) -> list[str]:
        ours = sorted(self.ours.glob("*.jar"))
        return command(folder, self.jars, heap, main, *arguments, flags=_FLAGS, more=ours)


def ensure_programs(settings: Settings, say: Callable[[str], None] = lambda _: None) -> BookKeeperPrograms:
    """The programs, compiled if they are not there or not from these sources; raises `SetupError`."""
    jars = ensure_pulsar(settings, say)
    ours = jars.parent / "bookies"
    ours.mkdir(exist_ok=True)
    with FileLock(ours.with_suffix(".lock")):
        for name, sources in _SOURCES.items():
            if not is_current(ours / name, sources):
                say(f"compiling {name} (once) …")
                compile_java(sources, ours / name, sorted(jars.glob("*.jar")))
    return BookKeeperPrograms(jars, ours)


class LedgerWriter:
    """Writes ledgers into clusters, as Pulsar writes those of its schemas and cursors."""

    def __init__(self, programs: BookKeeperPrograms, folder: Path) -> None:
        with open(Path(folder) / "ledger-writer.log", "ab") as log:
            self._process = subprocess.Popen(
                tethered(programs.writer(Path(folder))),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=without_secrets(os.environ),
                text=True,
            )

    def write(
        self,
        uri: str,
        count: int = 1,
        ledger: int = -1,
        entries: int = 3,
        size: int = 200,
        seed: int = 1,
        quorum: int = 1,
        custom: Mapping[str, str] | None = None,
        leave_open: bool = False,
    ) -> list[int]:
        """Write `count` ledgers of `entries` entries of `size` bytes and return their ids.

        With `ledger` -1 the cluster chooses the ids. Raises `RuntimeError` if the program reports an error.
        """
        request = {
            "uri": uri,
            "count": count,
            "ledger": ledger,
            "entries": entries,
            "bytes": size,
            "seed": seed,
            "quorum": quorum,
            "custom": dict(custom or {}),
            "open": leave_open,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return [int(written) for written in answer["ledgers"]]

    def close(self) -> None:
        """End the program; ledgers that it left open stay open."""
        self._process.kill()
        self._process.communicate()
