"""`python -m tests.harness.chaos --minutes 30 [--seed 7] [--kafka]`: controllers and ZooKeepers under faults.

Runs three controllers on three ZooKeepers.

One line a minute and a summary. The exit code is 1 when a rule of `tests.harness.chaos.checker` was broken or things
did not come to rest. Either ends the run and keeps the controllers' logs.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import click

from anabranch.local.broker import EmbeddedBroker, create_topics
from anabranch.local.setup import ensure_jars
from schemas.settings.root import load_settings
from tests.harness.chaos.run import Chaos, Plan
from tests.harness.ensemble import ZooKeeperEnsemble


@click.command()
@click.option("--minutes", type=float, default=1.0, show_default=True, help="How long to run.")
@click.option("--seed", type=int, help="Seed of all random choices.  [default: a new one, which is printed]")
@click.option("--topics", type=int, default=3, show_default=True)
@click.option("--kafka", is_flag=True, help="With a broker, for segment topics, messages and announcements.")
@click.option(
    "--record", type=click.Path(dir_okay=False, path_type=Path), help="Write what was seen to this file, JSON."
)
def main(minutes: float, seed: int | None, topics: int, kafka: bool, record: Path | None) -> None:
    """Run random calls and sessions under kill -9, SIGSTOP and cut links, and check continuously."""
    jars = ensure_jars(load_settings(), click.echo)
    seed = random.randrange(10_000) if seed is None else seed
    click.echo(f"repeat these choices with --seed {seed}")
    folder = Path(tempfile.mkdtemp(prefix="anabranch-chaos-"))
    with ExitStack() as stack:
        bootstrap = None
        if kafka:
            broker = EmbeddedBroker(folder / "kafka", jars.kafka, heap="512m")
            broker.start()
            stack.callback(broker.stop)
            create_topics(broker.connection)
            bootstrap = broker.bootstrap
        ensemble = ZooKeeperEnsemble(folder / "ensemble", jars.zookeeper)
        stack.callback(ensemble.stop)
        ensemble.start()
        chaos = Chaos(folder, ensemble, Plan(minutes * 60, seed, topics), click.echo, bootstrap)
        broken = asyncio.run(chaos.run())
    if record is not None:
        about = {"minutes": minutes, "seed": seed, "topics": topics, "kafka": kafka, "cores": os.cpu_count()}
        seen = {**vars(chaos.totals), "changes": chaos.totals.changes, "faults": dict(chaos.faults), "broken": broken}
        record.write_text(json.dumps({"run": about, "seen": seen}, indent=2, sort_keys=True) + "\n")
    for line in broken[:100]:
        click.echo(f"BROKEN {line}")
    totals = chaos.totals
    answers = ", ".join(f"{count} {answer}" for answer, count in sorted(totals.answers.items()))
    click.echo(
        f"{totals.layouts} layouts seen, {totals.announcements} announcements, "
        f"{totals.assignments} looks at who owns what at rest, "
        f"{totals.held} times a segment was held, at most {totals.longest_overlap_s:.2f} s by two; answers: {answers}"
    )
    epochs = ", ".join(f"{end.layout.topic} at epoch {end.layout.epoch}" for end in chaos.ends)
    click.echo(f"{epochs}; {len(broken)} rules broken; logs in {folder}" if broken else f"{epochs}; nothing found")
    if broken:
        sys.exit(1)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
