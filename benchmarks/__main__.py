"""All benchmarks, one after another, each in a process of its own: `make bench` (ARGS="--quick" for a short look)."""

from __future__ import annotations

import subprocess
import sys

BENCHMARKS = (
    "decide",
    "engine",
    "ticks",
    "stream",
    "latency",
    "announcements",
    "restart",
    "controller",
    "executor",
    "collect",
    "ledger",
)


def main(arguments: list[str]) -> int:
    """Runs them; the exit code of the first that failed."""
    for name in BENCHMARKS:
        print(f"== {name}", flush=True)
        code = subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *arguments], check=False).returncode
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
