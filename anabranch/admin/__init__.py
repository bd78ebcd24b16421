"""Client of Pulsar 5's admin REST interface, which our controller implements too (design "REST").

Stage: under executor, collectors, command line, page and local run; faults of a server or the network are returned as
values. Each module may import only those above it:

- `answers`      results of a call as values, with the side at fault
- `paths`        paths of topics, subscriptions and policies in the interface
- `redirects`    which redirects are followed, and which get the token
- `connections`  pooled, with TLS, and bounded by a deadline, byte by byte
- `credentials`  the token of a call: fixed, or a temporary one from an identity provider
- `transport`    one exchange: address, token, redirects, bounded time and size
- `watch`        layouts pushed by the server
- `cluster`      calls about a cluster as a whole: its brokers and their load
- `load_data`    load data that brokers publish to one another
- `topics`       typed calls on scalable topics
- `bundles`      calls on bundles
- `plain`        calls on plain topics
"""
