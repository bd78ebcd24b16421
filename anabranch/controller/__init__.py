"""Scalable-topic controller of PIP-468, on one node or several.

Serves Pulsar 5's REST interface and announces every change on Kafka.

Packages and modules in the order in which a request passes them:

- `server` starts the process, `node` assembles its parts, `app` is the ASGI application;
- `access`: authentication and authorization by token;
- `rest`: paths, bodies and status codes; no decisions;
- `service`: operations on topics and policies (PIP-468 "ScalableTopicService"); `policies` reads and checks overrides;
- `namespaces`: existing namespaces and their overrides;
- `sessions`: subscriptions, consumers and the segments assigned to each ("SubscriptionCoordinator");
- `watch`: layouts pushed to clients ("DAG Watch Sessions");
- `operations`: split, merge and pruning, step by step, with a journal;
- `layouts`: stored topics, and the one commit that makes a change ("ScalableTopicResources");
- `leadership`: one leader for every topic, and the term named by each write;
- `outbox`: announcements, committed with their change; `publishing` sends them to Kafka;
- `housekeeping`: background work of a node: failover, retries, pruning, release of idle topics;
- `segments`: the Kafka topics behind segments;
- `metadata`: the store of small values, on SQLite or ZooKeeper.

The executor is the usual caller; the streaming job is the usual listener. Layout arithmetic and policy rules come from
`decisions`.
"""
