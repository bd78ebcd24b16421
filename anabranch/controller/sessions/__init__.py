"""Consumer sessions and the segments assigned to each consumer (PIP-468 "SubscriptionCoordinator").

In the order of a registration: `connections` carries messages, `manager` runs the sessions of the topics that this node
leads, `stored` loads them, `registry` stores subscriptions and consumers, `coordinator` is the state of one
subscription as a value, `assignment` distributes segments over consumers, and `messages` defines the messages to
consumers.
"""
