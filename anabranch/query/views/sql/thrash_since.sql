-- Applied actions that were undone by their opposite within an hour: a split whose children were merged, a merge whose
-- child was split. Those undone since an instant. Of one incarnation of their topic each: after a deletion the same
-- numbers are other segments.
-- version: 2
-- parameter since timestamp: An instant; what was undone up to then is left out, and what is older by an hour is not read.
-- topic string: The topic.
-- action string: What was done first: `split` or `merge`.
-- segments string: The segments that it was done to.
-- reason string: Why.
-- decision_id string: That decision.
-- applied_at timestamp: When it was applied.
-- undone_by string: The decision that undid it.
-- undone_reason string: Why.
-- undone_at timestamp: When that was applied.
-- seconds_between double: From one to the other, at most 3,600.
WITH applied AS (
  SELECT subject, decision_id, min(at) AS at, $last($first(seen, '"children":\[([0-9,]+)\]'), at, attempt) AS children
  FROM outcomes
  WHERE status = 'applied' AND at > $since - INTERVAL '1 hour'
  GROUP BY subject, decision_id
), actions AS (
  SELECT d.decision_id, d.subject, d.action, d.reason, a.at, a.children,
         $first(d.arguments, '"segments":\[([0-9,]*)\]') AS segments
  FROM decisions d JOIN applied a ON a.subject = d.subject AND a.decision_id = d.decision_id
  WHERE d.family = 'autoscale'
), made AS (
  SELECT decision_id, subject, action, reason, segments, at, $parts(children) AS segment FROM actions
), undoing AS (
  SELECT decision_id, subject, action, reason, at, $parts(segments) AS segment FROM actions
)
SELECT DISTINCT m.subject AS topic, m.action, m.segments, m.reason, m.decision_id, m.at AS applied_at,
       t.decision_id AS undone_by, t.reason AS undone_reason, t.at AS undone_at,
       ($micros(t.at) - $micros(m.at)) / 1e6 AS seconds_between
FROM made m
JOIN undoing t ON t.subject = m.subject AND t.segment = m.segment
LEFT ANTI JOIN topic_ends e ON e.topic = m.subject AND e.ended_at > m.at AND e.ended_at <= t.at
WHERE t.at > $since AND t.action <> m.action AND t.at >= m.at AND $micros(t.at) - $micros(m.at) <= 3600000000
