"""The views over the lake: one SQL text each, the same for every engine, with what every column means.

Stage: the read end; `anabranch sql` asks them without a JVM, `anabranch lake register` makes them known to Spark SQL.
A view's name and columns are stable: a column is added at the end, and one that means something else is a new view or
a new `version`. docs/views.md is made from them (`python -m ledger.views.page > docs/views.md`).

- `sql/`        the texts
- `catalogue`   a text with its description: view, or function of an instant
- `scanning`    where words and calls are in a text of SQL
- `dialects`    what the engines say differently
- `spark`       the statements that make them known to Spark
- `page`        the page in docs/
"""
