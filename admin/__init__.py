"""The one client of the admin REST interface of Pulsar 5, which our controller has as well (design "REST").

Stage: under executor, command line, lab and collectors; any fault of a server or the network comes back as a value.
Each module may import only those above it:

- `answers`      what can come back, as values, and by whose fault
- `paths`        where in the interface a topic, a subscription or a policy is
- `redirects`    whether a redirect is followed, and whether it gets the token
- `connections`  pooled, behind TLS, and bound by a deadline, byte by byte
- `credentials`  the token of a call: fixed, or given by an identity provider for a while
- `transport`    one exchange: address, token, redirects, bounded time and size
- `watch`        layouts as the server pushes them
- `cluster`      the calls that tell of a cluster as a whole: its brokers and their load
- `topics`       the calls of scalable topics, typed
"""
