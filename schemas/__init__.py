"""Every message, table, setting and identifier of the system, each defined once.

Stage: everything that crosses a boundary (Kafka, Delta, REST, files) is described here and nowhere else. This
package imports nothing else of ours; all other parts import it.

- `base`       common base of all models: camelCase JSON, strictness, bounded names and rates
- `metadata`   `ScalableTopicMetadata` and `AutoScalePolicyOverride`, as Pulsar 5 ships them
- `snapshot`   input and answer of `decide`, as JSON
- `tables`     one row model per Delta table; `arrow` derives the physical schemas
- `kafka`      Kafka topics and connections; `messages`, with `parse_message`, the only way from bytes to a message
- `codecs`     fast decoders of plain messages
- `bundles`, `bookies`   snapshots and answers of the other families
- `ids`        topic names and digests
- `settings`   `conf/anabranch.toml` as typed settings
"""
