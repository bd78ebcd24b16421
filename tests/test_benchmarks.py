"""What a benchmark does is asked for before it is run: it takes minutes, and writes what the release says of itself."""

from __future__ import annotations

import json
import sys
from importlib import import_module

import pytest

from benchmarks import profiles, record
from benchmarks.__main__ import BENCHMARKS
from benchmarks.growth import is_enough


@pytest.mark.parametrize("name", sorted({"__main__", "reality", "soak", *BENCHMARKS}))
def test_help_is_printed_and_nothing_is_run(name, monkeypatch, capsys):
    main = import_module(f"benchmarks.{name}").main
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert "usage:" in capsys.readouterr().out.lower()


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([], False),
        ([9.0], False),
        ([9.0, 1.0], False),
        ([1.0, 1.04], True),
        ([9.0, 1.04, 1.0], True),
        ([1.0, 1.2, 1.4, 1.6], False),
        ([1.0, 1.2, 1.4, 1.6, 1.8], True),
        ([40.0], False),
        ([10.0, 20.0], True),
    ],
)
def test_rounds_repeated_until_best_agree(seconds, expected):
    assert is_enough(seconds) is expected


def test_results_page_shows_figures_on_record():
    assert record.PAGE.read_text() == record.results_page(), "run: python -m benchmarks.record"


def test_guide_to_profiles_shows_figures_on_record():
    guide = profiles.GUIDE.read_text()
    assert guide == profiles.guide_with(profiles.PAGE.read_text(), guide), "run: python -m benchmarks.profiles"
    assert "| uniform | 0 | 10,846 → 9,428 | 8,600 | 1.70 → 1.47 | 47 → 40 |" in guide


def test_guide_has_a_row_for_both_profiles():
    figures = """\
<!-- shapes: begin -->
| demand | profile | splits | merges | reversals | segment-h | most | min over | slack % | clients moved |
|---|---|---|---|---|---|---|---|---|---|
| a step | pip-483 | 3 | 1 | 0 | 20 | 9 | 8.5 (9) | 30 | 44 |
|        | default | 4 | 1 | 0 | 21 | 9 | 0.5 | 31 | 55 |
<!-- shapes: end -->
"""
    columns = (profiles.GUIDE_COLUMNS[0],)
    page = profiles.guide_with(figures, "before\n<!-- shapes: begin -->\nold\n<!-- shapes: end -->\nafter\n", columns)
    assert "| demand | splits | merges | reversals | min over | segment-h | slack % | clients moved |\n" in page
    row = "| a step | 3 → 4 | 1 | 0 | 8.5 (9) → 0.5 | 20 → 21 | 30 → 31 | 44 → 55 |\n"
    assert page.endswith(f"{row}<!-- shapes: end -->\nafter\n")
    assert page.startswith("before\n")
    assert "old" not in page


def test_report_is_dated_and_shown(monkeypatch, tmp_path):
    monkeypatch.setattr(record, "FOLDER", tmp_path)
    monkeypatch.setattr(record, "PAGE", tmp_path / "RESULTS.md")
    (tmp_path / "walk.py").write_text('"""Speed of a walk."""\n')
    (tmp_path / "walk.json").write_text('{"date": "2001-01-01", "rows": []}')
    rows = [{"legs": 2, "km": {"an hour": 5.25}}, {"legs": 4, "km": {"an hour": 48_000.5}}]
    record.write_report("walk", {**record.recorded_report("walk"), "rows": rows, "note": "uphill"})
    page = record.PAGE.read_text()
    assert "2001" not in page
    assert "## walk\n\nSpeed of a walk.\n" in page
    assert "note uphill\n" in page
    assert "|legs|km, an hour|\n|---:|---:|\n|2|5.25|\n|4|48,000|\n" in page


def test_long_series_stays_in_its_file(monkeypatch, tmp_path):
    monkeypatch.setattr(record, "FOLDER", tmp_path)
    (tmp_path / "walk.py").write_text('"""Speed of a walk."""\n')
    (tmp_path / "walk.json").write_text(json.dumps({"steps": [{"a": number} for number in range(13)]}))
    assert "steps" not in record.results_page()
