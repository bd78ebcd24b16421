"""The REST interface: verbs, paths, bodies and status codes of Pulsar 5, and what is ours beside them.

Routes are in `topics`, `policies`, `namespaces`, `subscriptions`, `segments`, `watch` and `nodes`; what they share is
in `parameters`, `responses` and `refusals`.
"""
