-- What was decided about bundles of a cluster: unloads and splits, where to, and how each ended.
-- version: 2
-- cluster string: The cluster.
-- action string: `unload` or `split`.
-- bundle string: The bundle.
-- source string: The broker that had it.
-- destination string: The broker that was chosen for it; null: a split.
-- reason string: The strategy, or the limit that the bundle was over.
-- decided_at timestamp: The cycle's time.
-- ended_at timestamp: When it ended; null: it is open.
-- status string: As of `decision_outcomes`: `open`, `intent`, `applied`, `superseded`, `rejected`, `failed`, `observed`.
-- owner string: Who had the bundle when the executor looked last; null: nobody, or nobody looked.
-- calls bigint: Calls to the cluster that were made for it.
-- error string: The newest error that a step had.
-- end_seconds double: From the cycle's time to the end.
-- decision_id string: The decision.
-- seq bigint: Number among those of its cluster.
-- day date: UTC date of `decided_at`.
WITH steps AS (
  SELECT subject, decision_id,
         min(CASE WHEN status = 'intent' THEN at END) AS intent_at,
         min(CASE WHEN status <> 'intent' THEN at END) AS ended_at,
         $last(CASE WHEN status <> 'intent' THEN status END, at, attempt) AS ended_as,
         max(attempt) AS calls,
         $last(error, at, attempt) AS error,
         $last(seen, at, attempt) AS seen
  FROM outcomes
  WHERE family = 'bundles'
  GROUP BY subject, decision_id
)
SELECT d.subject AS cluster, d.action,
       $first(d.arguments, '"bundle":"([^"]+)"') AS bundle,
       $first(d.arguments, '"sourceBroker":"([^"]+)"') AS source,
       $first(d.arguments, '"destinationBroker":"([^"]+)"') AS destination,
       d.reason, d.decided_at, s.ended_at,
       CASE WHEN s.ended_as IS NOT NULL THEN s.ended_as WHEN s.intent_at IS NOT NULL THEN 'intent' ELSE 'open' END
         AS status,
       $first(s.seen, '"owner":"([^"]+)"') AS owner, s.calls, s.error,
       ($micros(s.ended_at) - $micros(d.decided_at)) / 1e6 AS end_seconds,
       d.decision_id, d.seq, d.day
FROM decisions d
LEFT JOIN steps s ON s.subject = d.subject AND s.decision_id = d.decision_id
WHERE d.family = 'bundles'
