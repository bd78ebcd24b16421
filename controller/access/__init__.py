"""Who calls and what they may do: bearer tokens with roles (PIP-468 "Security Considerations").

In the order of a request: `tokens` is the file of token digests, `callers` finds the caller of a request, `gate` lets
it in, `roles` says what each route needs, and `grants` ends sessions whose token is gone.
"""
