"""The REST interface: verbs, paths, bodies and status codes of Pulsar 5, and what is ours beside them.

Routes are in `topics`, `policies`, `subscriptions`, `segments` and `watch`; what they share is in `parameters`,
`responses` and `refusals`.
"""
