"""The texts of the views are described, and their page is made from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.query.views.catalogue import in_order, views, write_out
from anabranch.query.views.page import page
from anabranch.query.views.scanning import names, qualify, rewrite_calls, sources, statements
from schemas.tables.rows import TABLES

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_the_page_says_what_the_texts_say():
    assert (DOCS / "views.md").read_text() == page(), "python -m anabranch.query.views.page > docs/views.md"


@pytest.mark.parametrize("view", views().values(), ids=lambda view: view.name)
def test_view_described_and_reads_existing_tables(view):
    assert (view.version >= 1, bool(view.about), bool(view.columns)) == (True, True, True)
    assert view.name not in TABLES
    common = {name.lower() for name in sources(view.text)} - {*TABLES, *views()}
    assert all(f"{name} AS (" in view.text for name in common)


def test_a_view_comes_behind_those_that_it_needs():
    order = [view.name for view in in_order(["fleet_health_at"])]
    assert order.index("layout_spans") < order.index("consumers_waiting") < order.index("fleet_health_at")


def test_quoted_and_commented_calls_stay():
    sql = "SELECT 'load_at(1)', \"load_at\", /* load_at(2) */ load_at -- load_at(3)\nFROM load_at"
    assert write_out(sql) == sql


def test_argument_may_contain_commas_and_calls():
    def written(arguments):
        return "|".join(arguments)

    assert rewrite_calls("a $f(g(1, ')'), $f(2)) b", {"$f": written}) == "a g(1, ')')|2 b"
    with pytest.raises(ValueError, match=r"the parenthesis behind \$f is not closed"):
        rewrite_calls("$f(1, (2)", {"$f": written})


def test_a_wrong_number_of_arguments_is_said():
    with pytest.raises(ValueError, match=r"load_at\(at\) takes 1 argument, not 2"):
        write_out("SELECT * FROM load_at(1, 2)")


def test_only_table_references_get_database():
    sql = "SELECT holds FROM holds h JOIN other ON holds.a = 'from holds'"
    assert qualify(sql, {"holds"}, "d") == sql.replace("FROM holds", "FROM d.holds")


def test_a_semicolon_in_a_literal_ends_no_statement():
    assert statements("SELECT ';' ; -- no more;\n;") == ["SELECT ';'"]
    assert names('SELECT a FROM "Thrash"') == {"select", "a", "from", "Thrash"}
