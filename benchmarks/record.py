"""Figures of the benchmarks on record: one JSON file each, and RESULTS.md, made of all of them.

`python -m benchmarks.record` writes the page anew; a test compares it with the files.
"""

import ast
import json
import os
import platform
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click

FOLDER = Path(__file__).parent
PAGE = FOLDER / "RESULTS.md"
MOST_ROWS = 12
"""Of one table; longer ones are series, which are left to the JSON file."""
MOST_COLUMNS = 9
_INTRODUCTION = """# Figures on record

Written by `python -m benchmarks.record` from the JSON files beside it; `python -m benchmarks.NAME` measures one anew.
Series of more than {rows} rows are in the files only. Tables of the what-if tools: [backtest.txt](backtest.txt),
[profiles.txt](profiles.txt).
"""


def quick_command(main: Callable[[bool], None]) -> click.Command:
    """Make a benchmark's function a command with the option `--quick`."""
    return click.command()(click.option("--quick", is_flag=True, help="A short look: less of everything.")(main))


def machine_now() -> dict[str, Any]:
    """Return the machine, the interpreter and the load of the last minute."""
    cpus = Path("/proc/cpuinfo")
    models = [line for line in cpus.read_text().splitlines() if "model name" in line] if cpus.is_file() else []
    return {
        "processor": models[0].partition(":")[2].strip() if models else platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 1),
    }


def write_report(name: str, report: Mapping[str, Any]) -> None:
    """Put a benchmark's figures on record, with today's date, and write the page anew."""
    today = datetime.now(timezone.utc).date().isoformat()
    dated = {"date": "", "machine": machine_now(), **report} | {"date": today}
    (FOLDER / f"{name}.json").write_text(json.dumps(dated, indent=2) + "\n")
    PAGE.write_text(results_page())


def publish(name: str, report: Mapping[str, Any], quick: bool) -> None:
    """Print a benchmark's tables; put them on record too, unless it was only a quick look."""
    print("\n".join(_tables(dict(report), ())))
    if not quick:
        write_report(name, report)


def print_row(row: Mapping[str, Any]) -> None:
    """Print the figures of a row as soon as they are known."""
    print(_inline(row), flush=True)


def percentile(values: Iterable[float], share: float) -> float:
    """Return the value below which `share` of all are."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def recorded_report(name: str) -> dict[str, Any]:
    """Return the figures on record, empty if there are none."""
    file = FOLDER / f"{name}.json"
    return dict(json.loads(file.read_text())) if file.is_file() else {}


def results_page() -> str:
    """Return RESULTS.md as the files on record make it."""
    sections = [_INTRODUCTION.format(rows=MOST_ROWS)]
    for file in sorted(FOLDER.glob("*.json")):
        report = json.loads(file.read_text())
        purpose = (ast.get_docstring(ast.parse(file.with_suffix(".py").read_text())) or "").partition("\n")[0]
        facts = [report.pop(key) for key in ("date", "machine") if key in report]
        about = "; ".join(fact if isinstance(fact, str) else _inline(fact) for fact in facts)
        sections += [f"## {file.stem}\n\n{purpose}\n\n{about}\n", *_tables(report, ())]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(sections))


def _tables(value: Any, path: tuple[str, ...]) -> list[str]:
    """The tables that a part of a report makes."""
    title = f"**{', '.join(path)}**\n" if path else ""
    if path[-1:] == ("slowest",):
        return []  # instances, for whoever looks into the file
    if isinstance(value, list):
        rows = [_flat(row) for row in value if isinstance(row, dict)]
        return [f"{title}\n{_table(rows)}"] if 0 < len(rows) <= MOST_ROWS else []
    inner = {key: part for key, part in value.items() if isinstance(part, (dict, list))}
    plain = {key: part for key, part in value.items() if key not in inner}
    if inner and all(isinstance(part, dict) and not _is_nested(part) for part in inner.values()):
        flat = {key: _flat(part) for key, part in inner.items()}
        if len({tuple(part) for part in flat.values()}) == 1:
            rows = [{"": key, **part} for key, part in flat.items()]
            lead = [f"{title}\n{_inline(plain)}\n"] if plain else []
            return [*lead, f"{'' if lead else title}\n{_table(rows)}"] if len(rows) <= MOST_ROWS else []
    tables = [f"{title}\n{_inline(plain)}\n"] if plain else []
    for key, part in inner.items():
        if key == "machine":
            tables.append(f"{_inline(part)}\n")
        else:
            tables += _tables(part, (*path, key))
    return tables


def _is_nested(part: Mapping[str, Any]) -> bool:
    return any(isinstance(cell, list) and cell and isinstance(cell[0], dict) for cell in _flat(part).values())


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """Inner mappings as columns of their own."""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            flat |= {f"{key}, {inner}": cell for inner, cell in _flat(value).items()}
        else:
            flat[key] = value
    return flat


def _table(rows: list[dict[str, Any]]) -> str:
    """Wide and short ones stand on their side."""
    columns = [key for key in dict.fromkeys(key for row in rows for key in row) if _is_cell(rows, key)]
    cells = [columns, *([_cell(row.get(column, "")) for column in columns] for row in rows)]
    if len(columns) > MOST_COLUMNS > len(rows):
        cells = [list(line) for line in zip(*cells, strict=True)]
    cells.insert(1, ["---:" for _ in cells[0]])
    return "".join(f"|{'|'.join(line)}|\n" for line in cells)


def _is_cell(rows: list[dict[str, Any]], key: str) -> bool:
    """A series is none."""
    return not any(isinstance(row.get(key), list) and len(row[key]) > 3 for row in rows)


def _inline(facts: Mapping[str, Any]) -> str:
    cells = {key: value for key, value in _flat(facts).items() if not isinstance(value, list)}
    return ", ".join(f"{key} {_cell(value)}" for key, value in cells.items())


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_cell(part) for part in value)
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "/")


if __name__ == "__main__":
    PAGE.write_text(results_page())
