"""Answers of `anabranch sql` in each format, value by value: what a program reads is what the engine said."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import subprocess
import sys

import pyarrow as pa
import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st

from anabranch.cli.answers import _csv, _json, write_table
from anabranch.cli.main import cli
from anabranch.query.sql import LakeSql, SqlError


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """Settings with a lake that has nothing."""
    folder = tmp_path_factory.mktemp("formats")
    (folder / "settings.toml").write_text(f'[lake]\npath = "{folder / "lake"}"\n')
    return str(folder / "settings.toml")


def asked(settings, sql, output):
    ran = CliRunner().invoke(cli, ["-c", settings, "sql", sql, "--output", output], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    return ran.stdout_bytes.decode()


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_double_survives_csv_and_json(settings, value):
    sql = f"SELECT CAST('{value!r}' AS DOUBLE) AS x"
    [row] = csv.DictReader(io.StringIO(asked(settings, sql, "csv")))
    assert float(row["x"]) == value
    assert json.loads(asked(settings, sql, "json"))["x"] == value


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
@example("\uff20")
def test_text_survives_csv_and_json(settings, value):
    sql = f"SELECT '{value.replace(chr(39), chr(39) * 2)}' AS x, 1 AS y"
    rows = list(csv.reader(io.StringIO(asked(settings, sql, "csv"), newline="")))
    assert rows == [
        ["x", "y"],
        [f"'{value}" if value[:1] in tuple("=+-@\uff1d\uff0b\uff0d\uff20\t\r'") else value, "1"],
    ]
    assert json.loads(asked(settings, sql, "json"))["x"] == value


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("output", ["csv", "json"])
def test_terminal_obeys_no_answer(output):
    hostile = "a\x1b[2J\x9b\u202e\r\nb"
    reader = pa.RecordBatchReader.from_batches(
        pa.schema([("x", pa.string())]), [pa.record_batch({"x": [hostile]}, pa.schema([("x", pa.string())]))]
    )
    out = Terminal()
    {"csv": _csv, "json": _json}[output](reader, out, 10)
    assert all(line.rstrip("\r").isprintable() for line in out.getvalue().rstrip("\n").split("\n"))
    if output == "json":
        assert json.loads(out.getvalue()) == {"x": hostile}


def test_spreadsheet_finds_no_formula(settings):
    said = asked(settings, "SELECT '=HYPERLINK(1)' AS a, '-1' AS b, -1 AS c, '@x' AS d, '+1' AS e", "csv")
    assert said == "a,b,c,d,e\r\n'=HYPERLINK(1),'-1,-1,'@x,'+1\r\n"
    # Spreadsheets of some languages read full-width characters alike; bytes are shown as text.
    said = asked(settings, "SELECT '\uff1d1' AS a, '\uff20x' AS b, CAST('=1' AS BYTEA) AS c", "csv")
    assert said.splitlines()[1].startswith("'\uff1d1,'\uff20x,")
    assert not said.splitlines()[1].rpartition(",")[2].startswith("=")


def refuse_constant(name):
    raise AssertionError(f"{name} is no JSON")


def test_numbers_that_are_none_are_null_in_json(settings):
    sql = "SELECT CAST('NaN' AS DOUBLE) AS x, CAST('-Infinity' AS DOUBLE) AS y, [CAST('NaN' AS DOUBLE), 1.5] AS z"
    row = json.loads(asked(settings, sql, "json"), parse_constant=refuse_constant)
    assert row == {"x": None, "y": None, "z": [None, 1.5]}
    [row] = csv.DictReader(io.StringIO(asked(settings, sql, "csv")))
    assert (math.isnan(float(row["x"])), float(row["y"])) == (True, -math.inf)


def test_null_and_empty_text_differ_in_csv(settings):
    said = asked(settings, "SELECT CAST(NULL AS VARCHAR) AS a, '' AS b, 'x,\"y' AS c", "csv")
    assert said == 'a,b,c\r\n,"","x,""y"\r\n'


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ("1 AS x, 2 AS y", {"x": 1, "y": 2}),
        ("a.x, b.x", {"x": 1, "x_2": 2}),
        ("a.x, b.x, 3 AS x_2, b.x AS z", {"x": 1, "x_3": 2, "x_2": 3, "z": 2}),
    ],
)
def test_columns_of_one_name_are_numbered(settings, columns, expected):
    sql = f"SELECT {columns} FROM (SELECT 1 AS x) a CROSS JOIN (SELECT 2 AS x) b"
    assert json.loads(asked(settings, sql, "json")) == expected


def test_largest_unsigned_number_is_itself(settings):
    assert json.loads(asked(settings, "SELECT CAST(18446744073709551615 AS BIGINT UNSIGNED) AS x", "json")) == {
        "x": 2**64 - 1
    }


@pytest.mark.parametrize(
    "value",
    [
        "to_timestamp_seconds(99999999999999)",
        "to_timestamp_millis(-99999999999999)",
        "CAST('2026-01-01' AS DATE) + INTERVAL '90000 years'",
        # Beyond it the zone of a program may leave the calendar.
        "CAST('9999-12-31' AS DATE)",
    ],
)
def test_instant_that_no_calendar_has_is_an_error(tmp_path, value):
    with pytest.raises(SqlError, match="column x has instants outside of the years 1 to 9999"):
        LakeSql(str(tmp_path)).ask(f"SELECT {value} AS x").read_all()


def test_first_and_last_year_are_answered(tmp_path):
    sql = "SELECT arrow_cast('{}-01-01T00:00:00', 'Timestamp(Microsecond, None)')"
    sql = f"{sql.format('0001')} AS x, {sql.format('9999').removeprefix('SELECT ')} AS y"
    [row] = LakeSql(str(tmp_path)).ask(sql).read_all().to_pylist()
    assert (row["x"].year, row["y"].year) == (1, 9999)


@pytest.mark.parametrize("name", ["HOLDS_NOW", "Holds_Now", "holds_now", '"holds_now"'])
def test_unquoted_name_is_read_in_lower_case(tmp_path, name):
    assert LakeSql(str(tmp_path)).ask(f"SELECT SUBJECT, gate FROM {name}").read_all().num_rows == 0
    with pytest.raises(SqlError, match="there is no table or view HOLDS_NOW"):
        LakeSql(str(tmp_path)).ask('SELECT * FROM "HOLDS_NOW"')


def test_words_of_views_in_literals_stay(tmp_path):
    sql = "SELECT '$now' AS a, 'load_at(1)' AS b, '$first(x)' AS c -- $now\n, '$at' AS d"
    assert LakeSql(str(tmp_path)).ask(sql).read_all().to_pylist() == [
        {"a": "$now", "b": "load_at(1)", "c": "$first(x)", "d": "$at"}
    ]


def test_wide_characters_take_two_columns(tmp_path):
    out = io.StringIO()
    sql = "SELECT '漢字' AS x, 1 AS y UNION ALL SELECT 'ab' || chr(769), 2 ORDER BY y"
    write_table(LakeSql(str(tmp_path)).ask(sql), out, 10)
    assert out.getvalue().splitlines() == ["x     y", "----  -", "漢字  1", "ab\u0301    2"]


def test_wide_text_is_cut_at_the_width_of_a_cell(tmp_path):
    out = io.StringIO()
    write_table(LakeSql(str(tmp_path)).ask("SELECT repeat('漢', 100) AS x"), out, 10)
    assert out.getvalue().splitlines()[2] == "漢" * 29 + "…"


@pytest.mark.process
@pytest.mark.parametrize(
    ("utf8_mode", "output", "expected"),
    [
        ("0", "json", '{"x": "漢"}\n'.encode()),
        ("0", "csv", "x\r\n漢\r\n".encode()),
        ("0", "table", b"x\n------\n\\u6f22\n"),
        ("1", "table", b"x\n------\n\\u6f22\n"),
    ],
)
def test_ascii_locale_is_no_fault(settings, utf8_mode, output, expected):
    """The delivered settings are UTF-8 text whatever Python takes the locale's encoding to be."""
    command = [sys.executable, "-m", "anabranch", "-c", settings, "sql", "SELECT chr(28450) AS x", "--output", output]
    locale = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": utf8_mode, "PYTHONCOERCECLOCALE": "0"}
    environment = {**os.environ, **locale}
    ran = subprocess.run(command, env=environment, capture_output=True, timeout=120, check=True)
    assert ran.stdout == expected
