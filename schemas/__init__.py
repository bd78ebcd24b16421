"""The words of the system: every message, table, setting and identifier, each defined once.

Stage: everything that crosses a boundary (Kafka, Delta, REST, files) is described here and nowhere else. This package
imports nothing else of ours; all other parts import it.

- `base`       what all models share: camelCase JSON, strictness, bounded names and rates
- `metadata`   `ScalableTopicMetadata` and `AutoScalePolicyOverride`, as Pulsar 5 ships them
- `messages`   the three Kafka topics' messages, and `parse_message`, the only way raw bytes become one
- `snapshot`   what `decide` sees and what it answers, as JSON
- `tables`     one row model per Delta table; `arrow`, `ddl` and `delta` derive the physical schemas from them
- `kafka`      definitions of the Kafka topics
- `ids`        topic names and digests
- `settings`   `conf/anabranch.toml` as typed settings
"""
