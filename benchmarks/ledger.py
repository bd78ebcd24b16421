"""Cost of every view on a large history: time, CPU time and memory, each in its own process.

`python -m benchmarks.ledger` makes the history first (`benchmarks.history`): 97 decisions and 2,100 loads of each of
10,000 topics, which is about a million decisions and 21 million loads. `--quick`: of 200 topics. `--topics`, `--lake`
(a folder that keeps it for the next run). The figures go to benchmarks/ledger.json.
"""

import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from anabranch.query.sql import LakeSql
from anabranch.query.views.catalogue import views
from benchmarks.history import TopicDay, topic_name, write_history
from benchmarks.processes import apart
from benchmarks.record import machine_now, print_row, publish

HOURS = 12.4
AT = "TIMESTAMP '2026-11-01 09:30:00'"


def questions() -> dict[str, str]:
    """By name: every view as a whole, what people ask of it, and of one topic."""
    topic = topic_name(77)
    queries = {
        "count of decisions by action": "SELECT action, reason, count(*) FROM decisions GROUP BY action, reason",
        "gates that hold now": "SELECT gate, count(*) FROM hold_intervals WHERE held_until IS NULL GROUP BY gate",
        "topics that flap": "SELECT topic, count(*) AS n FROM thrash GROUP BY topic ORDER BY n DESC LIMIT 10",
        "decisions of one topic": f"SELECT * FROM decision_outcomes WHERE subject = '{topic}' ORDER BY seq",
        "holds of one topic": f"SELECT * FROM hold_intervals WHERE subject = '{topic}' ORDER BY seq",
    }
    for view in views().values():
        source = f"{view.name}({AT})" if view.parameters else view.name
        wanted = ", ".join(f"max({column.name})" for column in view.columns)
        queries[source] = f"SELECT count(*), {wanted} FROM {source}"
    return queries


def ask(lake: str, name: str, once: bool) -> dict[str, Any]:
    """Best of two in this process (`once`: of one), each with an engine that knows nothing."""
    walls, begun = [], time.process_time()
    for _ in range(1 if once else 2):
        asked_at = time.perf_counter()
        rows = LakeSql(lake).ask(questions()[name]).read_all()
        walls.append(time.perf_counter() - asked_at)
    return {
        "seconds": round(min(walls), 3),
        "cpu_seconds": round((time.process_time() - begun) / len(walls), 3),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "first_column": rows[0][0].as_py() if rows.num_rows else None,
    }


@click.command()
@click.option("--quick", is_flag=True, help="A short look: 200 topics.")
@click.option("--topics", default=10_000, show_default=True)
@click.option("--lake", "kept", type=click.Path(path_type=Path), help="A folder that keeps the history.")
@click.option("--once", is_flag=True, help="Each question once.")
def main(quick: bool, topics: int, kept: Path | None, once: bool) -> None:
    """A table, and the file."""
    with tempfile.TemporaryDirectory() as folder:
        lake = kept or Path(folder) / "lake"
        if not (lake / "batches").is_dir():
            write_history(str(lake), TopicDay(HOURS, 1).run(), 200 if quick else topics)
        counts = {
            table: LakeSql(str(lake)).ask(f"SELECT count(*) AS n FROM {table}").read_all()["n"][0].as_py()
            for table in ("decisions", "holds", "outcomes", "events", "segment_load")
        }
        print(machine_now(), counts, flush=True)
        results = {}
        for name in questions():
            try:
                results[name] = apart(ask, str(lake), name, once)
            except Exception as error:
                print(f"{name:42} failed: {error!s:.120}", flush=True)
                continue
            print_row({name: results[name]})
    publish("ledger", {"machine": machine_now(), "rows": counts, "questions": results}, quick)


if __name__ == "__main__":
    main()
