"""`python -m lab.chaos --minutes 10 [--seed 1]`: three controllers on a real ZooKeeper, tormented.

The exit code is 1 when a rule of `lab.chaos.history` was broken; then the logs of the controllers stay.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from pathlib import Path

import click

from lab.chaos.history import check
from lab.chaos.run import Chaos, Plan
from lab.setup import ensure_jars
from lab.zookeeper import EmbeddedZooKeeper
from schemas.settings import load_settings


@click.command()
@click.option("--minutes", type=float, default=1.0, show_default=True, help="How long to torment them.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of everything that is drawn by chance.")
@click.option("--topics", type=int, default=3, show_default=True)
def main(minutes: float, seed: int, topics: int) -> None:
    """Random splits, merges, registrations and sessions under kill -9, SIGSTOP and cuts; then a check."""
    jars = ensure_jars(load_settings(), click.echo)
    folder = Path(tempfile.mkdtemp(prefix="anabranch-chaos-"))
    zookeeper = EmbeddedZooKeeper(folder / "zookeeper", jars.zookeeper)
    zookeeper.start()
    try:
        chaos = Chaos(folder, zookeeper.address, Plan(minutes * 60, seed, topics), click.echo)
        history = asyncio.run(chaos.run())
    finally:
        zookeeper.stop()
    broken = check(history)
    for line in broken[:100]:
        click.echo(f"BROKEN {line}")
    answers = [call.status for call in history.calls]
    counts = {str(status): answers.count(status) for status in sorted(set(answers), key=str)}
    epochs = ", ".join(f"{end.layout.topic} at epoch {end.layout.epoch}" for end in history.ends)
    click.echo(f"{len(history.layouts)} layouts seen, {len(history.holdings)} looks at who owns what; answers {counts}")
    click.echo(f"{epochs}; {len(broken)} rules broken; logs in {folder}" if broken else f"{epochs}; nothing found")
    if broken:
        sys.exit(1)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
