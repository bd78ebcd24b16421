-- What people, and the executor itself, have put in the executor's way, and what has become of it: pauses, stops,
-- approvals and rejections.
-- version: 2
-- number bigint: Of the act, among all acts.
-- act string: `pause`, `stop` (by the executor, after too many failures), `approve` or `reject`.
-- subject string: What it is about: a topic, a cluster, a namespace (`tenant/namespace`), or `*` for everything.
-- decision_id string: The decision that was approved or rejected.
-- actor string: Who: a person, or the executor process.
-- reason string: Why.
-- at timestamp: When.
-- until timestamp: When a pause ends by itself; null: it needs a `resume`.
-- in_force boolean: It holds now; of an approval or a rejection: its decision has not ended.
-- ended_at timestamp: When it ended; null: it has not.
-- ended_as string: `resumed`, `replaced` (by another pause of the same), `elapsed`; of an approval or a rejection how the decision ended: `applied`, `superseded`, …
-- ended_by string: Who resumed or replaced it.
-- day date: UTC date of `at`.
WITH later AS (
  SELECT a.number, min(b.number) AS ended
  FROM brakes a JOIN brakes b ON b.subject = a.subject
  WHERE a.decision_id IS NULL AND b.number > a.number AND (b.act = 'resume' OR (a.act = 'pause' AND b.act = 'pause'))
  GROUP BY a.number
), ends AS (
  SELECT o.decision_id, min(o.at) AS at, $last(o.status, o.at, o.attempt) AS status
  FROM outcomes o JOIN brakes b ON b.decision_id = o.decision_id
  WHERE o.status <> 'intent'
  GROUP BY o.decision_id
), acts AS (
  SELECT b.number, b.act, b.subject, b.decision_id, b.actor, b.reason, b.at, b.until, b.day,
         b.until <= $now AND (r.at IS NULL OR b.until < r.at) AS is_elapsed,
         coalesce(r.at, e.at) AS ended_at, r.actor AS ended_by,
         CASE r.act WHEN 'resume' THEN 'resumed' WHEN 'pause' THEN 'replaced' ELSE e.status END AS ended_as
  FROM brakes b
  LEFT JOIN later l ON l.number = b.number
  LEFT JOIN brakes r ON r.number = l.ended
  LEFT JOIN ends e ON e.decision_id = b.decision_id
  WHERE b.act IN ('pause', 'stop', 'approve', 'reject')
)
SELECT number, act, subject, decision_id, actor, reason, at, until,
       ended_at IS NULL AND NOT coalesce(is_elapsed, false) AS in_force,
       CASE WHEN is_elapsed THEN until ELSE ended_at END AS ended_at,
       CASE WHEN is_elapsed THEN 'elapsed' ELSE ended_as END AS ended_as,
       CASE WHEN is_elapsed THEN NULL ELSE ended_by END AS ended_by,
       day
FROM acts
