"""Views over the lake: one SQL text each, the same for every engine, with the meaning of every column.

Stage: the read end; `anabranch sql` asks them without a JVM, `anabranch lake register` registers them with Spark SQL.
A view's name and columns are stable: a column is added at the end, and a column with another meaning is a new view or
a new `version`. docs/views.md is made from them (`python -m anabranch.query.views.page > docs/views.md`).

- `sql/`        the texts
- `catalogue`   a text with its description: view, or function of an instant
- `scanning`    positions of words and calls in a text of SQL
- `dialects`    differences between the engines
- `spark`       the statements that register them with Spark
- `page`        the page in docs/
"""
