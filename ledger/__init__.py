"""The read side of the lake: SQL views, explain, replay, backtest, alerts (design "Folders").

Neighbours: Delta only. The tables that it reads are described in `schemas.tables`; `anabranch lake` shows them as they
are, and `docs/sql.md` has the queries that people start from.

- `explain`    why a topic acts or holds at an instant, and what would change that
- `history`    a topic's segments over time: the river
- `replay`     every decision and hold on record, taken again
- `simulate`   what policies would do, in virtual time
- `topics`     topics by the names that people give them
- `live`       the fleet as it stands, kept up to date: what the screen draws
- `summary`    what happened between two instants: what a run's report says
- `latencies`  every stage from a consumer event to the applied decision
- `shadow`     what another scaler did, beside what we wanted
- `alerts`     rules on the lake, and who is told
- `check`      whether the lake is whole, and what to do where it is not
- `actions`    what a row of `decisions` is about, in short
"""
