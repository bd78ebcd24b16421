-- Every step of a switch between BookKeeper clusters: what, why, and how it ended (docs/bookies.md).
-- version: 2
-- cluster string: The Pulsar cluster.
-- switch string: Source, target and epoch, as `old-new-1`.
-- source string: The BookKeeper cluster that everything comes from.
-- target string: The one that it goes to.
-- epoch bigint: Number of the directive; a rollback has the next one.
-- attempt bigint: How often this directive was asked for when the step was decided.
-- phase string: `SWITCH_TRIGGERED`, `BUILD`, `PROMOTE` or `CLEANUP`.
-- action string: `copy`, `verify`, `seal`, `unload`, `cas_attribution`, `forward_owner`, `rollover_fallback`, `fail`, `delete` or `flip_status`.
-- kind string: What the object is: `schema`, `cursor`, `topic`, `ledger` or `registry`.
-- object string: Path of the record.
-- ledger bigint: The ledger; null: the step is about a record or the registry.
-- reason string: Why.
-- decided_at timestamp: When it was decided.
-- ended_at timestamp: When it ended; null: it is open.
-- status string: `open`, `intent`, `applied`, `superseded` (something was not as expected) or `failed`.
-- bytes bigint: Length of a ledger that was copied or compared.
-- error string: Why it failed or was superseded.
-- seconds double: From the decision to the end.
-- decision_id string: The step.
-- seq bigint: Number among those of its switch.
-- day date: UTC date of `decided_at`.
WITH steps AS (
  SELECT subject, decision_id,
         min(CASE WHEN status = 'intent' THEN at END) AS intent_at,
         min(CASE WHEN status <> 'intent' THEN at END) AS ended_at,
         $last(CASE WHEN status <> 'intent' THEN status END, at, attempt) AS ended_as,
         $last(CASE WHEN status <> 'intent' THEN seen END, at, attempt) AS seen,
         $last(error, at, attempt) AS error
  FROM outcomes
  WHERE family = 'bookies'
  GROUP BY subject, decision_id
)
SELECT $first(d.subject, '^(.*)/[^/]*$') AS cluster,
       $first(d.subject, '^.*/([^/]*)$') AS switch,
       coalesce($first(d.arguments, '"source":"([^"]+)"'), $first(d.subject, '^.*/(.+)-.+-[0-9]+$')) AS source,
       coalesce($first(d.arguments, '"target":"([^"]+)"'), $first(d.subject, '^.*/.+-(.+)-[0-9]+$')) AS target,
       CAST($first(d.arguments, '"epoch":([0-9]+)') AS BIGINT) AS epoch,
       CAST($first(d.arguments, '"attempt":([0-9]+)') AS BIGINT) AS attempt,
       $first(d.arguments, '"phase":"([A-Z_]+)"') AS phase,
       d.action,
       $first(d.arguments, '"kind":"([a-z]+)"') AS kind,
       $first(d.arguments, '"object":"([^"]*)"') AS object,
       CAST($first(d.arguments, '"kind":"[a-z]+","ledger":([0-9]+)') AS BIGINT) AS ledger,
       d.reason, d.decided_at, s.ended_at,
       CASE WHEN s.ended_as IS NOT NULL THEN s.ended_as WHEN s.intent_at IS NOT NULL THEN 'intent' ELSE 'open' END
         AS status,
       CAST($first(s.seen, '"length":([0-9]+)') AS BIGINT) AS bytes,
       s.error,
       ($micros(s.ended_at) - $micros(d.decided_at)) / 1e6 AS seconds,
       d.decision_id, d.seq, d.day
FROM decisions d
LEFT JOIN steps s ON s.subject = d.subject AND s.decision_id = d.decision_id
WHERE d.family = 'bookies'
