"""The pages, a module each: from a request to what its template shows.

- `fleet`       every topic a row
- `topic`       one topic: its river, its gates, its policy, its consumers
- `decision`    one decision: what it saw, what became of it, and the buttons of a person
- `operations`  who acts, what brakes them, how the job does
- `bundles`     clusters with bundles: brokers, what they have, what was moved
- `switches`    moves to another BookKeeper cluster, phase by phase
- `reports`     files of shadow, backtest, suggest and simulate
- `choosing`    search, filters, order and paging of the fleet; pure
- `summary`     the numbers above the fleet; `consumers`, a part of the page of a topic
- `windows`     the time that a page shows, from its address; pure
"""
