-- The active segments of every topic at an instant, as the job knew them.
-- version: 2
-- parameter at timestamp: The instant.
-- topic string: The topic.
-- epoch bigint: Epoch of its layout.
-- segment_id bigint: An active segment.
-- hash_start bigint: First hash of its range.
-- hash_end bigint: Last hash of its range.
-- active_segments bigint: How many the topic had.
-- valid_from timestamp: Since when the job knew that layout.
-- begun_from timestamp: Loads that were taken in before are of an earlier incarnation; null: there was none.
WITH pieces AS (
  SELECT topic, epoch, active_segments, valid_from, begun_from, $pieces(layout, '"[0-9]+" *: *[{]') AS piece
  FROM layout_intervals
  WHERE valid_from <= $at AND (valid_to IS NULL OR valid_to > $at)
)
SELECT topic, epoch, CAST($first(piece, '"segmentId" *: *([0-9]+)') AS BIGINT) AS segment_id,
       CAST($first(piece, '"start" *: *([0-9]+)') AS BIGINT) AS hash_start,
       CAST($first(piece, '"end" *: *([0-9]+)') AS BIGINT) AS hash_end,
       active_segments, valid_from, begun_from
FROM pieces
WHERE $count(piece, '"state" *: *"ACTIVE"') > 0
