"""Callers of a listener: tokens, their roles and scopes (PIP-468 "Security Considerations")."""
