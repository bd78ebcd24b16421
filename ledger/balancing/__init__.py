"""What a balancer of bundles would do with a cluster: brokers, demand and cycles in virtual time.

- `fleet`    the contract: brokers with a CPU and a network card, bundles with demand over time
- `shapes`   fleets that are made up, by seed
- `reports`  what brokers report of it, and when; `extensible`, what those of the extensible load manager publish
- `run`      the minutes: reports, a cycle, unloads, deaths and joins
- `outcome`  what came of it
- `compare`  balancers on the same fleets, over shapes and seeds; `page`, the same as HTML
- `best`     profile `default` beside upstream's best pair on each shape

`python -m ledger.balancing SHAPE BALANCER…` shows a table, and
`anabranch simulate --family bundles` compares them over shapes and seeds.
"""
