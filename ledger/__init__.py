"""Read side of the lake: SQL views, explain, replay, backtest, alerts (design "Folders").

Neighbours: Delta only. `schemas.tables` describes the tables that it reads; `anabranch lake` shows them as they are,
and `docs/sql.md` has queries to start from.

- `explain`    reasons why a topic acts or holds at an instant, and what would change that
- `history`    a topic's segments over time: the river
- `replay`     every recorded decision and hold, taken again
- `simulate`   policies in virtual time
- `topics`     topics by the names that people give them
- `live`       current state of the fleet, kept up to date for the screen
- `summary`    events between two instants, for the report of a run
- `latencies`  every stage from a consumer event to the applied decision
- `shadow`     another scaler's actions beside the ones that we wanted
- `alerts`     rules on the lake, and the delivery of alerts
- `check`      integrity check of the lake, with a remedy for each fault
- `actions`    short names of the actions in `decisions`
"""
