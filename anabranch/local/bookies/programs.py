"""Java programs over BookKeeper's client: the sidecar of `anabranch.bookkeeper`, a writer for tests.

Stage: under the commands and the tests. Compiled once into a folder beside the jars of Pulsar, which have BookKeeper.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from anabranch.local.compiling import compile_java, is_current
from anabranch.local.pulsar.jvm import command
from anabranch.local.setup import ensure_pulsar
from schemas.settings.root import Settings

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

    def sidecar(self, folder: Path, concurrency: int = 16, heap: str = "192m") -> list[str]:
        """Return the command of the sidecar; its log is configured in `folder`."""
        return self._run(folder, heap, "anabranch.bookies.Sidecar", str(concurrency))

    def writer(self, folder: Path) -> list[str]:
        """Return the command of the test writer of ledgers."""
        return self._run(folder, "128m", "anabranch.bookies.LedgerWriter")

    def _run(self, folder: Path, heap: str, main: str, *arguments: str) -> list[str]:
        return command(folder, self.jars, heap, main, *arguments, flags=_FLAGS, more=sorted(self.ours.glob("*.jar")))


def ensure_programs(settings: Settings, say: Callable[[str], None] = lambda _: None) -> BookKeeperPrograms:
    """Return the programs, compiled unless they are there from these sources. Raises `SetupError`."""
    jars = ensure_pulsar(settings, say)
    ours = jars.parent / "bookies"
    ours.mkdir(exist_ok=True)
    with FileLock(ours.with_suffix(".lock")):
        for name, sources in _SOURCES.items():
            if not is_current(ours / name, sources):
                say(f"compiling {name} (once) …")
                compile_java(sources, ours / name, sorted(jars.glob("*.jar")))
    return BookKeeperPrograms(jars, ours)
