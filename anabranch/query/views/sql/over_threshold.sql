-- How long a segment was over its threshold before it was split: the rate that the split by load names, by what is on
-- record of it.
-- version: 4
-- decision_id string: The split.
-- topic string: The topic.
-- segment_id bigint: The segment.
-- reason string: The rate that was over its threshold.
-- threshold double: The threshold, a second.
-- rate double: The newest rate on record when it was decided.
-- over_since timestamp: Time of the batch that took in the first rate over the threshold after the last one that was not; null: earlier loads were removed (`lake retain`).
-- decided_at timestamp: When the split was decided.
-- ended_at timestamp: When that decision ended, however; null: it is open.
-- seconds_over double: From `over_since` to `decided_at`.
-- seconds_to_end double: From `over_since` to `ended_at`.
WITH all_splits AS (
  SELECT decision_id, subject, reason, decided_at,
         CAST($first(arguments, '"segments":\[([0-9]+)\]') AS BIGINT) AS segment_id,
         CAST(CASE reason
           WHEN 'msgRateIn' THEN $first(inputs, '"splitMsgRateInThreshold":([-+.0-9eE]+)')
           WHEN 'bytesRateIn' THEN $first(inputs, '"splitBytesRateInThreshold":([-+.0-9eE]+)')
           WHEN 'msgRateOut' THEN $first(inputs, '"splitMsgRateOutThreshold":([-+.0-9eE]+)')
           ELSE $first(inputs, '"splitBytesRateOutThreshold":([-+.0-9eE]+)')
         END AS DOUBLE) AS threshold,
         -- The oldest segment on record then: a topic's deletion may have been forgotten since (`lake retain`), and its
         -- loads not.
         1000 * CAST($first(inputs, '"createdAtMs":([0-9]+)') AS BIGINT) AS created_micros
  FROM decisions
  WHERE family = 'autoscale' AND action = 'split'
    AND reason IN ('msgRateIn', 'bytesRateIn', 'msgRateOut', 'bytesRateOut')
), begun AS (
  SELECT s.subject, s.decision_id, max(e.known_from) AS begun_from
  FROM all_splits s JOIN topic_ends e ON e.topic = s.subject AND e.known_from <= s.decided_at
  GROUP BY s.subject, s.decision_id
), splits AS (
  -- With when the topic's incarnation began: what was on record before is of another topic of that name.
  SELECT s.*, b.begun_from
  FROM all_splits s LEFT JOIN begun b ON b.subject = s.subject AND b.decision_id = s.decision_id
), last_calm AS (
  -- Of each split the newest load at which the rate was not over: a plain sum over many loads, so that few have to be
  -- put into order below.
  SELECT s.subject, s.decision_id,
         max(CASE WHEN CASE s.reason
           WHEN 'msgRateIn' THEN l.msg_rate_in
           WHEN 'bytesRateIn' THEN l.bytes_rate_in
           WHEN 'msgRateOut' THEN l.msg_rate_out
           ELSE l.bytes_rate_out
         END <= s.threshold THEN l.accepted_at END) AS calm_at
  FROM splits s
  JOIN segment_load l ON l.topic = s.subject AND l.segment_id = s.segment_id AND l.accepted_at <= s.decided_at
    AND (s.begun_from IS NULL OR l.accepted_at >= s.begun_from)
    AND (s.created_micros IS NULL OR $micros(l.accepted_at) >= s.created_micros)
  GROUP BY s.subject, s.decision_id
), bounded AS (
  SELECT s.*, c.calm_at
  FROM splits s JOIN last_calm c ON c.subject = s.subject AND c.decision_id = s.decision_id
), rates AS (
  SELECT s.subject, s.decision_id, l.accepted_at, l.cause, s.threshold,
         row_number() OVER (
           PARTITION BY s.subject, s.decision_id
           ORDER BY l.accepted_at DESC, l.kafka_partition DESC, l.kafka_offset DESC) AS place,
         CASE s.reason
           WHEN 'msgRateIn' THEN l.msg_rate_in
           WHEN 'bytesRateIn' THEN l.bytes_rate_in
           WHEN 'msgRateOut' THEN l.msg_rate_out
           ELSE l.bytes_rate_out
         END AS rate
  FROM bounded s
  JOIN segment_load l ON l.topic = s.subject AND l.segment_id = s.segment_id AND l.accepted_at <= s.decided_at
    AND (s.begun_from IS NULL OR l.accepted_at >= s.begun_from)
    AND (s.created_micros IS NULL OR $micros(l.accepted_at) >= s.created_micros)
    AND (s.calm_at IS NULL OR l.accepted_at >= s.calm_at)
), calm AS (
  SELECT subject, decision_id, accepted_at, cause, rate, place,
         min(CASE WHEN rate <= threshold THEN place END) OVER (PARTITION BY subject, decision_id) AS calm_place
  FROM rates
), hot AS (
  -- Known if a load below the threshold came before, or if the segment's record begins with these loads. A job without
  -- its state calls a later load the first, too.
  SELECT subject, decision_id, max(CASE WHEN place = 1 THEN rate END) AS rate,
         CASE WHEN max(calm_place) IS NOT NULL OR min(CASE WHEN cause = 'first' THEN accepted_at END) = min(accepted_at)
              THEN min(accepted_at) END AS over_since
  FROM calm
  WHERE calm_place IS NULL OR place < calm_place
  GROUP BY subject, decision_id
), ends AS (
  SELECT decision_id, min(at) AS ended_at FROM outcomes WHERE status <> 'intent' GROUP BY decision_id
)
SELECT s.decision_id, s.subject AS topic, s.segment_id, s.reason, s.threshold, h.rate, h.over_since, s.decided_at,
       e.ended_at,
       ($micros(s.decided_at) - $micros(h.over_since)) / 1e6 AS seconds_over,
       ($micros(e.ended_at) - $micros(h.over_since)) / 1e6 AS seconds_to_end
FROM splits s
LEFT JOIN hot h ON h.subject = s.subject AND h.decision_id = s.decision_id
LEFT JOIN ends e ON e.decision_id = s.decision_id
