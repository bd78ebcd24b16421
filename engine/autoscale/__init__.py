"""The family of PIP-483 within a bucket: topic state, the records that change it, and its evaluation.

Each stage of a record is one module, which imports only those before it:

- `parsing`                  what is derived from a message (its layout)
- `routes`, `filtering`      find the row of each sample; drop announcements and samples that change nothing
- `storing`                  apply changes of layouts, consumers, policies, loads and clocks
- `recording`                count the result of each sample and write the rows of `segment_load`
- `fleet_columns`, `fleet_view`   the topics in columns, as a tick evaluates them
- `evaluation`               decide on topics that are due; record decisions and holds

State: `topics` with `layouts` (over `shapes`), `rows` (over `pairs`) and `loads`, with `topics_codec` and
`loads_codec` for their bytes; `policies`, `samples`. `family` composes the stages for the kernel.

Before the stages: `partitioning` (decoded samples by bucket), `repeats` (periodic snapshots that change nothing).
Under them: `incarnations` (deleted and recreated topics of one name). Beside them: `regrouping`, for state that is
grouped differently from its buckets.
"""
