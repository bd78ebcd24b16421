"""Questions in SQL without a JVM: answers, what is refused, and what errors name."""

from __future__ import annotations

import csv
import io
import json
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from anabranch.cli.main import cli
from anabranch.cli.sql_prompt import LakeCompleter, is_whole
from anabranch.query import sql
from anabranch.query.sql import LakeSql, SqlError, memory_of_the_machine_mb
from schemas.tables.arrow import arrow_schema
from schemas.tables.rows import BATCHES, DEAD_LETTERS


@pytest.fixture
def settings(lake, tmp_path):
    """A settings file with the recorded lake."""
    file = tmp_path / "settings.toml"
    file.write_text(f'[lake]\npath = "{lake}"\n')
    return str(file)


def asked(settings, *arguments, text=None):
    return CliRunner().invoke(cli, ["-c", settings, "sql", *arguments], input=text, catch_exceptions=False)


GATES = "SELECT subject, gate, held_until FROM hold_intervals WHERE held_until IS NULL ORDER BY subject"


def test_an_answer_is_a_table_json_csv_or_parquet(settings, tmp_path):
    rows = [json.loads(line) for line in asked(settings, GATES, "--output", "json").stdout.splitlines()]
    assert [row["held_until"] for row in rows] == [None] * len(rows)
    assert rows
    table = asked(settings, GATES).stdout.splitlines()
    assert (table[0].split(), len(table)) == (["subject", "gate", "held_until"], len(rows) + 2)
    cells = list(csv.DictReader(io.StringIO(asked(settings, GATES, "--output", "csv").stdout)))
    assert [row["gate"] for row in cells] == [row["gate"] for row in rows]
    file = tmp_path / "answer.parquet"
    assert asked(settings, GATES, "--output", "parquet", "--file", str(file)).exit_code == 0
    assert pq.read_table(file)["gate"].to_pylist() == [row["gate"] for row in rows]


def test_a_table_is_cut_at_the_limit_and_says_so(settings):
    ran = asked(settings, "SELECT seq FROM decisions", "--limit", "2")
    assert len(ran.stdout.splitlines()) == 5
    assert "more: --limit, or --output csv" in ran.stdout


def test_a_statement_is_read_from_standard_input(settings):
    assert asked(settings, "--output", "json", text="SELECT 1 AS one;\n").stdout == '{"one": 1}\n'


def test_views_and_their_columns_are_listed(settings):
    assert "  load_at(at) " in asked(settings, "--views").stdout
    assert "  seconds_between" in asked(settings, "--views", "thrash").stdout
    assert "How many of" not in asked(settings, "--views", "decisions").stdout
    ran = asked(settings, "--views", "trash")
    assert (ran.exit_code, "nearest: thrash" in ran.output) == (1, True)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("SELECT * FROM thrsh", "there is no table or view thrsh; nearest: thrash"),
        ("SELECT desided_at FROM decisions", "there is no column desided_at here; nearest: decided_at"),
        ("SELECT d.subjcet FROM decisions d", "there is no column subjcet here; nearest: subject"),
        ("SELECT topic FROM holds_now", "there is no column topic here; there are family, subject, gate, measured"),
        ("SELECT * FROM load_at", r"load_at is asked with an instant: load_at\(TIMESTAMP "),
        ("SELECT * FROM load_at(now()", "the parenthesis behind load_at is not closed"),
        ("SELECT 1; SELECT 2", "one statement at a time"),
        (" ; ", "there is no statement"),
        ("SELECT * FROM layout_at('x')", "Error parsing timestamp from 'x'"),
        ("SELECT * FROM holds WHERE day = 'foo'", "Cannot cast string 'foo' to value of Date32 type"),
    ],
)
def test_an_error_names_what_is_nearest(lake, statement, said):
    with pytest.raises(SqlError, match=said):
        LakeSql(lake).ask(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO batches SELECT * FROM batches",
        "EXPLAIN ANALYZE INSERT INTO batches SELECT * FROM batches",
        "WITH a AS (SELECT 1) INSERT INTO batches SELECT * FROM batches",
        "COPY batches TO 'x.csv'",
        "DROP VIEW thrash",
        "CREATE TABLE t AS SELECT 1",
        "SET x = 1",
    ],
)
def test_nothing_can_be_changed(lake, statement):
    before = LakeSql(lake).ask("SELECT count(*) AS n FROM batches").read_all()
    with pytest.raises(SqlError, match="nothing can be changed here"):
        LakeSql(lake).ask(statement)
    assert LakeSql(lake).ask("SELECT count(*) AS n FROM batches").read_all() == before


CHANGES = [
    "COPY (SELECT 1 AS a) TO '$file' STORED AS CSV",
    "ANALYZE COPY (SELECT 1 AS a) TO '$file' STORED AS CSV",
    "EXPLAIN ANALYZE COPY (SELECT 1 AS a) TO '$file' STORED AS CSV",
    "EXPLAIN VERBOSE ANALYZE COPY (SELECT 1 AS a) TO '$file' STORED AS CSV",
    "EXPLAIN (ANALYZE) COPY (SELECT 1 AS a) TO '$file' STORED AS CSV",
    "CREATE EXTERNAL TABLE found STORED AS CSV LOCATION '/etc/hostname'",
    "CREATE TABLE found AS SELECT 1 AS a",
    "SELECT 1 AS a INTO found",
    "CREATE VIEW found AS SELECT 1 AS a",
    "INSERT INTO batches SELECT * FROM batches",
    "SET datafusion.catalog.information_schema = 'true'",
    "DROP VIEW batches",
    "PREPARE found AS SELECT 1",
]
COVERS = [
    "{}",
    "-- x\n{}",
    "/* x */ {}",
    "/* /* */ select ' */ {} --'",
    "/* /* */ */ {}",
    "/* ' */ {} -- '",
    "--'\n{} --'",
    "select E'\\' ; {} --'",
    "select $a$ ' $a$ ; {} --'",
    "(SELECT 1); {}",
    "SELECT 1; {}",
    "SELECT * FROM ({})",
    "WITH a AS ({}) SELECT * FROM a",
    "WITH a AS (SELECT 1) {}",
    "SELECT R'\\' ; {} --'",
    'SELECT 1 AS "\\"; {} --"',
    "SELECT 1 AS `\\`; {} --`",
    "EXPLAIN {}",
    "DESCRIBE {}",
    "/*/*/*/**/*/*/*/ {}",
    "SELECT '\\'; {} --'",
    "/**/{}/**/",
]


@pytest.mark.parametrize("cover", COVERS)
def test_no_spelling_changes_anything(lake, tmp_path, cover):
    file, engine = tmp_path / "out.csv", LakeSql(lake)
    before = engine.ask("SELECT count(*) AS n FROM batches").read_all()
    for change in CHANGES:
        with suppress(SqlError):
            engine.ask(cover.format(change.replace("$file", str(file)))).read_all()
        assert not file.exists()
        with pytest.raises(SqlError, match="there is no table or view found"):
            engine.ask("SELECT * FROM found")
        assert engine.ask("SELECT count(*) AS n FROM batches").read_all() == before


@given(
    st.lists(
        st.sampled_from(["/*", "*/", "'", '"', "`", "--", "\n", "$$", "E", " select ", ";", "$change"]), max_size=14
    )
)
def test_quotes_and_comments_change_nothing(tmp_path_factory, parts):
    folder = tmp_path_factory.getbasetemp() / "mixed"
    change = f"COPY (SELECT 1 AS a) TO '{folder}/out.csv' STORED AS CSV"
    with suppress(SqlError):
        LakeSql(str(folder / "lake"), memory_mb=64).ask("".join(parts).replace("$change", change)).read_all()
    assert not (folder / "out.csv").exists()


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT count(*) AS \"insert\", 'copy into' AS b FROM batches",
        "EXPLAIN SELECT 1",
        "EXPLAIN ANALYZE SELECT 1",
        "EXPLAIN VERBOSE SELECT 1",
        "EXPLAIN FORMAT TREE SELECT 1",
        "DESCRIBE batches",
        "VALUES (1)",
        "/* a /* nested */ comment */ SELECT 1 -- and another",
        "SELECT 1 UNION SELECT 2",
        "SELECT 1 ORDER BY 1",
        "WITH RECURSIVE a AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM a WHERE n < 3) SELECT * FROM a",
        "SELECT unnest([1, 2])",
        "SELECT * FROM batches a CROSS JOIN batches b",
        "SELECT DISTINCT samples FROM batches",
        "SELECT * FROM batches a LEFT JOIN batches b USING (samples)",
        "SELECT '/* no comment', '--' AS b",
        "SELECT row_number() OVER (ORDER BY samples) FROM batches",
        "SELECT * FROM batches WHERE samples > 1e9",
        "SELECT * FROM batches WHERE samples IN (SELECT max(samples) FROM batches)",
        "SELECT 1 WHERE false",
    ],
)
def test_questions_are_answered(lake, statement):
    assert LakeSql(lake).ask(statement).read_all().schema.names


def test_missing_tables_empty_and_new_columns_null(tmp_path):
    schema = arrow_schema(BATCHES.row)
    old = schema.remove(schema.get_field_index("samples_refused"))
    at = pa.scalar(1_795_341_600_000_000, pa.int64())
    row = [pa.array([1 if pa.types.is_integer(one.type) else 0]).cast(pa.int64()) for one in old]
    row = [
        pa.array(["x"])
        if pa.types.is_string(one.type)
        else pa.array([at.as_py()]).cast(one.type)
        if pa.types.is_timestamp(one.type)
        else pa.array([20_000], pa.int32()).cast(one.type)
        if pa.types.is_date(one.type)
        else array.cast(one.type)
        for one, array in zip(old, row, strict=True)
    ]
    write_deltalake(tmp_path / "batches", pa.table(row, schema=old), partition_by=["day"])
    lake = LakeSql(str(tmp_path))
    assert lake.ask("SELECT messages, samples_refused FROM batches").read_all().to_pylist() == [
        {"messages": 1, "samples_refused": None}
    ]
    assert lake.ask("SELECT * FROM dead_letters").read_all().schema.names == list(DEAD_LETTERS.row.model_fields)
    assert lake.ask("SELECT topics, decisions_open FROM fleet_health").read_all().to_pylist() == [
        {"topics": 0, "decisions_open": 0}
    ]


def completions(text):
    return {one.text for one in LakeCompleter().get_completions(Document(text), CompleteEvent())}


def test_prompt_completes_views_and_columns():
    assert {"thrash"} <= completions("SELECT * FROM thr")
    assert {"undone_by", "undone_at"} <= completions("SELECT a FROM thrash WHERE undone_")
    assert "undone_by" not in completions("SELECT a FROM holds WHERE undone_")


def test_enter_asks_when_a_statement_is_whole():
    assert [is_whole(text) for text in ("SELECT 1;", "SELECT 1", "\\views", "", "quit")] == [
        True,
        False,
        True,
        True,
        True,
    ]


def test_query_beyond_memory_ends_next_is_answered(lake):
    asking = LakeSql(lake, memory_mb=2)
    with pytest.raises(SqlError, match=r"needs more memory .*narrow it by a topic or a time"):
        asking.ask("SELECT array_agg(md5(CAST(value AS VARCHAR))) FROM generate_series(1, 1000000)").read_all()
    assert asking.ask("SELECT count(*) AS n FROM decisions").read_all()["n"][0].as_py() > 0


def test_container_memory_counts_when_smaller(tmp_path, monkeypatch):
    of_the_machine = memory_of_the_machine_mb.__wrapped__()
    said = {"none": "max", "less": str(64 * 2**20), "version 1 without one": str(2**63 - 4096)}
    found = {}
    for name, text in said.items():
        (tmp_path / name).write_text(f"{text}\n")
        monkeypatch.setattr(sql, "_LIMITS", (str(tmp_path / name), str(tmp_path / "not there")))
        found[name] = memory_of_the_machine_mb.__wrapped__()
    assert found["less"] == 64
    assert found["none"] == found["version 1 without one"] >= of_the_machine
