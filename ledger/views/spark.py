"""The statements that make the views known to Spark SQL, for whoever has a session (`streaming.catalog`).

Stage: under `anabranch lake register`.
"""

from __future__ import annotations

import re

from ledger.views.catalogue import View, in_order, views
from ledger.views.dialects import SPARK


def spark_statements() -> dict[str, str]:
    """By name what makes each view or function, those behind that need others; safe to repeat."""
    return {view.name: _function(view) if view.parameters else _view(view) for view in in_order(views())}


def _view(view: View) -> str:
    columns = ", ".join(f"{column.name} COMMENT {_text(column.meaning)}" for column in view.columns)
    return f"CREATE OR REPLACE VIEW {view.name} ({columns}) COMMENT {_text(view.about)} AS {view.sql(SPARK)}"


def _function(view: View) -> str:
    parameters = ", ".join(
        f"{one.name} {one.type.upper()} COMMENT {_text(one.meaning)}" for one in view.parameters
    )  # fmt: skip
    columns = ", ".join(f"{one.name} {one.type.upper()} COMMENT {_text(one.meaning)}" for one in view.columns)
    body = view.sql(SPARK)
    for one in view.parameters:
        # Qualified: tables have columns of that name.
        body = re.sub(rf"\${one.name}\b", f"{view.name}.{one.name}", body)
    return (
        f"CREATE OR REPLACE FUNCTION {view.name}({parameters}) RETURNS TABLE ({columns}) "
        f"COMMENT {_text(view.about)} RETURN {body}"
    )


def _text(said: str) -> str:
    return "'" + said.replace("\\", "\\\\").replace("'", "\\'") + "'"
