"""Ownership channel of PIP-192: a state machine of who has a bundle, without broker, topic or clock.

In the order in which a change goes:

- `records`     the states, the transitions of both stores, what is written
- `conflicts`   whether a reader takes a record or keeps the one before
- `checking`    a channel's messages read back: what is wrong in them

Every record goes to all brokers, and each folds the same records by the same rule: nobody else decides who came first.
Instants are arguments, milliseconds since 1970. `tests/decisions/channel` has what brokers
write by these rules, and explores them exhaustively.
"""
