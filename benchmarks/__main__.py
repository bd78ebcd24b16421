"""Run all benchmarks in turn, each in its own process: `make bench` (ARGS="--quick" for a short run)."""

import subprocess
import sys

import click

BENCHMARKS = (
    "decide",
    "engine",
    "ticks",
    "bundles",
    "stream",
    "growth",
    "latency",
    "announcements",
    "restart",
    "controller",
    "anonymous",
    "clients",
    "executor",
    "bookies",
    "switches",
    "collect",
    "ledger",
    "simulate",
    "backtest",
    "page",
    "start",
)


@click.command()
@click.option("--quick", is_flag=True, help="A short look at each.")
def main(quick: bool) -> None:
    """Runs all benchmarks, until the first that fails."""
    arguments = ["--quick"] if quick else []
    for name in BENCHMARKS:
        print(f"== {name}", flush=True)
        code = subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *arguments], check=False).returncode
        if code:
            sys.exit(code)


if __name__ == "__main__":
    main()
