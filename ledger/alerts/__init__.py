"""Alerts off the lake: rules in SQL, evaluated as the lake grows, and told to people (docs/alerts.md).

Each module may import only those below it:

- `process`    parts and signals of `anabranch alerts`, and its metrics
- `evaluator`  rounds: ask every rule, record what changed, have it told
- `rehearsal`  what a rule would have said at another time
- `couriers`   brings notices to one destination each, again and again until they are told
- `asking`     a statement on the lake, as of an instant
- `posting`    what each kind of destination is told, and the POST that does it
- `record`     the table `alerts`, under a lease: alerts and notices, from which a restart goes on
- `addresses`  which addresses a destination may have
- `states`     pending, firing, resolved; pure
- `rules`      the file of rules
"""
