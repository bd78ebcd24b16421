"""Alerts off the lake: rules in SQL, evaluated as the lake grows, and sent to people (docs/alerts.md).

Each module may import only those below it:

- `process`    parts and signals of `anabranch serve alerts`, and its metrics
- `evaluator`  rounds: ask every rule, record the changes, have them sent
- `notifiers`  delivery to one destination each, with retries
- `asking`     a statement on the lake, as of an instant; rehearsal of a rule at another time
- `posting`    the message for each kind of destination, and the POST
- `record`     the table `alerts`, under a lease: alerts and notices, from which a restart continues
- `addresses`  addresses that a destination may have
- `states`     pending, firing, resolved; pure
- `rules`      the file of rules
"""
