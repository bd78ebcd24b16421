"""Why a bundle was moved or split, and why a broker is left as it is: worked out of what the lake has on record.

- `record`    decisions about a bundle as they were written; a cluster's cycles once more, from its events
"""
