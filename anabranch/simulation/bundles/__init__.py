"""Simulation of balancers of bundles on a cluster: brokers, demand and cycles in virtual time.

- `fleet`    the contract: brokers with a CPU and a network card, bundles with demand over time
- `shapes`   synthetic fleets, by seed
- `reports`  broker reports, and the rule for when they are sent; `extensible`, those of the extensible load manager
- `run`      the minutes: reports, a cycle, unloads, deaths and joins
- `outcome`  the results
- `compare`  balancers on the same fleets, over shapes and seeds; `page`, the same as HTML

`anabranch whatif simulate --family bundles` compares them over shapes and seeds.
"""
