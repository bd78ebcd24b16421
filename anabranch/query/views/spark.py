"""Statements that register the views with Spark SQL, for callers with a session."""

import re

from anabranch.query.views.catalogue import View, in_order, views
from anabranch.query.views.dialects import SPARK
from anabranch.query.views.scanning import qualify
from schemas.tables.rows import TABLES


def spark_statements(database: str) -> dict[str, str]:
    """Return the statements that create the views and functions in a database with the tables, by name.

    Each comes after those that it needs; they are safe to repeat.
    """
    return {
        view.name: _function(view, database) if view.parameters else _view(view, database) for view in in_order(views())
    }


def _view(view: View, database: str) -> str:
    columns = ", ".join(f"{column.name} COMMENT {_text(column.meaning)}" for column in view.columns)
    return (
        f"CREATE OR REPLACE VIEW {database}.{view.name} ({columns}) COMMENT {_text(view.about)} "
        f"AS {_qualified(view, database)}"
    )


def _function(view: View, database: str) -> str:
    parameters, columns = (
        ", ".join(f"{column.name} {column.type.upper()} COMMENT {_text(column.meaning)}" for column in group)
        for group in (view.parameters, view.columns)
    )
    body = _qualified(view, database)
    for parameter in view.parameters:
        # With the function's name: tables have columns of that name.
        body = re.sub(rf"\${parameter.name}\b", f"{view.name}.{parameter.name}", body)
    return (
        f"CREATE OR REPLACE FUNCTION {database}.{view.name}({parameters}) RETURNS TABLE ({columns}) "
        f"COMMENT {_text(view.about)} RETURN {body}"
    )


def _qualified(view: View, database: str) -> str:
    # What a function reads is looked up where it is asked, not where it was made.
    return qualify(view.sql(SPARK), {*TABLES, *views()}, database)


def _text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
