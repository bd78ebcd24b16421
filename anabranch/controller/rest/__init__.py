"""REST interface: verbs, paths, bodies and status codes of Pulsar 5, with some additions.

Routes are in `topics`, `policies`, `namespaces`, `subscriptions`, `segments`, `watch` and `nodes`; they share
`parameters`, `responses` and `refusals`.
"""
