"""Authentication and authorization: bearer tokens with roles (PIP-468 "Security Considerations").

In the order of a request: `tokens` is the file of token digests, `callers` identifies the caller of a request, `gate`
admits it, `roles` declares the role of each route, and `grants` ends sessions whose token was revoked.
"""
