"""Have a real Prometheus scrape a local run with a Pulsar: `python -m tests.harness.panels --minutes 4`.

Prints every query of the dashboards, and every metric of the alert rules, that still has no series then, and ends with
1 if there are others than those of what did not happen.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from anabranch.local.broker import free_ports
from tests.deploy.prometheus import RealPrometheus
from tests.local.running import Run, end

JOBS = {"stream": "anabranch-stream", "executor": "executor", "collect": "collector", "web": "page"}
"""Sections with a metrics port to Prometheus' names of jobs."""
RARE = "split_suppressed_max_segments"
"""In the query that has series only when a topic reaches its limit of segments."""


def unanswered_after(minutes: float, folder: Path) -> set[str]:
    """Return the queries without a series; looks again until there is none, or the time is over."""
    ports = dict(zip(JOBS, free_ports(len(JOBS)), strict=True))
    os.environ |= {f"ANABRANCH_{section.upper()}__METRICS_PORT": str(port) for section, port in ports.items()}
    prometheus = RealPrometheus(folder / "prometheus", {JOBS[section]: port for section, port in ports.items()})
    prometheus.start()
    run = Run(folder, "--pulsar")
    try:
        deadline = time.monotonic() + minutes * 60
        while (queries := prometheus.unanswered_queries()) and time.monotonic() < deadline:
            if all(RARE in query for query in queries):
                break
            time.sleep(5)
        return queries
    finally:
        run.process.send_signal(signal.SIGTERM)
        run.process.wait(180)
        end(run)
        prometheus.end()


def main() -> int:
    """Print the queries and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=4)
    with TemporaryDirectory() as folder:
        queries = unanswered_after(parser.parse_args().minutes, Path(folder))
    for query in sorted(queries):
        print(f"no series: {query}")
    return int(any(RARE not in query for query in queries))


if __name__ == "__main__":
    raise SystemExit(main())
