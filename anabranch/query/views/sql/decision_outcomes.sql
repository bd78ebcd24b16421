-- Decisions, how each ended, and how long every step took.
-- version: 2
-- decision_id string: The decision.
-- family string: Kind of decision; `autoscale` is about scalable topics.
-- subject string: What was decided about: of `autoscale` a topic.
-- action string: `split` or `merge`.
-- segments string: The segments that it is about: `3`, or `4,5`.
-- reason string: Why: a rate (`msgRateIn`, …), `consumer-count`, `cold`.
-- trigger string: `tick` or `consumer`.
-- layout_epoch bigint: Epoch of the layout that it was decided on.
-- decided_at timestamp: The batch's time.
-- committed_at timestamp: When the batch was on record, wall clock; null: the job died in it.
-- intent_at timestamp: When the executor first wrote down that it would apply it.
-- ended_at timestamp: When it ended; null: it is open.
-- status string: `open` (nobody has begun), `intent`, or how it ended: `applied`, `superseded`, `rejected`, `failed`, `observed`.
-- calls bigint: Calls to the cluster that were made for it.
-- error string: The newest error that a step had.
-- mode string: Of the executor that ended it: `act`, `approve` or `observe`.
-- commit_seconds double: From the batch's time to its commit.
-- intent_seconds double: From the batch's time to the intent.
-- end_seconds double: From the batch's time to the end.
-- seq bigint: Number among those of its subject.
-- day date: UTC date of `decided_at`.
WITH steps AS (
  SELECT subject, decision_id,
         min(CASE WHEN status = 'intent' THEN at END) AS intent_at,
         min(CASE WHEN status <> 'intent' THEN at END) AS ended_at,
         $last(CASE WHEN status <> 'intent' THEN status END, at, attempt) AS ended_as,
         max(attempt) AS calls,
         $last(error, at, attempt) AS error,
         $last(CASE WHEN status <> 'intent' THEN mode END, at, attempt) AS mode
  FROM outcomes
  GROUP BY subject, decision_id
), commits AS (
  SELECT batch_id, batch_at, min(committed_at) AS committed_at FROM batches GROUP BY batch_id, batch_at
)
SELECT d.decision_id, d.family, d.subject, d.action,
       $first(d.arguments, '"segments":\[([0-9,]*)\]') AS segments,
       d.reason, d.trigger, d.layout_epoch, d.decided_at, c.committed_at, s.intent_at, s.ended_at,
       CASE WHEN s.ended_as IS NOT NULL THEN s.ended_as WHEN s.intent_at IS NOT NULL THEN 'intent' ELSE 'open' END
         AS status,
       s.calls, s.error, s.mode,
       ($micros(c.committed_at) - $micros(d.decided_at)) / 1e6 AS commit_seconds,
       ($micros(s.intent_at) - $micros(d.decided_at)) / 1e6 AS intent_seconds,
       ($micros(s.ended_at) - $micros(d.decided_at)) / 1e6 AS end_seconds,
       d.seq, d.day
FROM decisions d
LEFT JOIN steps s ON s.subject = d.subject AND s.decision_id = d.decision_id
LEFT JOIN commits c ON c.batch_id = d.batch_id AND c.batch_at = d.decided_at
