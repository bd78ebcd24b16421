-- What every topic cost: its active segments times the hours for which it had them, by day.
-- version: 1
-- day date: The UTC day.
-- topic string: The topic.
-- segment_hours double: Active segments times hours; of the present layout up to the newest batch on record.
-- most_segments bigint: The most that it had that day.
-- fewest_segments bigint: The fewest.
WITH known AS (
  SELECT max(batch_at) AS until FROM batches
), spans AS (
  SELECT topic, active_segments, valid_from, coalesce(valid_to, greatest(k.until, valid_from)) AS valid_to
  FROM layout_spans CROSS JOIN known k
), days AS (
  SELECT topic, active_segments, valid_from, valid_to, $series(valid_from, valid_to, day) AS day
  FROM spans
  WHERE valid_to > valid_from
), parts AS (
  SELECT topic, day, active_segments,
         ($micros(least(valid_to, day + INTERVAL '1 day')) - $micros(greatest(valid_from, day))) / 3.6e9 AS hours
  FROM days
)
SELECT CAST(day AS DATE) AS day, topic, sum(active_segments * hours) AS segment_hours,
       max(active_segments) AS most_segments, min(active_segments) AS fewest_segments
FROM parts
WHERE hours > 0
GROUP BY CAST(day AS DATE), topic
