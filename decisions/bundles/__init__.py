"""Rules for unloading, placing and splitting bundles: Pulsar's own broker load balancer.

In the order in which a cycle meets them:

- `configuration`, `numbers`      settings by their upstream names with each version's defaults; Java's numbers
- `fixes`                         what a later release decides otherwise, each as a switch that a profile sets
- `usage`, `averages`             a broker's usage; a bundle's short- and long-term averages
- `cluster`, `memory`             what one cycle sees and remembers
- `gates`, `account`              every reason for leaving a broker or a bundle alone, and the list that a cycle makes
- `candidates`                    whom isolation, anti-affinity, topic cap and versions let through
- `patterns`                      the regular expressions of isolation policies, in linear time
- `projected`, `projection`       usage as it will be with all moves under way, for profile `default`
- `shedders`                      a module a strategy: which bundles should leave which broker
- `placement`                     a module a strategy: where a bundle goes
- `splits`, `boundaries`          which bundles are split, and where
- `shedding`, `decide`            the cycle's driver, and the entry
- `reports`                       whether a load report is written; reports that come twice
- `channel`                       who owns a bundle, as brokers with the extensible manager agree on it

Everything that upstream keeps in memory between cycles comes in with the snapshot and goes out with the answer.
"""
