"""The scalable-topic controller of PIP-468: one node or several, REST as in Pulsar 5, every change announced on Kafka.

The way of a request, and the rooms that it passes:

- `server` starts the process, `node` puts its parts together, `app` is the ASGI application;
- `access`: who calls, and what the token may do;
- `rest`: paths, bodies and status codes; nothing is decided there;
- `service`: operations on topics and policies (PIP-468 "ScalableTopicService"); `policies` reads and checks overrides;
- `namespaces`: which there are, and their overrides;
- `sessions`: subscriptions, consumers and which segments each of them reads ("SubscriptionCoordinator");
- `watch`: layouts pushed to clients ("DAG Watch Sessions");
- `operations`: split, merge and pruning, step by step, with a journal;
- `layouts`: topics as they are stored, and the one commit that a change becomes ("ScalableTopicResources");
- `leadership`: one leader for every topic, and the term that each write names;
- `outbox`: announcements, committed with their change; `publishing` sends them to Kafka;
- `housekeeping`: what a node does without being asked: failover, retries, pruning, release of idle topics;
- `segments`: the Kafka topics behind segments;
- `metadata`: the store of small values, on SQLite or ZooKeeper.

The executor is the usual caller; the streaming job is the usual listener. Layout arithmetic and policy rules are those
of `decisions`.
"""
