-- Reasons for not acting, each from the evaluation that found it to the next change: another reason, a decision, or the
-- end of the topic.
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
-- held_until timestamp: When something else was found; null: it still holds.
-- ended_by string: `hold` (another gate), `split`, `merge`, or `deleted`; null: it still holds.
-- seconds double: How long; of one that still holds up to the newest batch on record.
-- seq bigint: Number among the holds of its subject.
-- day date: UTC date of `held_from`.
WITH points AS (
  SELECT family, subject, since AS at, 1 AS place, 'hold' AS what, gate, measured, h.limit AS bound, margin,
         eligible_at, trigger, layout_epoch, seq, day
  FROM holds h
  UNION ALL
  SELECT family, subject, decided_at, 1, action, NULL, NULL, NULL, NULL, NULL, NULL, NULL, seq, NULL
  -- Of bundles a split goes beside what holds the shedding.
  FROM decisions WHERE family <> 'bundles' OR action <> 'split'
  UNION ALL
  SELECT 'autoscale', topic, known_from, 0, 'deleted', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL
  FROM topic_ends
), intervals AS (
  SELECT *,
         lead(at) OVER (PARTITION BY subject, family ORDER BY at, place, seq) AS held_until,
         lead(what) OVER (PARTITION BY subject, family ORDER BY at, place, seq) AS ended_by
  FROM points
), known AS (
  SELECT max(batch_at) AS until FROM batches
)
SELECT family, subject, gate, measured, bound, margin, eligible_at, trigger, layout_epoch, at AS held_from, held_until,
       ended_by,
       greatest(0.0, ($micros(coalesce(held_until, k.until)) - $micros(at)) / 1e6) AS seconds,
       seq, day
FROM intervals CROSS JOIN known k
WHERE gate IS NOT NULL
