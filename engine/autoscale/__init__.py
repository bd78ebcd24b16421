"""The family of PIP-483 in a bucket: what is known of its topics, how records change that, when it is evaluated.

A record's way, one module a stage, each importing only those before it:

- `parsing`                  what is derived from a message (its layout)
- `routes`, `filtering`      whose rows a sample has; what of announcements and samples is news
- `storing`                  what news changes: layouts, consumers, policies, loads, clocks
- `recording`                what became of each sample, counted, and the rows of `segment_load`
- `fleet_columns`, `fleet_view`   the topics side by side, as a tick evaluates them
- `evaluation`               what is due is decided on; decisions and holds are put on record

The state: `topics` with `layouts` (over `shapes`), `rows` and `loads`, with `topics_codec` and `loads_codec` for their
bytes; `policies`, `samples`.
`family` puts the stages together for the kernel.
"""
