-- Which gate bound how much of the fleet in every hour.
-- version: 1
-- hour timestamp: Beginning of the hour, UTC.
-- family string: Kind of decision.
-- gate string: The binding gate.
-- subjects bigint: Topics that it held at some time of the hour.
-- subject_minutes double: For how long, summed over them.
-- began bigint: How often it began to bind in the hour.
WITH known AS (
  SELECT max(batch_at) AS until FROM batches
), spans AS (
  SELECT family, subject, gate, held_from, coalesce(held_until, greatest(k.until, held_from)) AS held_until
  FROM hold_intervals CROSS JOIN known k
), hours AS (
  SELECT family, subject, gate, held_from, held_until, $series(held_from, held_until, hour) AS hour
  FROM spans
), parts AS (
  SELECT family, subject, gate, hour,
         CASE WHEN held_from >= hour THEN 1 ELSE 0 END AS begins,
         ($micros(least(held_until, hour + INTERVAL '1 hour')) - $micros(greatest(held_from, hour))) / 1e6 AS seconds
  FROM hours
)
SELECT hour, family, gate, count(DISTINCT subject) AS subjects, sum(seconds) / 60 AS subject_minutes,
       CAST(sum(begins) AS BIGINT) AS began
FROM parts
WHERE seconds > 0 OR begins = 1
GROUP BY hour, family, gate
