"""Brakes: decide whether a decision may be acted on now and, if not, until when it waits.

A decision that a brake holds is neither lost nor failed: it waits, and is judged again by its subject on release.
Stage: under the kernel, which asks; nothing here depends on families, Kafka or calls.

- `windows`  pure: maintenance windows in local time zones
- `rate`     pure: rate limit on calls in any 60 seconds
- `rules`    pure: the brake that holds a decision, if any
- `waiting`  waiting decisions and their release
- `record`   rows of `waits`
- `state`    the brakes and the waiting decisions, read for people
- `commands` acts of people: pause, resume, approve, reject
"""
