"""The read side of the lake: SQL views, explain, replay, backtest, alerts (DESIGN section 3).

Neighbours: Delta only. The tables that it reads are described in `schemas.tables`; `anabranch lake` shows them as they
are, and `docs/sql.md` has the queries that people start from.
"""
