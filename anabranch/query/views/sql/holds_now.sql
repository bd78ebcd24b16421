-- What holds now: the rows of `hold_intervals` without an end, found by the newest of each subject instead of by putting
-- all that is on record into order.
-- version: 2
-- family string: Kind of decision.
-- subject string: What is held: of `autoscale` a topic.
-- gate string: The binding gate (docs/gates.md).
-- measured double: What was measured at it when it was found.
-- bound double: What it was compared with (column `limit` of `holds`).
-- margin double: By how much it failed.
-- eligible_at timestamp: When it could pass by time alone.
-- trigger string: `tick` or `consumer`.
-- layout_epoch bigint: Epoch of the layout that it was found on.
-- held_from timestamp: The time of the evaluation.
-- seconds double: For how long, up to the newest batch on record.
-- seq bigint: Number among the holds of its subject.
-- day date: UTC date of `held_from`.
WITH points AS (
  SELECT family, subject, since AS at FROM holds
  UNION ALL
  -- Of bundles a split goes beside what holds the shedding.
  SELECT family, subject, decided_at FROM decisions WHERE family <> 'bundles' OR action <> 'split'
  UNION ALL
  SELECT 'autoscale', topic, known_from FROM topic_ends
), newest AS (
  SELECT family, subject, max(at) AS at FROM points GROUP BY family, subject
), last AS (
  SELECT h.family, h.subject, h.gate, h.measured, h.limit AS bound, h.margin, h.eligible_at, h.trigger, h.layout_epoch,
         h.since, h.seq, h.day
  FROM newest n JOIN holds h ON h.family = n.family AND h.subject = n.subject AND h.since = n.at
  UNION ALL
  SELECT d.family, d.subject, NULL, NULL, NULL, NULL, NULL, NULL, NULL, d.decided_at, d.seq, NULL
  FROM newest n JOIN decisions d ON d.family = n.family AND d.subject = n.subject AND d.decided_at = n.at
), ranked AS (
  SELECT *, row_number() OVER (PARTITION BY family, subject ORDER BY seq DESC) AS place FROM last
), known AS (
  SELECT max(batch_at) AS until FROM batches
)
SELECT family, subject, gate, measured, bound, margin, eligible_at, trigger, layout_epoch, since AS held_from,
       greatest(0.0, ($micros(k.until) - $micros(since)) / 1e6) AS seconds, seq, day
FROM ranked CROSS JOIN known k
WHERE place = 1 AND gate IS NOT NULL
